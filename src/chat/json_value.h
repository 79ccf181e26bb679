// A JSON value that survives a trip through Python's json module unchanged in meaning and spelling. Prompts
// and tool calls are a byte-exact wire format, and the reference encoder is Python.
//
// Differences from nlohmann's types are why this exists. Integers of any size keep their digits, and 1 and
// 1.0 stay different. Out-of-range doubles become infinities instead of errors, and a repeated key keeps its
// first position and its last value. Source: chat-encoding.md section 2.8.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace dsv4::chat {

class JsonValue {
 public:
  // kTokens: an array of integers from 0 to 2^31 - 1, packed, where JsonLimits asks for it.
  enum class Kind : unsigned char { kNull, kBool, kInteger, kDouble, kString, kArray, kObject, kTokens };
  using Member = std::pair<std::string, JsonValue>;

  JsonValue() = default;  // null
  static JsonValue Bool(bool value);
  static JsonValue Integer(std::string digits);  // canonical decimal digits with an optional minus sign
  static JsonValue Double(double value);
  static JsonValue String(std::string text);  // UTF-8
  static JsonValue Array(std::vector<JsonValue> items = {});
  static JsonValue Object(std::vector<Member> members = {});  // keys must differ
  static JsonValue Tokens(std::vector<int32_t> tokens);

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }
  // "null", "boolean", "integer", "number", "string", "array", "object": for error messages.
  std::string_view kind_name() const;

  // Each getter is meaningful for its own kind only; for others it returns an empty value.
  bool boolean() const { return Get<1>(); }
  double number() const { return Get<3>(); }  // kDouble only
  // The string, or an integer's digits.
  const std::string& text() const { return kind() == Kind::kInteger ? Get<2>() : Get<4>(); }
  const std::vector<JsonValue>& items() const { return Get<5>(); }
  const std::vector<Member>& members() const { return Get<6>(); }
  const std::vector<int32_t>& tokens() const { return Get<7>(); }
  // To write into, of their own kind only.
  std::vector<JsonValue>& mutable_items() { return std::get<5>(value_); }
  std::vector<Member>& mutable_members() { return std::get<6>(value_); }

  // The member named `key`, or null when this is not an object or has no such member.
  const JsonValue* Find(std::string_view key) const;
  // False for null, false, zero and anything empty, as Python's bool().
  bool IsTruthy() const;
  // Null, false, and a text or list with nothing in it.
  bool SaysNothing() const {
    return is_null() || (is_bool() && !boolean()) || (is_string() && text().empty()) ||
           (is_array() && items().empty());
  }

  friend bool operator==(const JsonValue& a, const JsonValue& b) = default;

 private:
  // One after another as Kind names them.
  // Not trivially copyable: libstdc++ 12 takes a variant of such types for one that always has a value. A
  // copy that runs out of memory would then destroy what was never made.
  struct Null {
    Null() = default;
    Null(const Null& /*other*/) noexcept {}
    Null& operator=(const Null& /*other*/) noexcept { return *this; }
    friend bool operator==(const Null& /*a*/, const Null& /*b*/) { return true; }
  };
  using Value = std::variant<Null, bool, std::string, double, std::string, std::vector<JsonValue>,
                             std::vector<Member>, std::vector<int32_t>>;
  template <size_t kIndex>
  const std::variant_alternative_t<kIndex, Value>& Get() const {
    static const std::variant_alternative_t<kIndex, Value> none{};
    const auto* found = std::get_if<kIndex>(&value_);
    return found == nullptr ? none : *found;
  }

  Value value_;
};

enum class JsonDialect : unsigned char {
  kRfc8259,
  kPython,  // also NaN, Infinity and -Infinity, as json.loads accepts
};

// Nesting past this is an error: readers and writers recurse per level.
inline constexpr int kMaxJsonDepth = 512;

// A value costs fifty bytes and more, however few it has in the text; so a document's are counted.
struct JsonLimits {
  static constexpr size_t kMaxTokens = size_t{1} << 24;

  size_t max_values = size_t{1} << 19;  // Members and items, each once.
  // Members of the whole document whose lists of integers, also those in a list, become kTokens. They do not
  // count as values; kMaxTokens integers of them are at most read.
  std::span<const std::string_view> token_lists = {};
  // Refuses numbers past the range of doubles, which are infinity else: no JSON text could echo them.
  bool finite = false;
};

// Reads one JSON text. `what` names it in the error. Errors (InvalidArgument): syntax, invalid UTF-8, a lone
// surrogate escape, nesting past kMaxJsonDepth, more than the limits, text after the value.
Result<JsonValue> ReadJson(std::string_view text, std::string_view what,
                           JsonDialect dialect = JsonDialect::kRfc8259, const JsonLimits& limits = {});

// The same of a text that is not needed any more. Where one string is most of it, the string takes its memory:
// there are no two copies of a prompt of megabytes.
Result<JsonValue> TakeJson(std::string text, std::string_view what, const JsonLimits& limits = {});

// Equals Python's json.dumps(value, ensure_ascii=False): ", " and ": ", shortest round-trip doubles, no other
// spaces.
std::string WriteJson(const JsonValue& value);

// `text` between double quotes, escaped as above.
std::string QuoteJson(std::string_view text);
// Appends the escaped text without the quotes. Escaping works byte by byte, so pieces may be escaped
// separately.
void AppendJsonEscaped(std::string_view text, std::string& out);

}  // namespace dsv4::chat
