// HTML escapes, with invisible characters spelled out.
#include "diag/report/html_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace dsv4::diag {
namespace {

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
  size_t valid = std::min(FindInvalidUtf8(text), text.size());  // Bytes of whole characters ahead.
  while (!text.empty()) {
    if (valid == 0) {
      fmt::format_to(std::back_inserter(html), "\\x{{{:02x}}}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      valid = std::min(FindInvalidUtf8(text), text.size());
      continue;
    }
    const CodePoint point = DecodeUtf8(text.data());
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
      html += text.substr(0, point.num_bytes);
    }
    text.remove_prefix(point.num_bytes);
    valid -= point.num_bytes;
  }
  return html;
}

}  // namespace dsv4::diag
