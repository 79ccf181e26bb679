// Writer of JsonValue, byte for byte as Python's json.dumps.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "chat/json_value.h"

namespace dsv4::chat {
namespace {

// Python's repr of a float: the shortest digits that read back equal; exponent form below 1e-4 and from 1e16
// up.
void AppendDouble(double value, std::string& out) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::signbit(value)) out += '-';
  value = std::fabs(value);
  if (std::isinf(value)) {
    out += "Infinity";
    return;
  }
  char buffer[64];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const size_t first = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + first, end, exponent);

  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (num_digits > 1) out.append(".").append(digits, 1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else if (num_digits <= exponent + 1) {
    out.append(digits).append(static_cast<size_t>(exponent + 1 - num_digits), '0').append(".0");
  } else {
    out.append(digits, 0, static_cast<size_t>(exponent + 1));
    out.append(".").append(digits, static_cast<size_t>(exponent + 1));
  }
}

void AppendString(std::string_view text, std::string& out) {
  out += '"';
  AppendJsonEscaped(text, out);
  out += '"';
}

void Append(const JsonValue& value, std::string& out) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      out += "null";
      break;
    case JsonValue::Kind::kBool:
      out += value.boolean() ? "true" : "false";
      break;
    case JsonValue::Kind::kInteger:
      out += value.text();
      break;
    case JsonValue::Kind::kDouble:
      AppendDouble(value.number(), out);
      break;
    case JsonValue::Kind::kString:
      AppendString(value.text(), out);
      break;
    case JsonValue::Kind::kArray: {
      std::string_view separator = "[";
      for (const JsonValue& item : value.items()) {
        out += separator;
        Append(item, out);
        separator = ", ";
      }
      out += value.items().empty() ? "[]" : "]";
      break;
    }
    case JsonValue::Kind::kObject: {
      std::string_view separator = "{";
      for (const auto& [key, member] : value.members()) {
        out += separator;
        AppendString(key, out);
        out += ": ";
        Append(member, out);
        separator = ", ";
      }
      out += value.members().empty() ? "{}" : "}";
      break;
    }
    case JsonValue::Kind::kTokens:
      out += fmt::format("[{}]", fmt::join(value.tokens(), ", "));
      break;
  }
}

}  // namespace

void AppendJsonEscaped(std::string_view text, std::string& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string QuoteJson(std::string_view text) {
  std::string out;
  AppendString(text, out);
  return out;
}

std::string WriteJson(const JsonValue& value) {
  std::string out;
  Append(value, out);
  return out;
}

}  // namespace dsv4::chat
