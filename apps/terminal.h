// What a person sees: colours only on a terminal, a one-line progress bar, and Ctrl-C as a flag.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4::apps {

bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StdinIsTerminal();

// ANSI styles; empty strings when `enabled` is false, so callers write them unconditionally.
struct Style {
  explicit Style(bool enabled);
  std::string_view dim, bold, reset;
};

// A bar on stderr that overwrites itself; silent when stderr is no terminal. Gone after Clear or destruction.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label) : label_(std::move(label)) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // `text` stands beside the bar, "done/total" when it is empty.
  void Update(int64_t done, int64_t total, std::string_view text = {});
  void Clear();

 private:
  std::string label_;
  bool visible_ = false;
};

// While one lives, Ctrl-C sets a flag instead of ending the process; a second Ctrl-C before the flag is taken ends it.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  // True once after Ctrl-C.
  static bool Take();
};

}  // namespace dsv4::apps
