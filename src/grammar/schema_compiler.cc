// Compiler of flattened schemas to program nodes: objects, arrays, strings, numbers, enumerations and
// references.
#include "grammar/schema_compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "grammar/pattern.h"
#include "grammar/regex_nodes.h"
#include "grammar/schema_rewrite.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {
namespace {

// Bytes of the schemas that all rules of a grammar are made from; parts that they share are counted again.
constexpr size_t kMaxRuleBytes = size_t{16} << 20;

// The value, not the keyword's position: where it is absent, nothing.
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

// Beginning that is kept out of counted strings for the whole of `closer`, which would multiply their states:
// "</" and one character.
std::string Beginning(const std::string& closer) {
  size_t end = std::min<size_t>(3, closer.size());
  while (end < closer.size() && (static_cast<uint8_t>(closer[end]) & 0xC0) == 0x80) ++end;
  return closer.substr(0, end);
}

// Bounds that a pattern keeps by itself ask for nothing.
bool KeepsLengths(const Regex& content, int min, int max) {
  const std::optional<Lengths> lengths = LengthsOf(*content);
  return lengths && lengths->min >= min &&
         (max == kUnbounded || (lengths->max != kUnbounded && lengths->max <= max));
}

std::string Bounds(int min, int max) {
  return fmt::format("minLength {} and maxLength {}", min,
                     max == kUnbounded ? "none" : fmt::format("{}", max));
}

}  // namespace

std::string OddCharacterOf(const std::string& closer) {
  return closer.empty() ? closer : Beginning(closer).substr(2);
}

// ---------------------------------------------------------------------------------------------------------------------
// GrammarParts

Result<Dfa> GrammarParts::Without(const Dfa& dfa, const std::string& text) {
  auto with = with_text_.find(text);
  if (with == with_text_.end()) {
    const Regex any = Repeat(AnyByte(), 0, kUnbounded);
    DSV4_ASSIGN_OR_RETURN(Dfa made, Dfa::Compile(Concat({any, Literal(text), any}), limits));
    with = with_text_.emplace(text, std::move(made)).first;
  }
  return Dfa::Subtract(dfa, with->second, limits);
}

Result<uint32_t> GrammarParts::Terminal(const Dfa& dfa, uint32_t next) {
  return builder.Terminal(builder.AddDfa(dfa), next);
}

Result<uint32_t> GrammarParts::TerminalWithout(Dfa dfa, const std::string& excluded, uint32_t next) {
  if (!excluded.empty()) {
    DSV4_ASSIGN_OR_RETURN(dfa, Without(dfa, excluded));
  }
  if (!dfa.IsEmpty() && dfa.IsAccepting(Dfa::kStart) && !dfa.GoesOn(Dfa::kStart)) return next;
  return Terminal(dfa, next);
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

SchemaCompiler::SchemaCompiler(GrammarParts& parts, const Json& document, ValueContext context)
    : parts_(parts),
      document_(document),
      context_(std::move(context)),
      flattener_(document_, parts_.limits, context_.lenient) {}

Result<uint32_t> SchemaCompiler::Rule(const Json& schema, const std::string& pointer, ValuePart part) {
  DSV4_TRY(Spend(schema, pointer, parts_.limits));
  Json bare = WithoutAnnotations(schema);
  std::string key = JsonText(bare);
  key.push_back(static_cast<char>('0' + static_cast<int>(part)));
  parts_.rule_bytes += key.size();
  if (parts_.rule_bytes > kMaxRuleBytes) return Error(SchemaError(pointer, "the schema becomes too large"));
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
    DSV4_ASSIGN_OR_RETURN_STATUS(Nodes options, context_.lenient
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

Result<Dfa> SchemaCompiler::At(Result<Dfa> dfa, const std::string& pointer) {
  if (!dfa) return Error(dfa.error().WithContext(Where(pointer)));
  return dfa;
}

Result<Dfa> SchemaCompiler::CompileTerminal(const Regex& regex, const std::string& pointer) {
  return At(Dfa::Compile(regex, parts_.limits), pointer);
}

Result<Dfa> SchemaCompiler::Without(const Dfa& dfa, const std::string& text, const std::string& pointer) {
  return At(parts_.Without(dfa, text), pointer);
}

// As JSON, in a spelling that does not end the parameter it stands in.
std::string SchemaCompiler::Literally(const Json& value) const {
  std::string text = JsonText(value);
  if (context_.closer.empty()) return text;
  for (size_t at = text.find(context_.closer); at != std::string::npos; at = text.find(context_.closer, at))
    text.replace(at, 1, "\\u003c");  // "<" is nowhere but in strings and names.
  return text;
}

Result<Json> SchemaCompiler::Flat(const Json& schema, const std::string& pointer) {
  return flattener_.Flatten(schema, pointer);
}

// Part that is understood of the schema; when that contradicts itself too, its type alone.
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
  DSV4_TRY(Spend(schema, pointer, parts_.limits));
  DSV4_TRY(CheckKeywords(schema, pointer));
  DSV4_ASSIGN_OR_RETURN(const Json rewritten, flattener_.Rewrite(schema, pointer));
  if (rewritten != schema) return Options(rewritten, pointer, part);
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
  // Beside anyOf, oneOf is part of the rest, and chosen from in each branch.
  const char* keyword = schema.contains("anyOf") ? "anyOf" : "oneOf";
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
  if (const Json* excluded = Find(rest, kNotValues)) {
    Json left = Json::array();
    for (const Json& value : values) {
      if (std::find(excluded->begin(), excluded->end(), value) == excluded->end()) left.push_back(value);
    }
    values = std::move(left);
    rest.erase(kNotValues);
  }
  std::vector<Regex> literals;
  for (const Json& value : values) {
    if (const Json* type = Find(rest, "type"); type != nullptr && !IsOfType(value, *type)) continue;
    if (value.is_structured() && Constrains(rest, "type")) {
      return Error(SchemaError(
          pointer, "objects and arrays in enum or const beside other keywords are not supported"));
    }
    if (part != ValuePart::kAll && value.is_string() != (part == ValuePart::kRawString)) continue;
    if (part == ValuePart::kRawString) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.find(context_.closer) == std::string::npos) literals.push_back(Tagged(Literal(text)));
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
  if (HasAny(schema, {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                      "minProperties", "maxProperties", "unevaluatedProperties"}))
    types.emplace_back("object");
  if (HasAny(schema,
             {"items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"}))
    types.emplace_back("array");
  if (HasAny(schema, {"minLength", "maxLength", "pattern", "format", kAlsoStrings, kNotPatterns}))
    types.emplace_back("string");
  if (HasAny(schema, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}))
    types.emplace_back("number");
  if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
  return types;
}

Result<SchemaCompiler::Nodes> SchemaCompiler::OfTypes(const Json& schema, const std::string& pointer,
                                                      ValuePart part) {
  const std::string key = fmt::format("{}{}{}", static_cast<int>(part), context_.closer, JsonText(schema));
  auto scalars = parts_.scalars.find(key);
  if (scalars == parts_.scalars.end()) {
    DSV4_ASSIGN_OR_RETURN(Nodes nodes, ScalarNodes(schema, pointer, part));
    scalars = parts_.scalars.emplace(key, std::move(nodes)).first;
  }
  Nodes options = scalars->second;
  if (part == ValuePart::kRawString) return options;
  const bool any = !Constrains(schema, "");
  for (const std::string& type : Types(schema)) {
    if (type != "object" && type != "array") continue;
    if (any) {
      // All positions that allow anything share the rules of any object and any array.
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Value(Json{{"type", type}}, pointer, parts_.end()));
    } else if (type == "object") {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Object(schema, pointer));
    } else {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Array(schema, pointer));
    }
  }
  return options;
}

Result<SchemaCompiler::Nodes> SchemaCompiler::ScalarNodes(const Json& schema, const std::string& pointer,
                                                          ValuePart part) {
  const std::optional<Regex> counted = CountedPattern(schema, part);
  std::optional<TrialLimits> trial;
  if (counted) trial.emplace(parts_.limits);
  Result<std::vector<Dfa>> dfas = Scalars(schema, pointer, part);
  trial.reset();
  Nodes nodes;
  if (!dfas && counted) {
    Result<uint32_t> node = RegexNodes(parts_, *counted, OddCharacterOf(context_.closer), parts_.end());
    if (!node) return Error(SchemaError(pointer, node.error().message()));
    nodes.push_back(*node);
    dfas = part == ValuePart::kRawString ? std::vector<Dfa>()
                                         : Scalars(schema, pointer, ValuePart::kAllButString);
  }
  if (!dfas) return Error(dfas.error());
  for (const Dfa& dfa : *dfas) {
    DSV4_ASSIGN_OR_RETURN(nodes.emplace_back(), Terminal(dfa));
  }
  return nodes;
}

// Strings of which a pattern says all, and one with a large count, as they stand in a text.
std::optional<Regex> SchemaCompiler::CountedPattern(const Json& schema, ValuePart part) {
  const Json* const pattern = Find(schema, "pattern");
  const std::vector<std::string> types = Types(schema);
  if (pattern == nullptr || part == ValuePart::kAllButString ||
      std::find(types.begin(), types.end(), "string") == types.end() ||
      HasAny(schema, {"format", kAlsoStrings, kNotPatterns, kNotValues}))
    return std::nullopt;
  const bool raw = part == ValuePart::kRawString;
  const Result<Regex> content =
      PatternContent(pattern->get<std::string>(), raw ? Spelling::kRaw : Spelling::kJson);
  if (!content || !HasLargeCount(**content)) return std::nullopt;
  const auto min = static_cast<int>(CountOf(schema, "minLength").value_or(0));
  const std::optional<size_t> most = CountOf(schema, "maxLength");
  if ((min > 0 || most) && !KeepsLengths(*content, min, most ? static_cast<int>(*most) : kUnbounded))
    return std::nullopt;
  return raw ? Tagged(*content) : Quoted(*content);
}

Result<std::vector<Dfa>> SchemaCompiler::Scalars(const Json& schema, const std::string& pointer,
                                                 ValuePart part) {
  const std::vector<std::string> types = Types(schema);
  const auto has = [&](const char* type) {
    const bool is_string = type == std::string_view("string");
    if (part != ValuePart::kAll && is_string != (part == ValuePart::kRawString)) return false;
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  const Json* excluded = Find(schema, kNotValues);
  const auto allows = [&](const Json& value) {
    return excluded == nullptr || std::find(excluded->begin(), excluded->end(), value) == excluded->end();
  };
  std::vector<Regex> words;
  std::vector<Dfa> out;
  if (has("null") && allows(nullptr)) words.push_back(Literal("null"));
  for (const bool value : {true, false}) {
    if (has("boolean") && allows(value)) words.push_back(Literal(value ? "true" : "false"));
  }
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
  // Tighter of two bounds on one side counts.
  const auto bound = [&](const char* inclusive, const char* exclusive, bool is_minimum,
                         std::optional<std::string>& text, bool& is_exclusive) {
    const Json* a = Find(schema, inclusive);
    const Json* b = Find(schema, exclusive);
    if (b != nullptr) {
      is_exclusive = a == nullptr || (is_minimum ? *b >= *a : *b <= *a);
    }
    if (a != nullptr || b != nullptr) text = JsonText(is_exclusive ? *b : *a);
  };
  bound("minimum", "exclusiveMinimum", true, bounds.minimum, bounds.exclusive_minimum);
  bound("maximum", "exclusiveMaximum", false, bounds.maximum, bounds.exclusive_maximum);
  const Json* multiple = Find(schema, "multipleOf");
  std::vector<Regex> excluded;
  if (const Json* values = Find(schema, kNotValues)) {
    for (const Json& value : *values) {
      if (value.is_number()) excluded.push_back(NumberValue(JsonText(value), integer));
    }
  }
  if (!bounds.minimum && !bounds.maximum && multiple == nullptr && excluded.empty())
    return CompileTerminal(integer ? AnyInteger() : AnyNumber(), pointer);
  DSV4_ASSIGN_OR_RETURN(Dfa numbers, At(BoundedNumber(bounds, parts_.limits), pointer));
  if (multiple != nullptr) {
    DSV4_ASSIGN_OR_RETURN(const Dfa multiples,
                          At(Multiples(JsonText(*multiple), parts_.limits), Below(pointer, "multipleOf")));
    DSV4_ASSIGN_OR_RETURN(numbers, At(Dfa::Intersect(numbers, multiples, parts_.limits), pointer));
  }
  if (!excluded.empty()) {
    DSV4_ASSIGN_OR_RETURN(const Dfa others, CompileTerminal(Either(std::move(excluded)), pointer));
    DSV4_ASSIGN_OR_RETURN(numbers, At(Dfa::Subtract(numbers, others, parts_.limits), pointer));
  }
  return numbers;
}

Result<Dfa> SchemaCompiler::String(const Json& schema, const std::string& pointer, Spelling spelling) {
  const Json* pattern = Find(schema, "pattern");
  const Json* format = Find(schema, "format");
  int min = static_cast<int>(CountOf(schema, "minLength").value_or(0));
  const std::optional<size_t> most = CountOf(schema, "maxLength");
  int max = most ? static_cast<int>(*most) : kUnbounded;
  if (max != kUnbounded && max < min) {
    return Error(SchemaError(pointer, fmt::format("maxLength {} below minLength {}", max, min)));
  }
  const bool raw = spelling == Spelling::kRaw;
  const auto enclosed = [&](Regex content) -> Result<Dfa> {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, CompileTerminal(raw ? Tagged(content) : Quoted(content), pointer));
    if (context_.closer.empty()) return dfa;
    return Without(dfa, context_.closer, pointer);
  };
  std::vector<Regex> excluded;  // Contents.
  if (const Json* values = Find(schema, kNotValues)) {
    for (const Json& value : *values) {
      if (value.is_string()) excluded.push_back(SpelledText(value.get<std::string>(), spelling));
    }
  }
  const auto pattern_content = [&](const std::string& text) -> Result<Regex> {
    Result<Regex> content = PatternContent(text, spelling);
    if (!content) return Error(SchemaError(Below(pointer, "pattern"), content.error().message()));
    return content;
  };
  const auto format_content = [&](const std::string& name) -> Result<Regex> {
    std::optional<Regex> content = FormatContent(name, spelling);
    if (!content && !context_.strict_formats) content = FormatContent("binary", spelling);
    if (content) return *content;
    return Error(SchemaError(Below(pointer, "format"), fmt::format("\"{}\" is not supported; these are: {}",
                                                                   name, SupportedFormats())));
  };
  std::vector<Regex> contents;
  if (pattern != nullptr) {
    DSV4_ASSIGN_OR_RETURN(contents.emplace_back(), pattern_content(pattern->get<std::string>()));
  }
  if (format != nullptr) {
    DSV4_ASSIGN_OR_RETURN(contents.emplace_back(), format_content(format->get<std::string>()));
  }
  if (const Json* also = Find(schema, kAlsoStrings)) {
    for (const Json& one : *also) {
      if (const Json* text = Find(one, "pattern"); text != nullptr && text->is_string()) {
        DSV4_ASSIGN_OR_RETURN(contents.emplace_back(), pattern_content(text->get<std::string>()));
      } else if (const Json* name = Find(one, "format"); name != nullptr && name->is_string()) {
        DSV4_ASSIGN_OR_RETURN(contents.emplace_back(), format_content(name->get<std::string>()));
      }
    }
  }
  if (const Json* patterns = Find(schema, kNotPatterns)) {
    for (const Json& text : *patterns) {
      DSV4_ASSIGN_OR_RETURN(excluded.emplace_back(), pattern_content(text.get<std::string>()));
    }
  }
  const std::string bounds = Bounds(min, max);
  // Beside bounds that it does not keep, a pattern's own large count is one of them.
  const auto keeps = [&](const Regex& content) { return KeepsLengths(content, min, max); };
  if (std::any_of(contents.begin(), contents.end(), keeps)) {
    min = 0;
    max = kUnbounded;
  }
  const auto is_sized = [&] { return min > 0 || max != kUnbounded; };
  // A raw string ends with a character that may be one of its own: a count would be states. The length has it instead.
  constexpr int kManyInCalls = 16;
  for (Regex& content : contents) {
    if (!is_sized() && !raw) break;
    const std::optional<SizedText> counted =
        AsSizedText(SequenceOf(content), raw ? kManyInCalls : kLargeCount);
    if (!counted) continue;
    content = counted->endless;
    min = std::max(min, counted->lengths.min);
    if (counted->lengths.max != kUnbounded)
      max = max == kUnbounded ? counted->lengths.max : std::min(max, counted->lengths.max);
  }
  const bool sized = is_sized();
  if (max != kUnbounded && max < min) return Dfa();
  if (contents.empty() && excluded.empty() && !sized) {
    return enclosed(Repeat(raw ? SpelledChar(AllChars(), spelling) : AnyChar(), 0, kUnbounded));
  }
  std::vector<Dfa> parts;
  for (const Regex& content : contents) {
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), enclosed(content));
  }
  if (sized) {
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), CountedString(min, max, pointer, spelling));
  }
  if (parts.empty()) {  // Each character in one spelling, which what is left out has too.
    DSV4_ASSIGN_OR_RETURN(parts.emplace_back(),
                          enclosed(Repeat(SpelledChar(AllChars(), spelling), 0, kUnbounded)));
  }
  Dfa dfa = std::move(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    Result<Dfa> both = Dfa::Intersect(dfa, parts[i], parts_.limits);
    if (!both && sized) {
      return Error(SchemaError(
          pointer, fmt::format("{} beside pattern or format: {}", bounds, both.error().message())));
    }
    DSV4_ASSIGN_OR_RETURN(dfa, At(std::move(both), pointer));
  }
  if (!excluded.empty()) {
    const Regex any_of = Either(std::move(excluded));
    DSV4_ASSIGN_OR_RETURN(const Dfa others, CompileTerminal(raw ? Tagged(any_of) : Quoted(any_of), pointer));
    DSV4_ASSIGN_OR_RETURN(dfa, At(Dfa::Subtract(dfa, others, parts_.limits), pointer));
  }
  return dfa;
}

Result<Dfa> SchemaCompiler::CountedString(int min, int max, const std::string& pointer, Spelling spelling) {
  DSV4_ASSIGN_OR_RETURN(const Dfa character, CompileTerminal(SpelledChar(AllChars(), spelling), pointer));
  DfaLimits& limits = parts_.limits;
  const auto counted = [&](uint8_t open, uint8_t close, int least, int most) -> Result<Dfa> {
    DSV4_ASSIGN_OR_RETURN(const Dfa before, CompileTerminal(ByteRange(open, open), pointer));
    DSV4_ASSIGN_OR_RETURN(const Dfa behind, CompileTerminal(ByteRange(close, close), pointer));
    std::optional<Result<Dfa>> dfa = Dfa::Counted(before, character, behind, least, most, limits);
    if (!dfa) return Error(Internal("a character may begin as its string ends"));
    if (*dfa) return std::move(**dfa);
    return Error(SchemaError(pointer, fmt::format("{}: {}", Bounds(min, max), dfa->error().message())));
  };
  if (spelling == Spelling::kJson) {
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, counted('"', '"', min, max));
    if (context_.closer.empty()) return dfa;
    return Without(dfa, Beginning(context_.closer), pointer);
  }
  // The "</" in front of the marker is counted too, and then asked for.
  const int more = 2;
  DSV4_ASSIGN_OR_RETURN(
      const Dfa dfa, counted('>', kCallMarkerByte, min + more, max == kUnbounded ? kUnbounded : max + more));
  DSV4_ASSIGN_OR_RETURN(const Dfa tagged, CompileTerminal(Tagged(Repeat(AnyByte(), 0, kUnbounded)), pointer));
  DSV4_ASSIGN_OR_RETURN(const Dfa both, At(Dfa::Intersect(dfa, tagged, limits), pointer));
  return Without(both, Beginning(context_.closer), pointer);
}

}  // namespace dsv4::grammar
