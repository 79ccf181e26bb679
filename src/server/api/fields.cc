// Typed reading of JSON members, with errors that name the field.
#include "server/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace dsv4::server {
namespace {

constexpr size_t kMaxFieldName = 100;

// Value got where an integer is wanted.
std::string Got(const chat::JsonValue& value) {
  const bool is_number =
      value.kind() == chat::JsonValue::Kind::kInteger || value.kind() == chat::JsonValue::Kind::kDouble;
  return is_number ? chat::WriteJson(value) : std::string(value.kind_name());
}

// The integer that the digits are, if it fits.
template <typename Integer>
std::optional<Integer> IntegerOf(const std::string& digits) {
  Integer integer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), integer);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return integer;
}

}  // namespace

bool ToInteger(const chat::JsonValue& value, int64_t* integer) {
  if (value.kind() != chat::JsonValue::Kind::kInteger) return false;
  const std::optional<int64_t> found = IntegerOf<int64_t>(value.text());
  if (found) *integer = *found;
  return found.has_value();
}

Status ToTokens(const chat::JsonValue& value, std::string_view name, std::vector<int32_t>* tokens) {
  if (value.kind() == chat::JsonValue::Kind::kTokens) {
    *tokens = value.tokens();
    return {};
  }
  if (!value.is_array())
    return InvalidArgument(fmt::format("{}: got {}, wanted a list", name, value.kind_name()));
  std::vector<int32_t> read;
  for (const chat::JsonValue& item : value.items()) {
    int64_t integer = 0;
    if (!ToInteger(item, &integer) || integer < 0 || integer > std::numeric_limits<int32_t>::max())
      return InvalidArgument(fmt::format("{}: got {}, wanted token ids", name, chat::WriteJson(item)));
    read.push_back(static_cast<int32_t>(integer));
  }
  *tokens = std::move(read);
  return {};
}

std::string FieldOf(const Status& status) {
  const std::string& message = status.message();
  const size_t end = message.find(": ");
  if (end == std::string::npos || end == 0 || end > kMaxFieldName) return {};
  const bool is_name =
      std::all_of(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(end), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']' || c == '$';
      });
  return is_name ? message.substr(0, end) : std::string();
}

Fields::Fields(const chat::JsonValue& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    status_ = InvalidArgument(fmt::format("{}: got {}, wanted an object",
                                          path_.empty() ? "body" : path_.substr(0, path_.size() - 1),
                                          object.kind_name()));
  }
}

void Fields::Fail(std::string_view name, std::string_view what) {
  if (status_.ok()) status_ = InvalidArgument(fmt::format("{}{}: {}", path_, name, what));
}

void Fields::Adopt(const Status& inner) {
  if (status_.ok()) status_ = inner;
}

const chat::JsonValue* Fields::Find(std::string_view name) {
  known_.emplace(name);
  const chat::JsonValue* value = object_.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const chat::JsonValue* Fields::FindUnlessFailed(std::string_view name) {
  const chat::JsonValue* value = Find(name);
  return status_.ok() ? value : nullptr;
}

void Fields::Expect(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

std::vector<std::string> Fields::Unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.members()) {
    if (!known_.contains(name) && !value.is_null()) names.push_back(name);
  }
  return names;
}

bool Fields::Read(std::string_view name, bool* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  if (!found->is_bool()) Fail(name, fmt::format("got {}, wanted a boolean", found->kind_name()));
  if (status_.ok()) *value = found->boolean();
  return status_.ok();
}

bool Fields::ReadInteger(std::string_view name, int64_t lowest, int64_t highest, int64_t* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  int64_t integer = 0;
  if (!ToInteger(*found, &integer) || integer < lowest || integer > highest) {
    Fail(name, fmt::format("got {}, wanted an integer", Got(*found)));
  }
  if (status_.ok()) *value = integer;
  return status_.ok();
}

bool Fields::Read(std::string_view name, uint64_t* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  const bool is_integer = found->kind() == chat::JsonValue::Kind::kInteger;
  if (const auto low = IntegerOf<int64_t>(found->text()); is_integer && low) {
    *value = static_cast<uint64_t>(*low);
  } else if (const auto high = IntegerOf<uint64_t>(found->text()); is_integer && high) {
    *value = *high;
  } else {
    Fail(name, fmt::format("got {}, wanted an integer of {} to {}", Got(*found),
                           std::numeric_limits<int64_t>::min(), std::numeric_limits<uint64_t>::max()));
  }
  return status_.ok();
}

bool Fields::Read(std::string_view name, int64_t* value) {
  return ReadInteger(name, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), value);
}

bool Fields::Read(std::string_view name, int* value) {
  int64_t integer = 0;
  if (!ReadInteger(name, std::numeric_limits<int>::min(), std::numeric_limits<int>::max(), &integer))
    return false;
  *value = static_cast<int>(integer);
  return true;
}

bool Fields::Read(std::string_view name, float* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  int64_t integer = 0;
  if (found->kind() == chat::JsonValue::Kind::kDouble)
    *value = static_cast<float>(found->number());
  else if (ToInteger(*found, &integer))
    *value = static_cast<float>(integer);
  else
    Fail(name, fmt::format("got {}, wanted a number", found->kind_name()));
  if (status_.ok() && !std::isfinite(*value))
    Fail(name, fmt::format("got {}, wanted a number that fp32 has", Got(*found)));
  return status_.ok();
}

bool Fields::Read(std::string_view name, std::string* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  if (!found->is_string()) Fail(name, fmt::format("got {}, wanted a string", found->kind_name()));
  if (status_.ok()) *value = found->text();
  return status_.ok();
}

bool Fields::ReadObject(std::string_view name, const chat::JsonValue** value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  if (!found->is_object()) Fail(name, fmt::format("got {}, wanted an object", found->kind_name()));
  if (status_.ok()) *value = found;
  return status_.ok();
}

bool Fields::ReadList(std::string_view name, const chat::JsonValue** value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  if (!found->is_array()) Fail(name, fmt::format("got {}, wanted a list", found->kind_name()));
  if (status_.ok()) *value = found;
  return status_.ok();
}

bool Fields::ReadStrings(std::string_view name, std::vector<std::string>* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  std::vector<std::string> strings;
  if (found->is_string()) {
    strings.push_back(found->text());
  } else if (found->is_array()) {
    for (const chat::JsonValue& item : found->items()) {
      if (!item.is_string()) Fail(name, fmt::format("got a list with {}, wanted strings", item.kind_name()));
      strings.push_back(item.text());
    }
  } else {
    Fail(name, fmt::format("got {}, wanted a string or a list of strings", found->kind_name()));
  }
  if (status_.ok()) *value = std::move(strings);
  return status_.ok();
}

bool Fields::ReadTokens(std::string_view name, std::vector<int32_t>* value) {
  const chat::JsonValue* found = FindUnlessFailed(name);
  if (found == nullptr) return false;
  Adopt(ToTokens(*found, path_ + std::string(name), value));
  return status_.ok();
}

}  // namespace dsv4::server
