// Scanner of grammar texts: names, counts, escapes, comments, and errors with line numbers.
#include "grammar/rules/scanner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "base/utf8.h"

namespace dsv4::grammar {

Status Scanner::CheckText(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return ResourceExhausted(
        fmt::format("grammar: {}, at most {} are compiled", Counted(text.size(), "byte"), kMaxBytes));
  }
  std::u32string decoded;
  if (!ToCodePoints(text, decoded)) return InvalidArgument("grammar: not well-formed UTF-8");
  return {};
}

bool Scanner::Take(std::string_view what) {
  if (!StartsWith(what)) return false;
  at_ += what.size();
  return true;
}

char32_t Scanner::TakeChar() {
  if (AtEnd()) return 0;
  const CodePoint c = DecodeUtf8(text_.data() + at_);
  Skip(c.num_bytes);
  return c.value;
}

std::string Scanner::TakeName(std::string_view more) {
  const size_t begin = at_;
  while (!AtEnd()) {
    const char c = Peek();
    const bool letter =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!letter && more.find(c) == std::string_view::npos) break;
    ++at_;
  }
  return std::string(text_.substr(begin, at_ - begin));
}

Result<int> Scanner::TakeCount(int most) {
  int value = -1;
  while (Peek() >= '0' && Peek() <= '9' && value <= most) {
    value = 10 * std::max(value, 0) + (Peek() - '0');
    ++at_;
  }
  if (value < 0 || value > most) return Error(Bad(fmt::format("wanted a count of at most {}", most)));
  return value;
}

Result<char32_t> Scanner::TakeHex(int digits) {
  char32_t code = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = Peek();
    const bool number = c >= '0' && c <= '9';
    const auto lower = static_cast<char>(c | 0x20);
    if (!number && (lower < 'a' || lower > 'f'))
      return Error(Bad(fmt::format("wanted {}", Counted(digits, "hexadecimal digit"))));
    code = code * 16 + static_cast<char32_t>(number ? c - '0' : lower - 'a' + 10);
    ++at_;
  }
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return Error(Bad("no such character"));
  return code;
}

void Scanner::SkipLine() {
  while (!AtEnd() && Peek() != '\n') ++at_;
}

int64_t Scanner::line() const {
  return 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
}

Status Scanner::Bad(std::string_view what) const {
  return InvalidArgument(fmt::format("grammar, line {}: {}", line(), what));
}

Result<Regex> Scanner::Char(const CharSet& set) {
  constexpr size_t kMaxSets = 1024;
  const auto found = spelled_.find(set);
  if (found != spelled_.end()) return found->second;
  if (spelled_.size() == kMaxSets) {
    return Error(ResourceExhausted(
        Bad(fmt::format("more than {} and classes", Counted(kMaxSets, "different character"))).message()));
  }
  return spelled_.emplace(set, SpelledChar(set, Spelling::kRaw)).first->second;
}

}  // namespace dsv4::grammar
