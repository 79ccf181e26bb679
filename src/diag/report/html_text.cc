#include "diag/report/html_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace dsv4::diag {
namespace {

// The code point at the start of `text` and its length in bytes; length 0 for bytes that are no UTF-8.
struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;
};

CodePoint Decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  uint32_t value = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return overlong || surrogate || value > 0x10FFFF ? CodePoint{} : CodePoint{value, length};
}

bool IsInvisible(uint32_t value) {
  const bool control = (value < 0x20 && value != '\n' && value != '\t') || (value >= 0x7F && value < 0xA0);
  const bool direction = (value >= 0x202A && value <= 0x202E) || (value >= 0x2066 && value <= 0x2069) ||
                         value == 0x200E || value == 0x200F || value == 0x061C;
  const bool none = (value >= 0xFDD0 && value <= 0xFDEF) || (value & 0xFFFEU) == 0xFFFE;
  return control || direction || none;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = Decode(text);
    if (point.length == 0) {
      fmt::format_to(std::back_inserter(html), "\\x{{{:02x}}}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      continue;
    }
    if (point.value == '&') {
      html += "&amp;";
    } else if (point.value == '<') {
      html += "&lt;";
    } else if (point.value == '>') {
      html += "&gt;";
    } else if (point.value == '"') {
      html += "&quot;";
    } else if (point.value == '\'') {
      html += "&#39;";
    } else if (IsInvisible(point.value)) {
      fmt::format_to(std::back_inserter(html), "\\u{{{:x}}}", point.value);
    } else {
      html += text.substr(0, point.length);
    }
    text.remove_prefix(point.length);
  }
  return html;
}

}  // namespace dsv4::diag
