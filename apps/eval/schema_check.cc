// JSON Schema validator that judges calls of tools.
#include "apps/eval/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/utf8.h"
#include "grammar/dfa.h"
#include "grammar/pattern.h"

namespace dsv4::apps {
namespace {

constexpr int kMaxDepth = 200;
constexpr int kMaxSteps = 100'000;  // Branches that lead back to themselves double with each step.

bool IsOfType(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return true;
}

bool Matches(const std::string& text, const std::string& pattern) {
  const auto regex = grammar::PatternContent(pattern, grammar::Spelling::kRaw);
  if (!regex) return true;  // Not judged.
  grammar::DfaLimits limits;
  const auto dfa = grammar::Dfa::Compile(*regex, limits);
  if (!dfa || dfa->IsEmpty()) return !dfa.has_value();
  uint32_t state = grammar::Dfa::kStart;
  for (const char c : text) {
    state = dfa->Next(state, static_cast<uint8_t>(c));
    if (state == grammar::Dfa::kDead) return false;
  }
  return dfa->IsAccepting(state);
}

class Judge {
 public:
  explicit Judge(const Json& document) : document_(document) {}

  std::string Complaint(const Json& value, const Json& schema, const std::string& at, int depth) const {
    if (depth > kMaxDepth || ++steps_ > kMaxSteps) return at + ": the schema leads back to itself";
    if (schema.is_boolean()) return schema.get<bool>() ? "" : at + ": nothing may stand here";
    if (!schema.is_object()) return "";
    const auto find = [&](const char* key) -> const Json* {
      const auto found = schema.find(key);
      return found == schema.end() ? nullptr : &*found;
    };
    const auto wrong = [&](const std::string& what) { return (at.empty() ? "/" : at) + ": " + what; };
    if (const Json* type = find("type")) {
      const bool fits =
          type->is_array()
              ? std::any_of(type->begin(), type->end(),
                            [&](const Json& one) { return one.is_string() && IsOfType(value, one); })
              : !type->is_string() || IsOfType(value, *type);
      if (!fits && !(value.is_null() && schema.value("nullable", Json(false)) == true))
        return wrong(fmt::format("got {}, wanted {}", value.type_name(), type->dump()));
    }
    if (const Json* options = find("enum");
        options != nullptr && options->is_array() &&
        std::find(options->begin(), options->end(), value) == options->end())
      return wrong("not one of the listed values");
    if (const Json* only = find("const"); only != nullptr && *only != value)
      return wrong("not the one value");
    if (const Json* reference = find("$ref"); reference != nullptr && reference->is_string()) {
      const auto name = reference->get<std::string>();
      try {
        if (name.starts_with("#")) {
          const Json& target = document_.at(Json::json_pointer(name.substr(1)));
          if (std::string complaint = Complaint(value, target, at, depth + 1); !complaint.empty())
            return complaint;
        }
      } catch (const Json::exception&) {  // Names nothing: not judged.
      }
    }
    if (std::string complaint = OfCombinations(value, schema, at, depth); !complaint.empty())
      return complaint;
    if (value.is_object()) return OfObject(value, schema, at, depth);
    if (value.is_array()) return OfArray(value, schema, at, depth);
    if (value.is_string()) return OfString(value, schema, wrong);
    if (value.is_number()) return OfNumber(value, schema, wrong);
    return "";
  }

 private:
  std::string OfCombinations(const Json& value, const Json& schema, const std::string& at, int depth) const {
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      const auto found = schema.find(key);
      if (found == schema.end() || !found->is_array()) continue;
      size_t fits = 0;
      std::string first;
      for (const Json& part : *found) {
        const std::string complaint = Complaint(value, part, at, depth + 1);
        if (complaint.empty()) ++fits;
        if (!complaint.empty() && first.empty()) first = complaint;
      }
      const bool all = key == std::string_view("allOf");
      if (all ? fits < found->size() : fits == 0) return first;
      if (key == std::string_view("oneOf") && fits > 1) return at + ": fits more than one of oneOf";
    }
    if (const auto found = schema.find("not");
        found != schema.end() && Complaint(value, *found, at, depth + 1).empty())
      return at + ": fits what it must not";
    return "";
  }

  std::string OfObject(const Json& value, const Json& schema, const std::string& at, int depth) const {
    const Json none = Json::object();
    const Json& properties =
        schema.contains("properties") && schema["properties"].is_object() ? schema["properties"] : none;
    for (const Json& name : schema.value("required", Json::array())) {
      if (name.is_string() && !value.contains(name.get<std::string>()))
        return fmt::format("{}/{}: missing", at, name.get<std::string>());
    }
    for (const auto& [name, member] : value.items()) {
      const std::string below = at + "/" + name;
      std::string complaint;
      if (properties.contains(name)) {
        complaint = Complaint(member, properties[name], below, depth + 1);
      } else if (schema.contains("additionalProperties")) {
        complaint = Complaint(member, schema["additionalProperties"], below, depth + 1);
      }
      if (!complaint.empty()) return complaint;
    }
    return "";
  }

  std::string OfArray(const Json& value, const Json& schema, const std::string& at, int depth) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return at + ": too few items";
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return at + ": too many items";
    const Json none = Json::array();
    const Json& prefix =
        schema.contains("prefixItems") && schema["prefixItems"].is_array() ? schema["prefixItems"] : none;
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* item = i < prefix.size()          ? &prefix[i]
                         : schema.contains("items") ? &schema["items"]
                                                    : nullptr;
      if (item == nullptr) continue;
      if (std::string complaint = Complaint(value[i], *item, fmt::format("{}/{}", at, i), depth + 1);
          !complaint.empty())
        return complaint;
    }
    return "";
  }

  template <typename Wrong>
  static std::string OfString(const Json& value, const Json& schema, const Wrong& wrong) {
    const auto& text = value.get_ref<const std::string&>();
    if (schema.contains("minLength") && NumCodePoints(text) < schema["minLength"]) return wrong("too short");
    if (schema.contains("maxLength") && NumCodePoints(text) > schema["maxLength"]) return wrong("too long");
    if (schema.contains("pattern") && schema["pattern"].is_string() && !Matches(text, schema["pattern"]))
      return wrong("does not match the pattern");
    return "";
  }

  template <typename Wrong>
  static std::string OfNumber(const Json& value, const Json& schema, const Wrong& wrong) {
    if (schema.contains("minimum") && value < schema["minimum"]) return wrong("below the minimum");
    if (schema.contains("maximum") && value > schema["maximum"]) return wrong("above the maximum");
    if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"])
      return wrong("not above the minimum");
    if (schema.contains("exclusiveMaximum") && value >= schema["exclusiveMaximum"])
      return wrong("not below the maximum");
    return "";
  }

  const Json& document_;
  mutable int steps_ = 0;
};

}  // namespace

std::string SchemaComplaint(const Json& value, const Json& schema) {
  return Judge(schema).Complaint(value, schema, "", 0);
}

}  // namespace dsv4::apps
