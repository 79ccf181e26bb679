// A JSON value that survives a trip through Python's json module unchanged in meaning and spelling: prompts and tool
// calls are byte-exact wire format, and the reference encoder is Python.
//
// Differences from nlohmann's types, which are why this exists: integers of any size keep their digits, 1 and 1.0 stay
// different, out-of-range doubles become infinities instead of errors, and a repeated key keeps its first position
// and its last value. Source: chat-encoding.md section 2.8.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::chat {

class JsonValue {
 public:
  enum class Kind : unsigned char { kNull, kBool, kInteger, kDouble, kString, kArray, kObject };
  using Member = std::pair<std::string, JsonValue>;

  JsonValue() = default;  // null
  static JsonValue Bool(bool value);
  static JsonValue Integer(std::string digits);  // canonical decimal digits with an optional minus sign
  static JsonValue Double(double value);
  static JsonValue String(std::string text);  // UTF-8
  static JsonValue Array(std::vector<JsonValue> items = {});
  static JsonValue Object(std::vector<Member> members = {});  // keys must differ

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  // "null", "boolean", "integer", "number", "string", "array", "object": for error messages.
  std::string_view kind_name() const;

  // Each getter is meaningful for its own kind only; for others it returns an empty value.
  bool boolean() const { return boolean_; }
  double number() const { return number_; }          // kDouble only
  const std::string& text() const { return text_; }  // the string, or an integer's digits
  const std::vector<JsonValue>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }
  std::vector<JsonValue>& items() { return items_; }
  std::vector<Member>& members() { return members_; }

  // The member named `key`, or null when this is not an object or has no such member.
  const JsonValue* Find(std::string_view key) const;
  // False for null, false, zero and anything empty, as Python's bool().
  bool IsTruthy() const;

  friend bool operator==(const JsonValue& a, const JsonValue& b) = default;

 private:
  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  double number_ = 0.0;
  std::string text_;
  std::vector<JsonValue> items_;
  std::vector<Member> members_;
};

enum class JsonDialect : unsigned char {
  kRfc8259,
  kPython,  // also NaN, Infinity and -Infinity, as json.loads accepts
};

// Nesting past this is an error: readers and writers recurse per level.
inline constexpr int kMaxJsonDepth = 512;

// Reads one JSON text. `what` names it in the error. Errors (InvalidArgument): syntax, invalid UTF-8, a lone surrogate
// escape, nesting past kMaxJsonDepth, text after the value.
Result<JsonValue> ReadJson(std::string_view text, std::string_view what,
                           JsonDialect dialect = JsonDialect::kRfc8259);

// Equals Python's json.dumps(value, ensure_ascii=False): ", " and ": ", shortest round-trip doubles, no other spaces.
std::string WriteJson(const JsonValue& value);

// `text` between double quotes, escaped as above.
std::string QuoteJson(std::string_view text);
// Appends the escaped text without the quotes. Escaping works byte by byte, so pieces may be escaped separately.
void AppendJsonEscaped(std::string_view text, std::string& out);

}  // namespace dsv4::chat
