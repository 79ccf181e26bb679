#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/json_text.h"
#include "grammar/pattern.h"
#include "grammar/schema_keywords.h"

namespace dsv4::grammar {
namespace {

constexpr size_t kMaxSchemaBytes = size_t{256} << 10;
// Of the schemas that all rules are made from; what they share is counted again.
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

class Compiler {
 public:
  explicit Compiler(const Json& document) : document_(document), flattener_(document) {}

  Result<Program> Compile() {
    end_ = builder_.Return();
    DSV4_ASSIGN_OR_RETURN(const uint32_t start, Rule(document_, ""));
    while (!pending_.empty()) {
      const PendingRule rule = std::move(pending_.front());
      pending_.pop_front();
      Result<Nodes> options = Options(rule.schema, rule.pointer);
      if (!options) return Error(options.error());
      builder_.SetOptions(rule.entry, std::move(*options));
      if (const Status size = builder_.CheckSize(); !size.ok())
        return Error(size.WithContext(Where(rule.pointer)));
    }
    Result<Program> program = std::move(builder_).Build(start);
    if (!program) return Error(program.error().WithContext("json schema"));
    return program;
  }

 private:
  struct PendingRule {
    Json schema;
    std::string pointer;
    uint32_t entry;
  };
  using Nodes = std::vector<uint32_t>;

  static std::string Where(const std::string& pointer) {
    return fmt::format("json schema, {}", pointer.empty() ? "top level" : pointer);
  }

  // The entry of the schema's rule: a split whose options are filled in later. Equal schemas share one.
  Result<uint32_t> Rule(const Json& schema, const std::string& pointer) {
    std::string key = Dump(schema);
    rule_bytes_ += key.size();
    if (rule_bytes_ > kMaxRuleBytes) return Error(SchemaError(pointer, "the schema becomes too large"));
    const auto [found, is_new] = rules_.try_emplace(std::move(key), 0);
    if (is_new) {
      found->second = builder_.Split({});
      pending_.push_back({schema, pointer, found->second});
    }
    return found->second;
  }

  // A value of the schema, then `next`.
  Result<uint32_t> Value(const Json& schema, const std::string& pointer, uint32_t next) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t rule, Rule(schema, pointer));
    return builder_.Call(rule, next);
  }

  Result<uint32_t> Terminal(const Dfa& dfa, uint32_t next) {
    return builder_.Terminal(builder_.AddDfa(dfa), next);
  }
  Result<uint32_t> Terminal(const Regex& regex, const std::string& pointer, uint32_t next) {
    DSV4_ASSIGN_OR_RETURN(const Dfa dfa, CompileTerminal(regex, pointer));
    return Terminal(dfa, next);
  }
  // Brackets, commas and the like occur again and again.
  Result<uint32_t> Punctuation(const std::string& text, uint32_t next) {
    auto found = punctuation_.find(text);
    if (found == punctuation_.end()) {
      const bool closes = text == "]" || text == "}";
      const Regex regex = closes ? Concat({Space(), Literal(text)}) : Concat({Literal(text), Space()});
      DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(regex, limits_));
      found = punctuation_.emplace(text, builder_.AddDfa(std::move(dfa))).first;
    }
    return builder_.Terminal(found->second, next);
  }

  Result<Dfa> CompileTerminal(const Regex& regex, const std::string& pointer) {
    Result<Dfa> dfa = Dfa::Compile(regex, limits_);
    if (!dfa) return Error(dfa.error().WithContext(Where(pointer)));
    return dfa;
  }

  Result<Nodes> Options(const Json& schema, const std::string& pointer) {
    if (schema == true) return OfTypes(Json::object(), pointer);
    if (schema == false) return Nodes();
    if (!schema.is_object()) return Error(SchemaError(pointer, "wanted an object or a boolean"));
    DSV4_TRY(CheckKeywords(schema, pointer));
    if (const Json* reference = Find(schema, "$ref"); reference != nullptr && !Constrains(schema, "$ref")) {
      DSV4_ASSIGN_OR_RETURN(const Json* target, flattener_.Resolve(reference->get<std::string>(), pointer));
      return One(Value(*target, reference->get<std::string>().substr(1), end_));
    }
    if (HasAny(schema, {"$ref", "allOf"})) {
      DSV4_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(schema, pointer));
      return One(Value(flat, pointer, end_));
    }
    if (HasAny(schema, {"anyOf", "oneOf"})) return OfBranches(schema, pointer);
    if (HasAny(schema, {"enum", "const"})) return OfValues(schema, pointer);
    return OfTypes(schema, pointer);
  }

  static Result<Nodes> One(const Result<uint32_t>& node) {
    if (!node) return Error(node.error());
    return Nodes{*node};
  }

  Result<Nodes> OfBranches(const Json& schema, const std::string& pointer) {
    const char* keyword = schema.contains("anyOf") ? "anyOf" : "oneOf";
    if (HasAny(schema, {"anyOf"}) && HasAny(schema, {"oneOf"})) {
      return Error(SchemaError(pointer, "anyOf beside oneOf is not supported"));
    }
    Json rest = schema;
    rest.erase(keyword);
    const bool constrained = Constrains(rest, "");
    Nodes options;
    for (size_t i = 0; i < schema[keyword].size(); ++i) {
      const std::string at = Below(Below(pointer, keyword), i);
      Json branch = schema[keyword][i];
      if (constrained) {
        DSV4_ASSIGN_OR_RETURN(branch, flattener_.Flatten(branch, at));
        DSV4_ASSIGN_OR_RETURN(branch, flattener_.Merge(rest, branch, at));
      }
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Value(branch, at, end_));
    }
    return options;
  }

  // enum and const: each value spelled out, if the other keywords allow it.
  Result<Nodes> OfValues(const Json& schema, const std::string& pointer) {
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
      literals.push_back(Literal(Dump(value)));
    }
    DSV4_ASSIGN_OR_RETURN(Dfa dfa, CompileTerminal(Either(literals), pointer));
    Nodes options;
    if (!Constrains(rest, "type")) {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Terminal(dfa, end_));
      return options;
    }
    DSV4_ASSIGN_OR_RETURN(const std::vector<Dfa> scalars, Scalars(rest, pointer));
    for (const Dfa& scalar : scalars) {
      DSV4_ASSIGN_OR_RETURN(const Dfa both, Limited(Dfa::Intersect(dfa, scalar, limits_), pointer));
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Terminal(both, end_));
    }
    return options;
  }

  static bool IsOfType(const Json& value, const Json& types) {
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

  static Result<Dfa> Limited(Result<Dfa> dfa, const std::string& pointer) {
    if (!dfa) return Error(dfa.error().WithContext(Where(pointer)));
    return dfa;
  }

  // The types a schema allows: those it names, else those its keywords are about, else all.
  static std::vector<std::string> Types(const Json& schema) {
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

  Result<Nodes> OfTypes(const Json& schema, const std::string& pointer) {
    DSV4_ASSIGN_OR_RETURN(const std::vector<Dfa> scalars, Scalars(schema, pointer));
    Nodes options;
    for (const Dfa& dfa : scalars) {
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Terminal(dfa, end_));
    }
    const bool any = !Constrains(schema, "");
    for (const std::string& type : Types(schema)) {
      if (type != "object" && type != "array") continue;
      if (any) {
        // All places that allow anything share the rules of any object and any array.
        DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Value(Json{{"type", type}}, pointer, end_));
      } else if (type == "object") {
        DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Object(schema, pointer));
      } else {
        DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Array(schema, pointer));
      }
    }
    return options;
  }

  Result<std::vector<Dfa>> Scalars(const Json& schema, const std::string& pointer) {
    const std::vector<std::string> types = Types(schema);
    const auto has = [&](const char* type) {
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
      DSV4_ASSIGN_OR_RETURN(out.emplace_back(), String(schema, pointer));
    }
    return out;
  }

  Result<Dfa> Number(const Json& schema, const std::string& pointer, bool integer) {
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
    return Limited(BoundedNumber(bounds, limits_), pointer);
  }

  Result<Dfa> String(const Json& schema, const std::string& pointer) {
    const Json* pattern = Find(schema, "pattern");
    const Json* format = Find(schema, "format");
    const int min = static_cast<int>(schema.value("minLength", 0));
    const int max = schema.value("maxLength", kUnbounded);
    if (max != kUnbounded && max < min) {
      return Error(SchemaError(pointer, fmt::format("maxLength {} below minLength {}", max, min)));
    }
    const bool sized = min > 0 || max != kUnbounded;
    if (pattern == nullptr && format == nullptr && !sized) {
      return CompileTerminal(Quoted(Repeat(AnyChar(), 0, kUnbounded)), pointer);
    }
    std::vector<Dfa> parts;
    if (pattern != nullptr) {
      const Result<Regex> content = PatternContent(pattern->get<std::string>());
      if (!content) return Error(SchemaError(Below(pointer, "pattern"), content.error().message()));
      DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), CompileTerminal(Quoted(*content), pointer));
    }
    if (format != nullptr) {
      const std::optional<Regex> content = FormatContent(format->get<std::string>());
      if (!content) {
        return Error(SchemaError(Below(pointer, "format"),
                                 fmt::format("\"{}\" is not supported; these are: {}",
                                             format->get<std::string>(), SupportedFormats())));
      }
      DSV4_ASSIGN_OR_RETURN(parts.emplace_back(), CompileTerminal(Quoted(*content), pointer));
    }
    if (sized) {
      DSV4_ASSIGN_OR_RETURN(const Dfa character, CompileTerminal(SpelledChar(AllChars()), pointer));
      DSV4_ASSIGN_OR_RETURN(parts.emplace_back(),
                            Limited(Dfa::QuotedRepeat(character, '"', min, max, limits_), pointer));
    }
    Dfa dfa = std::move(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) {
      DSV4_ASSIGN_OR_RETURN(dfa, Limited(Dfa::Intersect(dfa, parts[i], limits_), pointer));
    }
    return dfa;
  }

  struct Member {
    std::string name;
    Json schema;
    std::string pointer;
    bool required;
  };

  static std::vector<Member> Members(const Json& schema, const std::string& pointer, const Json& additional) {
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
  Result<uint32_t> Object(const Json& schema, const std::string& pointer) {
    const Json additional = schema.value("additionalProperties", Json(true));
    const std::vector<Member> members = Members(schema, pointer, additional);
    DSV4_ASSIGN_OR_RETURN(const uint32_t close, Punctuation("}", end_));
    // Built from the end.
    uint32_t from = builder_.Split({});  // Members from here on.
    uint32_t after = 0;                  // After the member before.
    bool may_close = true;
    if (additional == false) {
      after = close;
    } else {
      DSV4_ASSIGN_OR_RETURN(const uint32_t comma, Punctuation(",", from));
      after = builder_.Split({comma, close});
      DSV4_ASSIGN_OR_RETURN(const uint32_t value,
                            Value(additional, Below(pointer, "additionalProperties"), after));
      DSV4_ASSIGN_OR_RETURN(const uint32_t colon, Punctuation(":", value));
      DSV4_ASSIGN_OR_RETURN(const Dfa names, OtherNames(members, pointer));
      DSV4_ASSIGN_OR_RETURN(const uint32_t name, Terminal(names, colon));
      builder_.SetOptions(from, {name});
    }
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(member->schema, member->pointer, after));
      const Regex key = Concat({Literal(Dump(member->name)), Literal(":"), Space()});
      DSV4_ASSIGN_OR_RETURN(const uint32_t this_one, Terminal(key, member->pointer, value));
      from = member->required ? this_one : builder_.Split({this_one, from});
      may_close = may_close && !member->required;
      DSV4_ASSIGN_OR_RETURN(const uint32_t comma, Punctuation(",", from));
      after = may_close ? builder_.Split({comma, close}) : comma;
    }
    return Punctuation("{", may_close ? builder_.Split({from, close}) : from);
  }

  Result<Dfa> OtherNames(const std::vector<Member>& members, const std::string& pointer) {
    const Regex plain = SpelledChar(Complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
    DSV4_ASSIGN_OR_RETURN(const Dfa any, CompileTerminal(Quoted(Repeat(plain, 0, kUnbounded)), pointer));
    if (members.empty()) return any;
    std::vector<Regex> names;
    for (const Member& member : members) names.push_back(Literal(Dump(member.name)));
    DSV4_ASSIGN_OR_RETURN(const Dfa taken, CompileTerminal(Either(names), pointer));
    return Limited(Dfa::Subtract(any, taken, limits_), pointer);
  }

  // Items one by one as far as they differ or are counted, then in a loop.
  Result<uint32_t> Array(const Json& schema, const std::string& pointer) {
    const Json prefix = schema.value("prefixItems", Json::array());
    const Json items = schema.value("items", Json(true));
    const auto min = schema.value("minItems", size_t{0});
    const Json* max = Find(schema, "maxItems");
    if (max != nullptr && *max < min) {
      return Error(
          SchemaError(pointer, fmt::format("maxItems {} below minItems {}", max->get<size_t>(), min)));
    }
    size_t unrolled = std::max(prefix.size(), min);
    if (max != nullptr) unrolled = max->get<size_t>();
    if (items == false && unrolled > prefix.size()) unrolled = std::max(prefix.size(), min);
    if (unrolled > kMaxUnrolledItems) {
      return Error(SchemaError(
          pointer, fmt::format("more than {} counted items are not supported", kMaxUnrolledItems)));
    }
    const bool open_ended = max == nullptr && items != false;
    DSV4_ASSIGN_OR_RETURN(const uint32_t close, Punctuation("]", end_));
    const std::string items_pointer = Below(pointer, "items");
    uint32_t after = close;              // After `i` items.
    uint32_t item = builder_.Split({});  // Item `i`, if there is one, and what follows.
    if (open_ended) {
      DSV4_ASSIGN_OR_RETURN(const uint32_t comma, Punctuation(",", item));
      after = builder_.Split({comma, close});
      DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(items, items_pointer, after));
      builder_.SetOptions(item, {value});
    }
    for (size_t i = unrolled; i-- > 0;) {
      // Here `after` is what may follow item i.
      const bool in_prefix = i < prefix.size();
      DSV4_ASSIGN_OR_RETURN(
          item, Value(in_prefix ? prefix[i] : items,
                      in_prefix ? Below(Below(pointer, "prefixItems"), i) : items_pointer, after));
      if (i == 0) break;
      DSV4_ASSIGN_OR_RETURN(const uint32_t comma, Punctuation(",", item));
      after = i >= min ? builder_.Split({comma, close}) : comma;
    }
    return Punctuation("[", min == 0 ? builder_.Split({item, close}) : item);
  }

  const Json& document_;
  SchemaFlattener flattener_;
  ProgramBuilder builder_;
  uint32_t end_ = 0;
  std::unordered_map<std::string, uint32_t> rules_;
  std::deque<PendingRule> pending_;
  size_t rule_bytes_ = 0;
  DfaLimits limits_;
  std::unordered_map<std::string, uint32_t> punctuation_;
};

}  // namespace

Result<std::shared_ptr<const Program>> CompileJsonSchema(std::string_view schema) {
  if (schema.size() > kMaxSchemaBytes) {
    return Error(InvalidArgument(
        fmt::format("json schema: {} bytes, at most {} are compiled", schema.size(), kMaxSchemaBytes)));
  }
  DSV4_ASSIGN_OR_RETURN(const Json document, ParseJson(schema, "json schema"));
  DSV4_ASSIGN_OR_RETURN(Program program, Compiler(document).Compile());
  return std::make_shared<const Program>(std::move(program));
}

Result<std::shared_ptr<const Program>> CompileJsonObject() {
  return CompileJsonSchema(R"({"type": "object"})");
}

}  // namespace dsv4::grammar
