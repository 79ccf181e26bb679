// Constructors, look-up and truth of JsonValue.
#include "chat/json_value.h"

#include <array>

namespace dsv4::chat {

JsonValue JsonValue::Bool(bool value) {
  JsonValue v;
  v.value_.emplace<1>(value);
  return v;
}

JsonValue JsonValue::Integer(std::string digits) {
  JsonValue v;
  v.value_.emplace<2>(std::move(digits));
  return v;
}

JsonValue JsonValue::Double(double value) {
  JsonValue v;
  v.value_.emplace<3>(value);
  return v;
}

JsonValue JsonValue::String(std::string text) {
  JsonValue v;
  v.value_.emplace<4>(std::move(text));
  return v;
}

JsonValue JsonValue::Array(std::vector<JsonValue> items) {
  JsonValue v;
  v.value_.emplace<5>(std::move(items));
  return v;
}

JsonValue JsonValue::Object(std::vector<Member> members) {
  JsonValue v;
  v.value_.emplace<6>(std::move(members));
  return v;
}

JsonValue JsonValue::Tokens(std::vector<int32_t> tokens) {
  JsonValue v;
  v.value_.emplace<7>(std::move(tokens));
  return v;
}

std::string_view JsonValue::kind_name() const {
  constexpr std::array<std::string_view, 8> kNames = {"null",   "boolean", "integer", "number",
                                                      "string", "array",   "object",  "array"};
  return kNames[value_.index()];
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const Member& member : members()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

bool JsonValue::IsTruthy() const {
  switch (kind()) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return boolean();
    case Kind::kInteger:
      return text() != "0";
    case Kind::kDouble:
      return number() != 0.0;
    case Kind::kString:
      return !text().empty();
    case Kind::kArray:
      return !items().empty();
    case Kind::kObject:
      return !members().empty();
    case Kind::kTokens:
      return !tokens().empty();
  }
  return false;
}

}  // namespace dsv4::chat
