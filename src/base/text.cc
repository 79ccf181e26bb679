// English plurals behind counts; percent-encoding.
#include "base/text.h"

namespace dsv4 {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string Counted(int64_t count, std::string_view one, std::string_view many) {
  std::string text = std::to_string(count) + ' ';
  if (count == 1) return text.append(one);
  if (!many.empty()) return text.append(many);
  text += one;
  const auto ends = [&](std::string_view end) { return one.ends_with(end); };
  if (ends("y") && !ends("ay") && !ends("ey") && !ends("oy")) {
    text.pop_back();
    return text + "ies";
  }
  return text + (ends("s") || ends("x") || ends("sh") || ends("ch") ? "es" : "s");
}

std::string Lowercase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return lower;
}

std::string_view Trim(std::string_view text, std::string_view blanks) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape =
        text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0;
    out += is_escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (is_escape) i += 2;
  }
  return out;
}

}  // namespace dsv4
