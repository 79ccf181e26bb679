#include "chat/json_value.h"

#include <array>

namespace dsv4::chat {

JsonValue JsonValue::Bool(bool value) {
  JsonValue v;
  v.kind_ = Kind::kBool;
  v.boolean_ = value;
  return v;
}

JsonValue JsonValue::Integer(std::string digits) {
  JsonValue v;
  v.kind_ = Kind::kInteger;
  v.text_ = std::move(digits);
  return v;
}

JsonValue JsonValue::Double(double value) {
  JsonValue v;
  v.kind_ = Kind::kDouble;
  v.number_ = value;
  return v;
}

JsonValue JsonValue::String(std::string text) {
  JsonValue v;
  v.kind_ = Kind::kString;
  v.text_ = std::move(text);
  return v;
}

JsonValue JsonValue::Array(std::vector<JsonValue> items) {
  JsonValue v;
  v.kind_ = Kind::kArray;
  v.items_ = std::move(items);
  return v;
}

JsonValue JsonValue::Object(std::vector<Member> members) {
  JsonValue v;
  v.kind_ = Kind::kObject;
  v.members_ = std::move(members);
  return v;
}

std::string_view JsonValue::kind_name() const {
  constexpr std::array<std::string_view, 7> kNames = {"null",   "boolean", "integer", "number",
                                                      "string", "array",   "object"};
  return kNames[static_cast<size_t>(kind_)];
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

bool JsonValue::IsTruthy() const {
  switch (kind_) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return boolean_;
    case Kind::kInteger:
      return text_ != "0";
    case Kind::kDouble:
      return number_ != 0.0;
    case Kind::kString:
      return !text_.empty();
    case Kind::kArray:
      return !items_.empty();
    case Kind::kObject:
      return !members_.empty();
  }
  return false;
}

}  // namespace dsv4::chat
