// Scanner of a DSML tag's attributes from streamed text, quoted and bounded.
#include "chat/tag_header.h"

namespace dsv4::chat {

TagHeaderScanner::State TagHeaderScanner::Scan(std::string_view text) {
  for (; position_ < text.size(); ++position_) {
    const char c = text[position_];
    if (c == '"') {
      in_quotes_ = !in_quotes_;
    } else if (c == '>' && !in_quotes_) {
      ++position_;
      return State::kComplete;
    }
    const std::string_view seen = text.substr(0, position_ + 1);
    for (const std::string& start : tag_starts_) {
      if (!seen.ends_with(start)) continue;
      position_ = seen.size() - start.size();
      return State::kMalformed;
    }
  }
  return State::kMore;
}

void TagHeaderScanner::Reset() {
  position_ = 0;
  in_quotes_ = false;
}

std::optional<std::string> FindAttribute(std::string_view header, std::string_view name) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  size_t pos = 0;
  while (true) {
    const size_t equals = header.find('=', pos);
    if (equals == std::string_view::npos) return std::nullopt;
    std::string_view key = header.substr(pos, equals - pos);
    if (const size_t space = key.find_last_of(kSpace); space != std::string_view::npos)
      key.remove_prefix(space + 1);
    if (equals + 1 >= header.size() || header[equals + 1] != '"') {  // an unquoted value: skip it
      pos = equals + 1;
      continue;
    }
    const size_t end = header.find('"', equals + 2);
    if (end == std::string_view::npos) return std::nullopt;
    if (key == name) return std::string(header.substr(equals + 2, end - equals - 2));
    pos = end + 1;
  }
}

}  // namespace dsv4::chat
