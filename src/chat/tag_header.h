// The attributes of a DSML tag: everything between its name and its ">". Source: chat-encoding.md 3.1 and
// 3.3.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::chat {

// Finds the end of a header that arrives in pieces.
class TagHeaderScanner {
 public:
  // `tag_starts`: strings that can only begin the next tag, so a header holding one was never closed.
  explicit TagHeaderScanner(std::vector<std::string> tag_starts) : tag_starts_(std::move(tag_starts)) {}

  enum class State : unsigned char { kMore, kComplete, kMalformed };
  // `text` starts where the header does and grows from call to call. For kComplete the first length() bytes
  // are the header, ">" included. For kMalformed another tag begins after length() bytes.
  State Scan(std::string_view text);
  size_t length() const { return position_; }
  // Before the next header.
  void Reset();

 private:
  std::vector<std::string> tag_starts_;
  size_t position_ = 0;
  bool in_quotes_ = false;
};

// The value of attribute `name` in key="value" pairs; nothing when it is not there or not in double quotes.
std::optional<std::string> FindAttribute(std::string_view header, std::string_view name);

}  // namespace dsv4::chat
