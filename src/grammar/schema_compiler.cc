#include "grammar/schema_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "grammar/pattern.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {
namespace {

// Of the schemas that all rules of a document are made from; what they share is counted again.
constexpr size_t kMaxRuleBytes = size_t{16} << 20;
constexpr size_t kMaxUnrolledItems = 10'000;

std::string Dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The value, not the keyword's place: where it is absent, nothing.
const Json* Find(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

bool HasAny(const Json& schema, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
}

std::string Where(const std::string& pointer) {
  return fmt::format("json schema, {}", pointer.empty() ? "top level" : pointer);
}

Result<Dfa> At(Result<Dfa> dfa, const std::string& pointer) {
  if (!dfa) return Error(dfa.error().WithContext(Where(pointer)));
  return dfa;
}

bool IsOfType(const Json& value, const Json& types) {
  for (const Json& type : types.is_array() ? types : Json::array({types})) {
    const auto& name = type.get_ref<const std::string&>();
    const bool fits = name == "null"      ? value.is_null()
                      : name == "boolean" ? value.is_boolean()
                      : name == "integer" ? value.is_number_integer()
                      : name == "number"  ? value.is_number()
                      : name == "string"  ? value.is_string()
                      : name == "array"   ? value.is_array()
                                          : value.is_object();
    if (fits) return true;
  }
  return false;
}

Regex AnyByte() { return ByteRange(0, 255); }

// What is kept out of counted strings for the whole of `closer`, which would multiply their states: "</" and one character.
std::string Beginning(const std::string& closer) {
  size_t end = std::min<size_t>(3, closer.size());
  while (end < closer.size() && (static_cast<uint8_t>(closer[end]) & 0xC0) == 0x80) ++end;
  return closer.substr(0, end);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// GrammarParts

Result<uint32_t> GrammarParts::Terminal(const Dfa& dfa, uint32_t next) {
  return builder.Terminal(builder.AddDfa(dfa), next);
}

Result<uint32_t> GrammarParts::Text(const std::string& text, uint32_t next) {
  auto found = known_.find(text);
  if (found == known_.end()) {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(Literal(text), limits));
    found = known_.emplace(text, builder.AddDfa(std::move(dfa))).first;
  }
  return builder.Terminal(found->second, next);
}

Result<uint32_t> GrammarParts::Punctuation(const std::string& text, uint32_t next) {
  const std::string key =
      "JSON " + text;  // No text of a grammar is like that: those begin with a tag or a quote.
  auto found = known_.find(key);
  if (found == known_.end()) {
    const bool closes = text == "]" || text == "}";
    const Regex regex = closes ? Concat({Space(), Literal(text)}) : Concat({Literal(text), Space()});
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(regex, limits));
    found = known_.emplace(key, builder.AddDfa(std::move(dfa))).first;
  }
  return builder.Terminal(found->second, next);
}

// ---------------------------------------------------------------------------------------------------------------------
// SchemaCompiler

SchemaCompiler::SchemaCompiler(GrammarParts& parts, const Json& document, ValuePlace place)
    : parts_(parts), document_(document), place_(std::move(place)), flattener_(document_, place_.lenient) {}

Result<uint32_t> SchemaCompiler::Rule(const Json& schema, const std::string& pointer, ValuePart part) {
  Json bare = WithoutAnnotations(schema);
  std::string key = Dump(bare);
  key.push_back(static_cast<char>('0' + static_cast<int>(part)));
  rule_bytes_ += key.size();
  if (rule_bytes_ > kMaxRuleBytes) return Error(SchemaError(pointer, "the schema becomes too large"));
  const auto [found, is_new] = rules_.try_emplace(std::move(key), 0);
  if (is_new) {
    found->second = parts_.builder.Split({});
    pending_.push_back({std::move(bare), pointer, part, found->second});
  }
  return found->second;
}

Status SchemaCompiler::Finish() {
  while (!pending_.empty()) {
    const PendingRule rule = std::move(pending_.front());
    pending_.pop_front();
    DSV4_ASSIGN_OR_RETURN_STATUS(Nodes options, place_.lenient
                                                    ? LenientOptions(rule.schema, rule.pointer, rule.part)
                                                    : Options(rule.schema, rule.pointer, rule.part));
    parts_.builder.SetOptions(rule.entry, std::move(options));
    if (const Status size = parts_.builder.CheckSize(); !size.ok())
      return size.WithContext(Where(rule.pointer));
  }
  return {};
}

Result<uint32_t> SchemaCompiler::Value(const Json& schema, const std::string& pointer, uint32_t next,
                                       ValuePart part) {
  DSV4_ASSIGN_OR_RETURN(const uint32_t rule, Rule(schema, pointer, part));
  return parts_.builder.Call(rule, next);
}

Result<Dfa> SchemaCompiler::CompileTerminal(const Regex& regex, const std::string& pointer) {
  return At(Dfa::Compile(regex, parts_.limits), pointer);
}

Result<Dfa> SchemaCompiler::Without(const Dfa& dfa, const std::string& text, const std::string& pointer) {
  const Regex any = Repeat(AnyByte(), 0, kUnbounded);
  DSV4_ASSIGN_OR_RETURN(const Dfa with, CompileTerminal(Concat({any, Literal(text), any}), pointer));
  return At(Dfa::Subtract(dfa, with, parts_.limits), pointer);
}

// As JSON, in a spelling that does not end the parameter it stands in.
std::string SchemaCompiler::Literally(const Json& value) const {
  std::string text = Dump(value);
  if (place_.closer.empty()) return text;
  for (size_t at = text.find(place_.closer); at != std::string::npos; at = text.find(place_.closer, at))
    text.replace(at, 1, "\\u003c");  // "<" is nowhere but in strings and names.
  return text;
}

Result<Json> SchemaCompiler::Flat(const Json& schema, const std::string& pointer) {
  return flattener_.Flatten(schema, pointer);
}

// What is understood of the schema; when that contradicts itself too, its type alone.
Result<SchemaCompiler::Nodes> SchemaCompiler::LenientOptions(const Json& schema, const std::string& pointer,
                                                             ValuePart part) {
  const Json known = Understood(schema);
  Result<Nodes> options = Options(known, pointer, part);
  if (options) return options;
  const Json* type = known.is_object() ? Find(known, "type") : nullptr;
  return Options(type == nullptr ? Json(true) : Json{{"type", *type}}, pointer, part);
}

Result<SchemaCompiler::Nodes> SchemaCompiler::Options(const Json& schema, const std::string& pointer,
                                                      ValuePart part) {
  if (schema == true) return OfTypes(Json::object(), pointer, part);
  if (schema == false) return Nodes();
  if (!schema.is_object()) return Error(SchemaError(pointer, "wanted an object or a boolean"));
  DSV4_TRY(CheckKeywords(schema, pointer));
  const auto one = [](const Result<uint32_t>& node) -> Result<Nodes> {
    if (!node) return Error(node.error());
    return Nodes{*node};
  };
  if (const Json* reference = Find(schema, "$ref"); reference != nullptr && !Constrains(schema, "$ref")) {
    DSV4_ASSIGN_OR_RETURN(const Json* target, flattener_.Resolve(reference->get<std::string>(), pointer));
    return one(Value(*target, reference->get<std::string>().substr(1), parts_.end(), part));
  }
  if (HasAny(schema, {"$ref", "allOf"})) {
    DSV4_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(schema, pointer));
    return one(Value(flat, pointer, parts_.end(), part));
  }
  if (HasAny(schema, {"anyOf", "oneOf"})) return OfBranches(schema, pointer, part);
  if (HasAny(schema, {"enum", "const"})) return OfValues(schema, pointer, part);
  return OfTypes(schema, pointer, part);
}

Result<SchemaCompiler::Nodes> SchemaCompiler::OfBranches(const Json& schema, const std::string& pointer,
                                                         ValuePart part) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<Branch> branches, Branches(schema, pointer));
  Nodes options;
  for (const Branch& branch : branches) {
    DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Value(branch.schema, branch.pointer, parts_.end(), part));
  }
  return options;
}

Result<std::vector<SchemaCompiler::Branch>> SchemaCompiler::Branches(const Json& schema,
                                                                     const std::string& pointer) {
  const char* keyword = schema.contains("anyOf") ? "anyOf" : "oneOf";
  if (HasAny(schema, {"anyOf"}) && HasAny(schema, {"oneOf"})) {
    return Error(SchemaError(pointer, "anyOf beside oneOf is not supported"));
  }
  Json rest = schema;
  rest.erase(keyword);
  const bool constrained = Constrains(rest, "");
  std::vector<Branch> branches;
  for (size_t i = 0; i < schema[keyword].size(); ++i) {
    const std::string at = Below(Below(pointer, keyword), i);
    Json branch = schema[keyword][i];
    if (constrained) {
      DSV4_ASSIGN_OR_RETURN(branch, flattener_.Flatten(branch, at));
      DSV4_ASSIGN_OR_RETURN(branch, flattener_.Merge(rest, branch, at));
    }
    branches.push_back({std::move(branch), at});
  }
  return branches;
}

// enum and const: each value spelled out, if the other keywords allow it.
Result<SchemaCompiler::Nodes> SchemaCompiler::OfValues(const Json& schema, const std::string& pointer,
                                                       ValuePart part) {
  Json rest = schema;
  rest.erase("enum");
  rest.erase("const");
  Json values = schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]});
  if (schema.contains("enum") && schema.contains("const")) {
    const bool listed = std::find(values.begin(), values.end(), schema["const"]) != values.end();
    values = listed ? Json::array({schema["const"]}) : Json::array();
  }
  std::vector<Regex> literals;
  for (const Json& value : values) {
    if (value.is_structured() && Constrains(rest, "type")) {
      return Error(SchemaError(
          pointer, "objects and arrays in enum or const beside other keywords are not supported"));
    }
    if (const Json* type = Find(rest, "type"); type != nullptr && !IsOfType(value, *type)) continue;
    if (part != ValuePart::kAll && value.is_string() != (part == ValuePart::kRawString)) continue;
    if (part == ValuePart::kRawString) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.find(place_.closer) == std::string::npos) literals.push_back(Tagged(Literal(text)));
    } else {
      literals.push_back(Literal(Literally(value)));
    }
  }
  DSV4_ASSIGN_OR_RETURN(Dfa dfa, CompileTerminal(Either(literals), pointer));
  Nodes options;
  if (!Constrains(rest, "type")) {
    DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Terminal(dfa));
    return options;
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<Dfa> scalars, Scalars(rest, pointer, part));
  for (const Dfa& scalar : scalars) {
    DSV4_ASSIGN_OR_RETURN(const Dfa both, At(Dfa::Intersect(dfa, scalar, parts_.limits), pointer));
    DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Terminal(both));
  }
  return options;
}

std::vector<std::string> SchemaCompiler::Types(const Json& schema) {
  std::vector<std::string> types;
  if (const Json* named = Find(schema, "type")) {
    for (const Json& type : named->is_array() ? *named : Json::array({*named}))
      types.push_back(type.get<std::string>());
    return types;
  }
  if (HasAny(schema, {"properties", "required", "additionalProperties"})) types.emplace_back("object");
  if (HasAny(schema, {"items", "prefixItems", "minItems", "maxItems"})) types.emplace_back("array");
  if (HasAny(schema, {"minLength", "maxLength", "pattern", "format"})) types.emplace_back("string");
  if (HasAny(schema, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}))
    types.emplace_back("number");
  if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
  return types;
}

Result<SchemaCompiler::Nodes> SchemaCompiler::OfTypes(const Json& schema, const std::string& pointer,
                                                      ValuePart part) {
  const std::string key = fmt::format("{}{}{}", static_cast<int>(part), place_.closer, Dump(schema));
  auto scalars = parts_.scalars.find(key);
  if (scalars == parts_.scalars.end()) {
    DSV4_ASSIGN_OR_RETURN(std::vector<Dfa> dfas, Scalars(schema, pointer, part));
    std::vector<uint32_t> ids;
    for (Dfa& dfa : dfas) ids.push_back(parts_.builder.AddDfa(std::move(dfa)));
    scalars = parts_.scalars.emplace(key, std::move(ids)).first;
  }
  Nodes options;
  for (const uint32_t dfa : scalars->second) options.push_back(parts_.builder.Terminal(dfa, parts_.end()));
  if (part == ValuePart::kRawString) return options;
  const bool any = !Constrains(schema, "");
  for (const std::string& type : Types(schema)) {
    if (type != "object" && type != "array") continue;
    if (any) {
      // All places that allow anything share the rules of any object and any array.
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Value(Json{{"type", type}}, pointer, parts_.end()));
    } else if (type == "object") {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Object(schema, pointer));
    } else {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Array(schema, pointer));
    }
  }
  return options;
}

Result<std::vector<Dfa>> SchemaCompiler::Scalars(const Json& schema, const std::string& pointer,
                                                 ValuePart part) {
  const std::vector<std::string> types = Types(schema);
  const auto has = [&](const char* type) {
    const bool is_string = type == std::string_view("string");
    if (part != ValuePart::kAll && is_string != (part == ValuePart::kRawString)) return false;
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  std::vector<Regex> words;
  std::vector<Dfa> out;
  if (has("null")) words.push_back(Literal("null"));
  if (has("boolean")) words.push_back(Either({Literal("true"), Literal("false")}));
  if (!words.empty()) {
    DSV4_ASSIGN_OR_RETURN(out.emplace_back(), CompileTerminal(Either(words), pointer));
  }
  if (has("number") || has("integer")) {
    DSV4_ASSIGN_OR_RETURN(out.emplace_back(), Number(schema, pointer, !has("number")));
  }
  if (has("string")) {
    const Spelling spelling = part == ValuePart::kRawString ? Spelling::kRaw : Spelling::kJson;
    DSV4_ASSIGN_OR_RETURN(out.emplace_back(), String(schema, pointer, spelling));
  }
  return out;
}

Result<Dfa> SchemaCompiler::Number(const Json& schema, const std::string& pointer, bool integer) {
  NumberBounds bounds = {.minimum = {}, .maximum = {}, .integer = integer};
  // Of two bounds on one side the tighter counts.
  const auto bound = [&](const char* inclusive, const char* exclusive, bool is_minimum,
                         std::optional<std::string>& text, bool& is_exclusive) {
    const Json* a = Find(schema, inclusive);
    const Json* b = Find(schema, exclusive);
    if (b != nullptr) {
      is_exclusive = a == nullptr || (is_minimum ? *b >= *a : *b <= *a);
    }
    if (a != nullptr || b != nullptr) text = Dump(is_exclusive ? *b : *a);
  };
  bound("minimum", "exclusiveMinimum", true, bounds.minimum, bounds.exclusive_minimum);
  bound("maximum", "exclusiveMaximum", false, bounds.maximum, bounds.exclusive_maximum);
  if (!bounds.minimum && !bounds.maximum)
    return CompileTerminal(integer ? AnyInteger() : AnyNumber(), pointer);
  return At(BoundedNumber(bounds, parts_.limits), pointer);
}

Result<Dfa> SchemaCompiler::String(const Json& schema, const std::string& pointer, Spelling spelling) {
  const Json* pattern = Find(schema, "pattern");
  const Json* format = Find(schema, "format");
  const int min = static_cast<int>(schema.value("minLength", 0));
  const int max = schema.value("maxLength", kUnbounded);
  if (max != kUnbounded && max < min) {
    return Error(SchemaError(pointer, fmt::format("maxLength {} below minLength {}", max, min)));
  }
  const bool raw = spelling == Spelling::kRaw;
  const auto enclosed = [&](Regex content) -> Result<Dfa> {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, CompileTerminal(raw ? Tagged(content) : Quoted(content), pointer));
    if (place_.closer.empty()) return dfa;
    return Without(dfa, place_.closer, pointer);
  };
  const bool sized = min > 0 || max != kUnbounded;
  if (pattern == nullptr && format == nullptr && !sized) {
    return enclosed(Repeat(raw ? SpelledChar(AllChars(), spelling) : AnyChar(), 0, kUnbounded));
  }
  std::vector<Dfa> parts;
  if (pattern != nullptr) {
    const Result<Regex> content = PatternContent(pattern->get<std::string>(), spelling);
    if (!content) return Error(SchemaError(Below(pointer, "pattern"), content.error().message()));
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), enclosed(*content));
  }
  if (format != nullptr) {
    const std::optional<Regex> content = FormatContent(format->get<std::string>());
    if (!content) {
      return Error(
          SchemaError(Below(pointer, "format"), fmt::format("\"{}\" is not supported; these are: {}",
                                                            format->get<std::string>(), SupportedFormats())));
    }
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), enclosed(*content));
  }
  if (sized) {
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), CountedString(min, max, pointer, spelling));
  }
  Dfa dfa = std::move(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    DSV4_ASSIGN_OR_RETURN(dfa, At(Dfa::Intersect(dfa, parts[i], parts_.limits), pointer));
  }
  return dfa;
}

Result<Dfa> SchemaCompiler::CountedString(int min, int max, const std::string& pointer, Spelling spelling) {
  DSV4_ASSIGN_OR_RETURN(const Dfa character, CompileTerminal(SpelledChar(AllChars(), spelling), pointer));
  DfaLimits& limits = parts_.limits;
  if (spelling == Spelling::kJson) {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, At(Dfa::EnclosedRepeat(character, '"', '"', min, max, limits), pointer));
    if (place_.closer.empty()) return dfa;
    return Without(dfa, Beginning(place_.closer), pointer);
  }
  // The "</" in front of the marker is counted too, and then asked for.
  const int more = 2;
  DSV4_ASSIGN_OR_RETURN(const Dfa dfa,
                        At(Dfa::EnclosedRepeat(character, '>', kCallMarkerByte, min + more,
                                               max == kUnbounded ? kUnbounded : max + more, limits),
                           pointer));
  DSV4_ASSIGN_OR_RETURN(const Dfa tagged, CompileTerminal(Tagged(Repeat(AnyByte(), 0, kUnbounded)), pointer));
  DSV4_ASSIGN_OR_RETURN(const Dfa both, At(Dfa::Intersect(dfa, tagged, limits), pointer));
  return Without(both, Beginning(place_.closer), pointer);
}

std::vector<SchemaCompiler::Member> SchemaCompiler::Members(const Json& schema, const std::string& pointer,
                                                            const Json& additional) {
  std::vector<Member> members;
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, value] : properties.items()) {
    members.push_back({name, value, Below(Below(pointer, "properties"), name), false});
  }
  for (const Json& required : schema.value("required", Json::array())) {
    const auto name = required.get<std::string>();
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.name == name; });
    if (found != members.end()) {
      found->required = true;
    } else {
      members.push_back({name, additional, Below(pointer, "additionalProperties"), true});
    }
  }
  return members;
}

// Members in order, each after a comma but the first:
//   open ( members from 0 | close if none is required )
//   members from i = ( member i, then after i + 1 | members from i + 1 if i may be left out )
//   after i        = ( comma, members from i | close if none from i on is required )
// and behind the last, others in a loop.
Result<uint32_t> SchemaCompiler::Object(const Json& schema, const std::string& pointer) {
  const Json additional = schema.value("additionalProperties", Json(true));
  const std::vector<Member> members = Members(schema, pointer, additional);
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("}", parts_.end()));
  // Built from the end.
  uint32_t from = parts_.builder.Split({});  // Members from here on.
  uint32_t after = 0;                        // After the member before.
  bool may_close = true;
  if (additional == false) {
    after = close;
  } else {
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", from));
    after = parts_.builder.Split({comma, close});
    DSV4_ASSIGN_OR_RETURN(const uint32_t value,
                          Value(additional, Below(pointer, "additionalProperties"), after));
    DSV4_ASSIGN_OR_RETURN(const uint32_t colon, parts_.Punctuation(":", value));
    DSV4_ASSIGN_OR_RETURN(const Dfa names, OtherNames(members, pointer));
    DSV4_ASSIGN_OR_RETURN(const uint32_t name, parts_.Terminal(names, colon));
    parts_.builder.SetOptions(from, {name});
  }
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(member->schema, member->pointer, after));
    const Regex key = Concat({Literal(Literally(member->name)), Literal(":"), Space()});
    DSV4_ASSIGN_OR_RETURN(const Dfa name, CompileTerminal(key, member->pointer));
    DSV4_ASSIGN_OR_RETURN(const uint32_t this_one, parts_.Terminal(name, value));
    from = member->required ? this_one : parts_.builder.Split({this_one, from});
    may_close = may_close && !member->required;
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", from));
    after = may_close ? parts_.builder.Split({comma, close}) : comma;
  }
  return parts_.Punctuation("{", may_close ? parts_.builder.Split({from, close}) : from);
}

Result<Dfa> SchemaCompiler::OtherNames(const std::vector<Member>& members, const std::string& pointer) {
  const Regex plain = SpelledChar(Complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  DSV4_ASSIGN_OR_RETURN(Dfa any, CompileTerminal(Quoted(Repeat(plain, 0, kUnbounded)), pointer));
  if (!place_.closer.empty()) {
    DSV4_ASSIGN_OR_RETURN(any, Without(any, place_.closer, pointer));
  }
  if (members.empty()) return any;
  std::vector<Regex> names;
  for (const Member& member : members) names.push_back(Literal(Dump(member.name)));
  DSV4_ASSIGN_OR_RETURN(const Dfa taken, CompileTerminal(Either(names), pointer));
  return At(Dfa::Subtract(any, taken, parts_.limits), pointer);
}

// Items one by one as far as they differ or are counted, then in a loop.
Result<uint32_t> SchemaCompiler::Array(const Json& schema, const std::string& pointer) {
  const Json prefix = schema.value("prefixItems", Json::array());
  const Json items = schema.value("items", Json(true));
  const auto min = schema.value("minItems", size_t{0});
  const Json* max = Find(schema, "maxItems");
  if (max != nullptr && *max < min) {
    return Error(SchemaError(pointer, fmt::format("maxItems {} below minItems {}", max->get<size_t>(), min)));
  }
  size_t unrolled = std::max(prefix.size(), min);
  if (max != nullptr) unrolled = max->get<size_t>();
  if (items == false && unrolled > prefix.size()) unrolled = std::max(prefix.size(), min);
  if (unrolled > kMaxUnrolledItems) {
    return Error(
        SchemaError(pointer, fmt::format("more than {} counted items are not supported", kMaxUnrolledItems)));
  }
  const bool open_ended = max == nullptr && items != false;
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("]", parts_.end()));
  const std::string items_pointer = Below(pointer, "items");
  uint32_t after = close;                    // After `i` items.
  uint32_t item = parts_.builder.Split({});  // Item `i`, if there is one, and what follows.
  if (open_ended) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", item));
    after = parts_.builder.Split({comma, close});
    DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(items, items_pointer, after));
    parts_.builder.SetOptions(item, {value});
  }
  for (size_t i = unrolled; i-- > 0;) {
    // Here `after` is what may follow item i.
    const bool in_prefix = i < prefix.size();
    DSV4_ASSIGN_OR_RETURN(item,
                          Value(in_prefix ? prefix[i] : items,
                                in_prefix ? Below(Below(pointer, "prefixItems"), i) : items_pointer, after));
    if (i == 0) break;
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", item));
    after = i >= min ? parts_.builder.Split({comma, close}) : comma;
  }
  return parts_.Punctuation("[", min == 0 ? parts_.builder.Split({item, close}) : item);
}

}  // namespace dsv4::grammar
