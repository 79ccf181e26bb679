// Table of JSON Schema keywords, their checks, and the merge of two schemas to one.
#include "grammar/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "grammar/schema_rewrite.h"

namespace dsv4::grammar {
namespace {

constexpr int kMaxFlattenDepth = 64;

// A value, and the bytes of its text, as work of DfaLimits.
int64_t Cost(const Json& value) {
  constexpr int64_t kOfValue = 12;  // It is copied, some fifty bytes each time.
  int64_t cost = kOfValue;
  if (value.is_string()) cost += static_cast<int64_t>(value.get_ref<const std::string&>().size() / 16);
  if (value.is_array()) {
    for (const Json& item : value) cost += Cost(item);
  } else if (value.is_object()) {
    for (const auto& [name, member] : value.get_ref<const Json::object_t&>())
      cost += static_cast<int64_t>(name.size() / 16) + Cost(member);
  }
  return cost;
}

enum class Wants : uint8_t {
  kAnything,
  kSchema,
  kSchemas,
  kSchemaMap,
  kNumber,
  kCount,
  kString,
  kNames,
  kNameMap,
  kSchemaOrSchemas,
  kNumberOrFlag,
  kFlag,
  kDependencies,
  kTypes,
  kValue,
  kValues
};

struct Keyword {
  std::string_view name;
  Wants wants;
};

constexpr std::array kKeywords = {
    Keyword{"type", Wants::kTypes},
    Keyword{"properties", Wants::kSchemaMap},
    Keyword{"required", Wants::kNames},
    Keyword{"additionalProperties", Wants::kSchema},
    Keyword{"items", Wants::kSchemaOrSchemas},
    Keyword{"additionalItems", Wants::kSchema},
    Keyword{"unevaluatedItems", Wants::kSchema},
    Keyword{"contains", Wants::kSchema},
    Keyword{"minContains", Wants::kCount},
    Keyword{"maxContains", Wants::kCount},
    Keyword{"uniqueItems", Wants::kFlag},
    Keyword{"patternProperties", Wants::kSchemaMap},
    Keyword{"propertyNames", Wants::kSchema},
    Keyword{"minProperties", Wants::kCount},
    Keyword{"maxProperties", Wants::kCount},
    Keyword{"unevaluatedProperties", Wants::kSchema},
    Keyword{"dependentRequired", Wants::kNameMap},
    Keyword{"dependentSchemas", Wants::kSchemaMap},
    Keyword{"dependencies", Wants::kDependencies},
    Keyword{"not", Wants::kSchema},
    Keyword{"if", Wants::kSchema},
    Keyword{"then", Wants::kSchema},
    Keyword{"else", Wants::kSchema},
    Keyword{"nullable", Wants::kFlag},
    Keyword{"multipleOf", Wants::kNumber},
    Keyword{kNotValues, Wants::kValues},
    Keyword{kAlsoStrings, Wants::kSchemas},
    Keyword{kNotPatterns, Wants::kNames},
    Keyword{"prefixItems", Wants::kSchemas},
    Keyword{"minItems", Wants::kCount},
    Keyword{"maxItems", Wants::kCount},
    Keyword{"enum", Wants::kValues},
    Keyword{"const", Wants::kValue},
    Keyword{"anyOf", Wants::kSchemas},
    Keyword{"oneOf", Wants::kSchemas},
    Keyword{"allOf", Wants::kSchemas},
    Keyword{"$ref", Wants::kString},
    Keyword{"minLength", Wants::kCount},
    Keyword{"maxLength", Wants::kCount},
    Keyword{"pattern", Wants::kString},
    Keyword{"format", Wants::kString},
    Keyword{"minimum", Wants::kNumber},
    Keyword{"maximum", Wants::kNumber},
    Keyword{"exclusiveMinimum", Wants::kNumberOrFlag},
    Keyword{"exclusiveMaximum", Wants::kNumberOrFlag},
};

constexpr std::array<std::string_view, 22> kAnnotations = {
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    // Keywords of OpenAPI and of editors; what a discriminator says follows from the branches.
    "discriminator",
    "externalDocs",
    "xml",
    "markdownDescription",
    "$anchor",
    "$vocabulary",
    "contentSchema",
};

const Keyword* FindKeyword(std::string_view name) {
  const auto* found =
      std::find_if(kKeywords.begin(), kKeywords.end(), [&](const Keyword& k) { return k.name == name; });
  return found == kKeywords.end() ? nullptr : found;
}

bool SaysNothing(std::string_view name) {
  return std::find(kAnnotations.begin(), kAnnotations.end(), name) != kAnnotations.end() ||
         name.starts_with("x-");
}

bool IsSchema(const Json& value) { return value.is_object() || value.is_boolean(); }

// False where an integer of more than 64 bits may have become a double.
bool IsExact(const Json& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), IsExact);
  return !value.is_number_float() || std::abs(value.get<double>()) < 0x1p64;
}

bool IsTypeName(const Json& value) {
  constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                      "string", "array",   "object"};
  return value.is_string() &&
         std::find(kTypes.begin(), kTypes.end(), value.get_ref<const std::string&>()) != kTypes.end();
}

// Demand of the keyword that was not met; empty when it was.
std::string_view Complaint(Wants wants, const Json& value) {
  const auto all = [&](auto&& test) { return std::all_of(value.begin(), value.end(), test); };
  switch (wants) {
    case Wants::kAnything:
      return "";
    case Wants::kSchema:
      return IsSchema(value) ? "" : "wanted a schema";
    case Wants::kSchemas:
      return value.is_array() && !value.empty() && all(IsSchema) ? "" : "wanted a list of schemas";
    case Wants::kSchemaMap:
      return value.is_object() && all(IsSchema) ? "" : "wanted an object of schemas";
    case Wants::kNumber:
      return value.is_number() ? "" : "wanted a number";
    case Wants::kCount:
      return IsCount(value) ? "" : "wanted a count";
    case Wants::kString:
      return value.is_string() ? "" : "wanted a string";
    case Wants::kNames:
      return value.is_array() && all([](const Json& name) { return name.is_string(); })
                 ? ""
                 : "wanted a list of names";
    case Wants::kNameMap:
      return value.is_object() && all([](const Json& names) {
               return names.is_array() &&
                      std::all_of(names.begin(), names.end(), [](const Json& n) { return n.is_string(); });
             })
                 ? ""
                 : "wanted an object of lists of names";
    case Wants::kDependencies:
      return value.is_object() && all([](const Json& one) {
               return IsSchema(one) ||
                      (one.is_array() &&
                       std::all_of(one.begin(), one.end(), [](const Json& n) { return n.is_string(); }));
             })
                 ? ""
                 : "wanted an object of schemas and lists of names";
    case Wants::kSchemaOrSchemas:
      return IsSchema(value) || (value.is_array() && all(IsSchema)) ? "" : "wanted a schema";
    case Wants::kNumberOrFlag:
      return value.is_number() || value.is_boolean() ? "" : "wanted a number";
    case Wants::kFlag:
      return value.is_boolean() ? "" : "wanted true or false";
    case Wants::kTypes:
      return IsTypeName(value) || (value.is_array() && !value.empty() && all(IsTypeName))
                 ? ""
                 : "wanted a type or a list of types";
    case Wants::kValue:
      return IsExact(value) ? "" : "wanted no number past 64 bits, whose digits are lost";
    case Wants::kValues:
      if (!value.is_array() || value.empty()) return "wanted a list of values";
      return IsExact(value) ? "" : "wanted no number past 64 bits, whose digits are lost";
  }
  return "";
}

Json TypeList(const Json& types) { return types.is_array() ? types : Json::array({types}); }

// The types of both lists; an integer is a number.
Json CommonTypes(const Json& a, const Json& b) {
  const Json lists[2] = {TypeList(a), TypeList(b)};
  const auto has = [](const Json& list, std::string_view type) {
    return std::find(list.begin(), list.end(), type) != list.end();
  };
  Json out = Json::array();
  for (const char* type : {"null", "boolean", "integer", "number", "string", "array", "object"}) {
    const bool integer = type == std::string_view("integer");
    const auto allows = [&](const Json& list) { return has(list, type) || (integer && has(list, "number")); };
    if (allows(lists[0]) && allows(lists[1])) out.push_back(type);
  }
  return out;
}

// Whether members of other names than its own are limited.
bool IsClosed(const Json& schema) {
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    const auto found = schema.find(keyword);
    if (found != schema.end()) return *found != true && *found != Json::object();
  }
  return false;
}

bool NamesAreIn(const Json& schema, const Json& other) {
  const auto inner = schema.find("properties");
  if (inner == schema.end()) return true;
  const auto outer = other.find("properties");
  for (const auto& [name, value] : inner->items()) {
    if (outer == other.end() || !outer->contains(name)) return false;
  }
  return true;
}

}  // namespace

std::string Below(const std::string& pointer, std::string_view key) {
  std::string out = pointer + "/";
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string Below(const std::string& pointer, size_t index) { return fmt::format("{}/{}", pointer, index); }

Status SchemaError(const std::string& pointer, const std::string& what) {
  return InvalidArgument(fmt::format("json schema, {}: {}", pointer.empty() ? "top level" : pointer, what));
}

Status CheckKeywords(const Json& schema, const std::string& pointer) {
  for (const auto& [name, value] : schema.items()) {
    const Keyword* keyword = FindKeyword(name);
    if (keyword == nullptr) {
      if (SaysNothing(name)) continue;
      return SchemaError(Below(pointer, name), "this keyword is not supported");
    }
    const std::string_view complaint = Complaint(keyword->wants, value);
    if (!complaint.empty()) {
      std::string got = JsonText(value);
      if (got.size() > 60) got = got.substr(0, 57) + "...";
      return SchemaError(Below(pointer, name), fmt::format("{}, got {}", complaint, got));
    }
  }
  return {};
}

Json Understood(const Json& schema) {
  if (!schema.is_object()) return schema.is_boolean() ? schema : Json(true);
  Json known = Json::object();
  for (const auto& [name, value] : schema.items()) {
    const Keyword* keyword = FindKeyword(name);
    if (keyword != nullptr && Complaint(keyword->wants, value).empty()) known[name] = value;
  }
  return known;
}

namespace {

bool HasId(const Json& schema, const std::string& id) {
  if (!schema.is_object()) return false;
  for (const char* keyword : {"$id", "id"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end() || !found->is_string()) continue;
    const std::string& name = found->get_ref<const std::string&>();
    if (name == id || name == id + "#") return true;
  }
  return false;
}

}  // namespace

bool IsCount(const Json& value) {
  if (value.is_number_unsigned()) return true;
  return value.is_number_float() && value >= 0 && std::floor(value.get<double>()) == value.get<double>();
}

std::optional<size_t> CountOf(const Json& schema, const char* keyword) {
  constexpr double kMost = 1e9;
  const auto found = schema.find(keyword);
  if (found == schema.end()) return std::nullopt;
  return static_cast<size_t>(std::min(found->get<double>(), kMost));
}

Json WithoutAnnotations(const Json& schema) {
  if (!schema.is_object()) return schema;
  Json bare = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (!SaysNothing(name)) bare.get_ref<Json::object_t&>().emplace_back(name, value);
  }
  return bare;
}

bool Constrains(const Json& schema, std::string_view except) {
  for (const auto& [name, value] : schema.items()) {
    if (name != except && FindKeyword(name) != nullptr) return true;
  }
  return false;
}

Status Spend(const Json& schema, const std::string& pointer, DfaLimits& limits) {
  limits.work_left -= Cost(schema);
  if (limits.work_left >= 0) return {};
  return ResourceExhausted(fmt::format("json schema, {}: references, allOf, not and if make it too large",
                                       pointer.empty() ? "top level" : pointer));
}

Result<const Json*> SchemaFlattener::Resolve(const std::string& reference, const std::string& pointer) const {
  const std::string at = Below(pointer, "$ref");
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string base = reference.substr(0, hash);
  const std::string fragment = hash < reference.size() ? reference.substr(hash + 1) : std::string();
  // The schema that the fragment is looked for in: this one, also by its own name, or one of its definitions
  // by theirs.
  const Json* root = base.empty() || HasId(document_, base) ? &document_ : nullptr;
  const auto find = [&](const auto& fits) -> const Json* {
    for (const char* holder : {"$defs", "definitions"}) {
      if (!document_.is_object() || !document_.contains(holder) || !document_[holder].is_object()) continue;
      for (const Json& one : document_[holder]) {
        if (fits(one)) return &one;
      }
    }
    return nullptr;
  };
  if (root == nullptr) root = find([&](const Json& one) { return HasId(one, base); });
  if (root == nullptr) {
    return Error(SchemaError(
        at, fmt::format("\"{}\": only references into this schema (#/...) are supported", reference)));
  }
  // As a URI's fragment, and as it stands: some generators encode nothing.
  for (const std::string& path : {PercentDecoded(fragment), fragment}) {
    if (!path.empty() && path[0] != '/') {
      const Json* named =
          find([&](const Json& one) { return one.is_object() && one.value("$anchor", Json()) == path; });
      if (named != nullptr) return named;
    }
    try {
      const Json* target = &root->at(Json::json_pointer(path));
      if (IsSchema(*target)) return target;
    } catch (const Json::exception&) {  // Malformed, or names nothing.
    }
  }
  return Error(SchemaError(at, fmt::format("\"{}\" names no schema", reference)));
}

Result<Json> SchemaFlattener::Flatten(const Json& schema, const std::string& pointer, int depth) {
  if (depth > kMaxFlattenDepth) {
    return Error(SchemaError(pointer, "references or allOf lead back to themselves, or are too deep"));
  }
  DSV4_TRY(Spend(schema, pointer, limits_));
  if (!schema.is_object()) return schema;
  DSV4_ASSIGN_OR_RETURN(const Json known, Rewrite(lenient_ ? Understood(schema) : schema, pointer));
  if (!known.is_object()) return known;
  DSV4_TRY(CheckKeywords(known, pointer));
  Json flat = known;
  flat.erase("$ref");
  flat.erase("allOf");
  if (const auto reference = known.find("$ref"); reference != known.end()) {
    DSV4_ASSIGN_OR_RETURN(const Json* target, Resolve(reference->get<std::string>(), pointer));
    DSV4_ASSIGN_OR_RETURN(const Json part, Flatten(*target, Below(pointer, "$ref"), depth + 1));
    DSV4_ASSIGN_OR_RETURN(flat, Merge(part, flat, pointer));
  }
  if (const auto parts = known.find("allOf"); parts != known.end()) {
    for (size_t i = 0; i < parts->size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(const Json part,
                            Flatten((*parts)[i], Below(Below(pointer, "allOf"), i), depth + 1));
      DSV4_ASSIGN_OR_RETURN(flat, Merge(flat, part, pointer));
    }
  }
  return flat;
}

Result<Json> SchemaFlattener::Rewrite(const Json& schema, const std::string& pointer) const {
  const ResolveSchema resolve = [&](const std::string& reference) -> Result<Json> {
    DSV4_ASSIGN_OR_RETURN(const Json* target, Resolve(reference, pointer));
    DSV4_TRY(Spend(*target, pointer, limits_));
    return *target;
  };
  return Rewritten(schema, pointer, resolve, limits_);
}

Result<Json> SchemaFlattener::Merge(const Json& a, const Json& b, const std::string& pointer) {
  if (a == false || b == false) return Json(false);
  if (a == true) return b;
  if (b == true) return a;
  DSV4_TRY(Spend(a, pointer, limits_));
  DSV4_TRY(Spend(b, pointer, limits_));
  // Members are looked up one by one.
  for (const char* keyword : {"properties", "patternProperties", "required", "enum"}) {
    if (a.contains(keyword) && b.contains(keyword))
      limits_.work_left -= static_cast<int64_t>(a[keyword].size() * b[keyword].size() / 4);
  }
  Json out = a;
  Json from_b = b;
  // Bounds of what an array contains are said of the same items.
  for (Json* side : {&out, &from_b}) {
    if (!side->contains("contains")) {
      side->erase("minContains");
      side->erase("maxContains");
    } else if (a.contains("contains") && b.contains("contains") && !side->contains("minContains")) {
      (*side)["minContains"] = size_t{1};
    }
  }
  // A member that one of them does not list is what that one's additionalProperties say.
  for (const auto& [closed, open] :
       {std::pair<const Json*, Json*>{&a, &from_b}, std::pair<const Json*, Json*>{&b, &out}}) {
    if (!IsClosed(*closed) || NamesAreIn(*open, *closed)) continue;
    if (closed->contains("patternProperties")) {
      return Error(SchemaError(
          pointer,
          "schemas are combined of which one limits additionalProperties and has patternProperties, and "
          "another has properties that it lacks; this is not supported"));
    }
    const Json& additional = (*closed)[closed->contains("additionalProperties") ? "additionalProperties"
                                                                                : "unevaluatedProperties"];
    for (auto& [name, part] : (*open)["properties"].items()) {
      if (closed->contains("properties") && (*closed)["properties"].contains(name)) continue;
      part = additional == false ? Json(false) : Json{{"allOf", Json::array({part, additional})}};
    }
  }
  for (const auto& [name, value] : from_b.items()) {
    const auto found = out.find(name);
    if (found == out.end() || FindKeyword(name) == nullptr) {
      out[name] = value;
    } else if (*found == value) {
      continue;
    } else if (name == "type") {
      *found = CommonTypes(*found, value);
      if (found->empty()) return Json(false);
    } else if (name == "minimum" || name == "exclusiveMinimum" || name == "minLength" || name == "minItems" ||
               name == "minProperties" || name == "minContains") {
      if (*found < value) *found = value;
    } else if (name == "maximum" || name == "exclusiveMaximum" || name == "maxLength" || name == "maxItems" ||
               name == "maxProperties" || name == "maxContains") {
      if (value < *found) *found = value;
    } else if (name == "required") {
      for (const Json& required : value) {
        if (std::find(found->begin(), found->end(), required) == found->end()) found->push_back(required);
      }
    } else if (name == "uniqueItems") {
      *found = true;
    } else if (name == kNotValues || name == kAlsoStrings || name == kNotPatterns) {
      for (const Json& one : value) found->push_back(one);
    } else if (name == "pattern" || name == "format") {
      out[kAlsoStrings].push_back(Json{{name, value}});
    } else if (name == "items" || name == "propertyNames" || name == "additionalProperties" ||
               name == "unevaluatedProperties") {
      // Both count; true says nothing.
      if (value != true && value != Json::object()) *found = Json{{"allOf", Json::array({*found, value})}};
    } else if (name == "anyOf" || name == "oneOf") {
      constexpr size_t kMaxPairs = 1024;
      if (found->size() * value.size() > kMaxPairs)
        return Error(SchemaError(
            pointer, fmt::format("more than {} pairs of branches of \"{}\" are combined", kMaxPairs, name)));
      limits_.work_left -= static_cast<int64_t>(value.size()) * Cost(*found) +
                           static_cast<int64_t>(found->size()) * Cost(value);
      DSV4_TRY(Spend(value, pointer, limits_));
      Json pairs = Json::array();
      for (const Json& one : *found) {
        for (const Json& other : value) pairs.push_back(Json{{"allOf", Json::array({one, other})}});
      }
      *found = std::move(pairs);
    } else if (name == "properties" || name == "patternProperties") {
      for (const auto& [property, part] : value.items()) {
        const auto other = found->find(property);
        if (other == found->end()) {
          (*found)[property] = part;
        } else if (*other != part) {
          *other = Json{{"allOf", Json::array({*other, part})}};
        }
      }
    } else if (name == "enum") {
      Json common = Json::array();
      for (const Json& option : *found) {
        if (std::find(value.begin(), value.end(), option) != value.end()) common.push_back(option);
      }
      if (common.empty()) return Json(false);
      *found = common;
    } else if (name == "const") {
      return Json(false);
    } else {
      return Error(SchemaError(
          pointer,
          fmt::format("two schemas with different \"{}\" are combined; this is not supported", name)));
    }
  }
  return out;
}

}  // namespace dsv4::grammar
