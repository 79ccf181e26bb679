// Rewriting of a schema's negations, conditions, dependencies and older keywords into those that are
// compiled.
#include "grammar/schema_rewrite.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grammar/schema_keywords.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxNegations = 32;
constexpr std::array<const char*, 6> kTypes = {"null", "boolean", "number", "string", "array", "object"};

Json AnyOf(std::vector<Json> options) {
  if (options.empty()) return false;
  if (options.size() == 1) return std::move(options[0]);
  return Json{{"anyOf", std::move(options)}};
}

Json WithMember(const std::string& name, Json schema, bool required) {
  Json out = {{"type", "object"}, {"properties", Json::object({{name, std::move(schema)}})}};
  if (required) out["required"] = Json::array({name});
  return out;
}

// The opposite of a schema, a keyword at a time: one of them at least is not kept.
class Negation {
 public:
  Negation(const ResolveSchema& resolve, DfaLimits& limits) : resolve_(resolve), limits_(limits) {}

  Result<Json> Of(const Json& schema, const std::string& pointer) {
    if (schema.is_boolean()) return Json(!schema.get<bool>());
    if (++steps_ > kMaxNegations) return Error(SchemaError(pointer, "too many schemas to turn round"));
    DSV4_TRY(Spend(schema, pointer, limits_));
    DSV4_TRY(CheckKeywords(schema, pointer));
    std::vector<Json> options;
    for (const auto& [name, value] : schema.items()) {
      if (!Constrains(Json{{name, value}}, "")) continue;
      DSV4_ASSIGN_OR_RETURN(Json option, OfKeyword(schema, name, value, Below(pointer, name)));
      if (option != false) options.push_back(std::move(option));
    }
    return AnyOf(std::move(options));
  }

 private:
  static Json OfType(const Json& named) {
    const Json list = named.is_array() ? named : Json::array({named});
    Json rest = Json::array();
    for (const char* type : kTypes) {
      const bool is_number = type == std::string_view("number");
      const bool taken = std::any_of(list.begin(), list.end(), [&](const Json& one) {
        return one == type || (is_number && one == "integer");
      });
      if (!taken) rest.push_back(type);
    }
    return rest.empty() ? Json(false) : Json{{"type", rest}};
  }

  Result<Json> OfKeyword(const Json& schema, const std::string& name, const Json& value,
                         const std::string& pointer) {
    const auto bound = [&](const char* type, const char* keyword, Json limit) {
      return Json{{"type", type}, {keyword, std::move(limit)}};
    };
    if (name == "type") return OfType(value);
    if (name == "const" || name == "enum") {
      Json values = name == "const" ? Json::array({value}) : value;
      for (const Json& one : values) {
        if (one.is_structured())
          return Error(SchemaError(pointer, "objects and arrays are not supported inside not"));
      }
      return Json{{kNotValues, std::move(values)}};
    }
    if (name == "minimum") return bound("number", "exclusiveMaximum", value);
    if (name == "maximum") return bound("number", "exclusiveMinimum", value);
    if (name == "exclusiveMinimum") return bound("number", "maximum", value);
    if (name == "exclusiveMaximum") return bound("number", "minimum", value);
    const auto count = [&] { return *CountOf(schema, name.c_str()); };
    if (name == "minLength" || name == "minItems" || name == "minProperties") {
      if (count() == 0) return Json(false);
      return name == "minLength"  ? bound("string", "maxLength", count() - 1)
             : name == "minItems" ? bound("array", "maxItems", count() - 1)
                                  : bound("object", "maxProperties", count() - 1);
    }
    if (name == "maxLength") return bound("string", "minLength", count() + 1);
    if (name == "maxItems") return bound("array", "minItems", count() + 1);
    if (name == "maxProperties") return bound("object", "minProperties", count() + 1);
    if (name == "pattern") return Json{{"type", "string"}, {kNotPatterns, Json::array({value})}};
    if (name == "required") {
      std::vector<Json> options;
      for (const Json& one : value) options.push_back(WithMember(one, false, false));
      return AnyOf(std::move(options));
    }
    if (name == "properties") {
      std::vector<Json> options;
      for (const auto& [member, part] : value.items()) {
        DSV4_ASSIGN_OR_RETURN(Json other, Of(part, Below(pointer, member)));
        if (other != false) options.push_back(WithMember(member, std::move(other), true));
      }
      return AnyOf(std::move(options));
    }
    if (name == "items" && !schema.contains("prefixItems")) {
      DSV4_ASSIGN_OR_RETURN(Json other, Of(value, pointer));
      return other == false ? other : Json{{"type", "array"}, {"contains", std::move(other)}};
    }
    if (name == "contains") {
      // Too few, or too many.
      std::vector<Json> options;
      const size_t min = CountOf(schema, "minContains").value_or(1);
      const Json counted = {{"type", "array"}, {"contains", value}, {"minContains", size_t{0}}};
      if (min > 0) {
        options.push_back(counted);
        options.back()["maxContains"] = min - 1;
      }
      if (const std::optional<size_t> max = CountOf(schema, "maxContains")) {
        options.push_back(counted);
        options.back()["minContains"] = *max + 1;
      }
      return AnyOf(std::move(options));
    }
    if (name == "minContains" || name == "maxContains") return Json(false);  // Said of contains.
    if (name == "anyOf" || name == "oneOf" || name == "allOf") {
      std::vector<Json> parts;
      for (size_t i = 0; i < value.size(); ++i) {
        DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), Of(value[i], Below(pointer, i)));
      }
      if (name == "allOf") {
        std::erase(parts, Json(false));
        return AnyOf(std::move(parts));
      }
      return Json{{"allOf", std::move(parts)}};
    }
    if (name == "not") return value;
    if (name == "$ref") {
      DSV4_ASSIGN_OR_RETURN(const Json target, resolve_(value.get<std::string>()));
      return Of(target, pointer);
    }
    return Error(SchemaError(pointer, "this keyword is not supported inside not, if and oneOf's like"));
  }

  const ResolveSchema& resolve_;
  DfaLimits& limits_;
  int steps_ = 0;
};

void AddPart(Json& schema, Json part) {
  if (!schema.contains("allOf")) schema["allOf"] = Json::array();
  schema["allOf"].push_back(std::move(part));
}

// The words of older drafts and of OpenAPI.
void Modernize(Json& schema) {
  if (const auto items = schema.find("items"); items != schema.end() && items->is_array()) {
    Json prefix = *items;
    schema.erase("items");
    if (!prefix.empty()) schema["prefixItems"] = std::move(prefix);
    if (schema.contains("additionalItems")) schema["items"] = schema["additionalItems"];
  }
  schema.erase("additionalItems");
  if (const auto dependencies = schema.find("dependencies"); dependencies != schema.end()) {
    for (const auto& [name, value] : dependencies->items())
      schema[value.is_array() ? "dependentRequired" : "dependentSchemas"][name] = value;
    schema.erase("dependencies");
  }
  for (const auto& [exclusive, inclusive] :
       {std::pair{"exclusiveMinimum", "minimum"}, std::pair{"exclusiveMaximum", "maximum"}}) {
    const auto found = schema.find(exclusive);
    if (found == schema.end() || !found->is_boolean()) continue;
    const bool is_exclusive = found->get<bool>();
    schema.erase(exclusive);
    if (!is_exclusive || !schema.contains(inclusive)) continue;
    schema[exclusive] = schema[inclusive];
    schema.erase(inclusive);
  }
  if (const auto nullable = schema.find("nullable"); nullable != schema.end()) {
    if (*nullable == true && schema.contains("type")) {
      Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      if (std::find(types.begin(), types.end(), "null") == types.end()) types.push_back("null");
      schema["type"] = std::move(types);
      if (schema.contains("enum") &&
          std::find(schema["enum"].begin(), schema["enum"].end(), nullptr) == schema["enum"].end())
        schema["enum"].push_back(nullptr);
    }
    schema.erase("nullable");
  }
}

}  // namespace

Result<Json> Rewritten(const Json& schema, const std::string& pointer, const ResolveSchema& resolve,
                       DfaLimits& limits) {
  if (!schema.is_object()) return schema;
  constexpr std::array kWords = {"not",
                                 "if",
                                 "then",
                                 "else",
                                 "dependentRequired",
                                 "dependentSchemas",
                                 "dependencies",
                                 "additionalItems",
                                 "nullable"};
  const bool plain =
      std::none_of(kWords.begin(), kWords.end(), [&](const char* word) { return schema.contains(word); });
  const auto is = [&](const char* key, auto test) { return schema.contains(key) && test(schema[key]); };
  const auto boolean = [](const Json& value) { return value.is_boolean(); };
  if (plain && !is("items", [](const Json& value) { return value.is_array(); }) &&
      !is("exclusiveMinimum", boolean) && !is("exclusiveMaximum", boolean))
    return schema;
  DSV4_TRY(Spend(schema, pointer, limits));
  DSV4_TRY(CheckKeywords(schema, pointer));
  Json out = schema;
  Modernize(out);
  if (const auto negated = out.find("not"); negated != out.end()) {
    DSV4_ASSIGN_OR_RETURN(Json part, Negation(resolve, limits).Of(*negated, Below(pointer, "not")));
    out.erase("not");
    if (part == false) return part;
    AddPart(out, std::move(part));
  }
  if (const auto condition = out.find("if"); condition != out.end()) {
    const Json then_part = out.value("then", Json(true));
    const Json else_part = out.value("else", Json(true));
    if (then_part != true || else_part != true) {
      DSV4_ASSIGN_OR_RETURN(Json other, Negation(resolve, limits).Of(*condition, Below(pointer, "if")));
      std::vector<Json> options = {Json{{"allOf", Json::array({*condition, then_part})}}};
      if (other != false) options.push_back(Json{{"allOf", Json::array({std::move(other), else_part})}});
      AddPart(out, AnyOf(std::move(options)));
    }
    out.erase("if");
  }
  out.erase("then");
  out.erase("else");
  const auto depends = [&](const char* keyword) {
    const auto found = out.find(keyword);
    if (found == out.end()) return;
    const Json list = *found;
    out.erase(keyword);
    for (const auto& [name, value] : list.items()) {
      Json with = WithMember(name, true, true);
      if (value.is_array()) {
        for (const Json& needed : value) with["required"].push_back(needed);
      } else {
        with = Json{{"allOf", Json::array({std::move(with), value})}};
      }
      AddPart(out, Json{{"anyOf", Json::array({WithMember(name, false, false), std::move(with)})}});
    }
  };
  depends("dependentRequired");
  depends("dependentSchemas");
  return out;
}

}  // namespace dsv4::grammar
