#include "grammar/schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dsv4::grammar {
namespace {

constexpr int kMaxFlattenDepth = 64;
// Of all schemas that were looked at: references may double a schema at every level.
constexpr size_t kMaxFlattenBytes = size_t{16} << 20;

enum class Wants : uint8_t {
  kAnything,
  kSchema,
  kSchemas,
  kSchemaMap,
  kNumber,
  kCount,
  kString,
  kNames,
  kTypes,
  kList
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
    Keyword{"items", Wants::kSchema},
    Keyword{"prefixItems", Wants::kSchemas},
    Keyword{"minItems", Wants::kCount},
    Keyword{"maxItems", Wants::kCount},
    Keyword{"enum", Wants::kList},
    Keyword{"const", Wants::kAnything},
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
    Keyword{"exclusiveMinimum", Wants::kNumber},
    Keyword{"exclusiveMaximum", Wants::kNumber},
};

constexpr std::array<std::string_view, 15> kAnnotations = {
    "$schema",    "$id",         "$comment",  "$defs",           "definitions",
    "title",      "description", "default",   "example",         "examples",
    "deprecated", "readOnly",    "writeOnly", "contentEncoding", "contentMediaType",
};

const Keyword* FindKeyword(std::string_view name) {
  const auto* found =
      std::find_if(kKeywords.begin(), kKeywords.end(), [&](const Keyword& k) { return k.name == name; });
  return found == kKeywords.end() ? nullptr : found;
}

// Of keywords that are not understood, the values that mean what their absence means.
bool SaysNothing(std::string_view name, const Json& value) {
  if (name == "uniqueItems") return value == false;
  if (name == "minProperties" || name == "minContains") return value == 0;
  if (name == "patternProperties" || name == "dependentRequired" || name == "dependentSchemas") {
    return value.is_object() && value.empty();
  }
  return std::find(kAnnotations.begin(), kAnnotations.end(), name) != kAnnotations.end() ||
         name.starts_with("x-");
}

bool IsSchema(const Json& value) { return value.is_object() || value.is_boolean(); }

bool IsTypeName(const Json& value) {
  constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                      "string", "array",   "object"};
  return value.is_string() &&
         std::find(kTypes.begin(), kTypes.end(), value.get_ref<const std::string&>()) != kTypes.end();
}

// What the keyword wanted and did not get; empty when it did.
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
      return value.is_number_unsigned() && value <= 1'000'000'000 ? ""
                                                                  : "wanted a count of at most 1000000000";
    case Wants::kString:
      return value.is_string() ? "" : "wanted a string";
    case Wants::kNames:
      return value.is_array() && all([](const Json& name) { return name.is_string(); })
                 ? ""
                 : "wanted a list of names";
    case Wants::kTypes:
      return IsTypeName(value) || (value.is_array() && !value.empty() && all(IsTypeName))
                 ? ""
                 : "wanted a type or a list of types";
    case Wants::kList:
      return value.is_array() && !value.empty() ? "" : "wanted a list of values";
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
  const auto found = schema.find("additionalProperties");
  return found != schema.end() && *found != true && *found != Json::object();
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
      if (SaysNothing(name, value)) continue;
      return SchemaError(Below(pointer, name), "this keyword is not supported");
    }
    const std::string_view complaint = Complaint(keyword->wants, value);
    if (!complaint.empty()) {
      std::string got = value.dump(-1, ' ', false, Json::error_handler_t::replace);
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

Json WithoutAnnotations(const Json& schema) {
  if (!schema.is_object()) return schema;
  Json bare = Json::object();
  for (const auto& [name, value] : schema.items()) {
    if (!SaysNothing(name, value)) bare[name] = value;
  }
  return bare;
}

bool Constrains(const Json& schema, std::string_view except) {
  for (const auto& [name, value] : schema.items()) {
    if (name != except && FindKeyword(name) != nullptr) return true;
  }
  return false;
}

Result<const Json*> SchemaFlattener::Resolve(const std::string& reference, const std::string& pointer) const {
  const std::string at = Below(pointer, "$ref");
  if (!reference.starts_with("#")) {
    return Error(SchemaError(
        at, fmt::format("\"{}\": only references into this schema (#/...) are supported", reference)));
  }
  try {
    const Json* target = &document_.at(Json::json_pointer(reference.substr(1)));
    if (IsSchema(*target)) return target;
  } catch (const Json::exception&) {  // Malformed, or names nothing.
  }
  return Error(SchemaError(at, fmt::format("\"{}\" names no schema", reference)));
}

Result<Json> SchemaFlattener::Flatten(const Json& schema, const std::string& pointer, int depth) {
  if (depth > kMaxFlattenDepth) {
    return Error(SchemaError(pointer, "references or allOf lead back to themselves, or are too deep"));
  }
  bytes_ += schema.dump(-1, ' ', false, Json::error_handler_t::replace).size();
  if (bytes_ > kMaxFlattenBytes)
    return Error(SchemaError(pointer, "references and allOf make the schema too large"));
  if (!schema.is_object()) return schema;
  const Json known = lenient_ ? Understood(schema) : schema;
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

Result<Json> SchemaFlattener::Merge(const Json& a, const Json& b, const std::string& pointer) {
  if (a == false || b == false) return Json(false);
  if (a == true) return b;
  if (b == true) return a;
  if ((IsClosed(a) && !NamesAreIn(b, a)) || (IsClosed(b) && !NamesAreIn(a, b))) {
    return Error(SchemaError(pointer,
                             "schemas are combined of which one limits additionalProperties and another has "
                             "properties that it lacks; this is not supported"));
  }
  Json out = a;
  for (const auto& [name, value] : b.items()) {
    const auto found = out.find(name);
    if (found == out.end() || FindKeyword(name) == nullptr) {
      out[name] = value;
    } else if (*found == value) {
      continue;
    } else if (name == "type") {
      *found = CommonTypes(*found, value);
      if (found->empty()) return Json(false);
    } else if (name == "minimum" || name == "exclusiveMinimum" || name == "minLength" || name == "minItems") {
      if (*found < value) *found = value;
    } else if (name == "maximum" || name == "exclusiveMaximum" || name == "maxLength" || name == "maxItems") {
      if (value < *found) *found = value;
    } else if (name == "required") {
      for (const Json& required : value) {
        if (std::find(found->begin(), found->end(), required) == found->end()) found->push_back(required);
      }
    } else if (name == "properties") {
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
    } else if (name == "additionalProperties" && !IsClosed(b)) {
      continue;
    } else if (name == "additionalProperties" && !IsClosed(a)) {
      *found = value;
    } else {
      return Error(SchemaError(
          pointer,
          fmt::format("two schemas with different \"{}\" are combined; this is not supported", name)));
    }
  }
  return out;
}

}  // namespace dsv4::grammar
