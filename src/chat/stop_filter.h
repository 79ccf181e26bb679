// Cuts a streamed text at the first of the user's stop strings. Source: chat-encoding.md 3.4.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::chat {

class StopFilter {
 public:
  // Empty strings are ignored. The string that is complete first wins; of two that end together, the longer.
  explicit StopFilter(std::vector<std::string> stops);

  // False: text passes, and stop strings in it mean nothing (min_tokens). True at first.
  void SetActive(bool active) { active_ = active; }

  // Appends to `out` what can no longer be part of a stop string. True when one is found: `out` ends before
  // it.
  bool Feed(std::string_view text, std::string& out);
  // The text is over: what was held back is ordinary.
  void Flush(std::string& out);
  // The stop string that was found; empty before.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::string found_;
  bool active_ = true;
};

}  // namespace dsv4::chat
