// Objects and arrays of a schema: their members and items one by one, as far as these differ or are counted,
// then in a loop.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/pattern.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_rewrite.h"

namespace dsv4::grammar {
namespace {

constexpr size_t kMaxUnrolled = 10'000;  // Items or members, times what is counted beside them.

// The rest of a count.
uint32_t Left(size_t count, size_t taken) { return static_cast<uint32_t>(count > taken ? count - taken : 0); }
constexpr size_t kMaxUniqueValues = 8;

const Json* Find(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

bool Accepts(const Dfa& dfa, std::string_view text) {
  uint32_t state = dfa.IsEmpty() ? Dfa::kDead : Dfa::kStart;
  for (size_t i = 0; i < text.size() && state != Dfa::kDead; ++i)
    state = dfa.Next(state, static_cast<uint8_t>(text[i]));
  return state != Dfa::kDead && dfa.IsAccepting(state);
}

// Values of which a list of different ones can be made; empty where that is not a short list.
std::vector<Json> FewValues(const Json& schema) {
  std::vector<Json> values;
  if (!schema.is_object()) return values;
  for (const auto& [name, value] : schema.items()) {
    if (name != "enum" && name != "const" && name != "type") return values;
  }
  if (const Json* only = Find(schema, "const")) {
    values = {*only};
  } else if (const Json* listed = Find(schema, "enum")) {
    for (const Json& value : *listed) {
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
  } else if (schema.value("type", Json()) == "boolean") {
    values = {true, false};
  }
  if (values.size() > kMaxUniqueValues) values.clear();
  return values;
}

}  // namespace

// An object that lists its members has no others, unless it says that it may.
Json SchemaCompiler::Additional(const Json& schema) {
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (const Json* additional = Find(schema, keyword)) return *additional;
  }
  const Json* properties = Find(schema, "properties");
  const bool lists = properties != nullptr && std::any_of(properties->begin(), properties->end(),
                                                          [](const Json& one) { return one != false; });
  const Json* patterns = Find(schema, "patternProperties");
  return !lists && (patterns == nullptr || patterns->empty());
}

std::vector<SchemaCompiler::Member> SchemaCompiler::Members(const Json& schema, const std::string& pointer,
                                                            const Json& additional) {
  std::vector<Member> members;
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, value] : properties.items()) {
    members.push_back({name, value, Below(Below(pointer, "properties"), name), false});
  }
  const bool says_so = schema.contains("additionalProperties") || schema.contains("unevaluatedProperties");
  for (const Json& required : schema.value("required", Json::array())) {
    const auto name = required.get<std::string>();
    const auto found =
        std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.name == name; });
    if (found != members.end()) {
      found->required = true;
    } else {
      // Asked for by its name: closed by default does not mean it.
      members.push_back(
          {name, says_so ? additional : Json(true), Below(pointer, "additionalProperties"), true});
    }
  }
  return members;
}

Result<std::vector<SchemaCompiler::OtherMembers>> SchemaCompiler::Others(const Json& schema,
                                                                         const std::string& pointer,
                                                                         const Json& additional,
                                                                         std::vector<Member>& members) {
  const Json patterns = schema.value("patternProperties", Json::object());
  std::vector<OtherMembers> others;
  const bool any_others = additional != false || !patterns.empty();
  const Json* names_schema = Find(schema, "propertyNames");
  if (!any_others && names_schema == nullptr) return others;
  DSV4_ASSIGN_OR_RETURN(Dfa names, OtherNames(members, pointer));
  if (names_schema != nullptr) {
    const std::string at = Below(pointer, "propertyNames");
    DSV4_ASSIGN_OR_RETURN(Json flat, flattener_.Flatten(*names_schema, at));
    if (flat.is_boolean()) flat = flat == true ? Json::object() : Json{{"enum", Json::array({nullptr})}};
    flat["type"] = "string";
    std::vector<Regex> listed;
    for (const Json& value : flat.contains("enum")    ? flat["enum"]
                             : flat.contains("const") ? Json::array({flat["const"]})
                                                      : Json::array()) {
      if (value.is_string()) listed.push_back(Quoted(SpelledText(value.get<std::string>(), Spelling::kJson)));
    }
    const bool lists = flat.contains("enum") || flat.contains("const");
    DSV4_ASSIGN_OR_RETURN(const Dfa allowed, lists ? CompileTerminal(Either(std::move(listed)), at)
                                                   : String(flat, at, Spelling::kJson));
    for (Member& member : members) {
      if (!Accepts(allowed, "\"" + SpelledName(member.name) + "\"")) member.schema = false;
    }
    DSV4_ASSIGN_OR_RETURN(names, At(Dfa::Intersect(names, allowed, parts_.limits), at));
  }
  std::vector<Dfa> matching;
  for (const auto& [pattern, part] : patterns.items()) {
    const std::string at = Below(Below(pointer, "patternProperties"), pattern);
    const Result<Regex> content = PatternContent(pattern);
    if (!content) return Error(SchemaError(at, content.error().message()));
    DSV4_ASSIGN_OR_RETURN(matching.emplace_back(), CompileTerminal(Quoted(*content), at));
    for (Member& member : members) {
      if (!Accepts(matching.back(), "\"" + SpelledName(member.name) + "\"")) continue;
      const bool unlisted = member.pointer == Below(pointer, "additionalProperties");
      member.schema = unlisted ? part : Json{{"allOf", Json::array({member.schema, part})}};
      member.pointer = at;
    }
  }
  // A name that several patterns have is not written: its value would have to satisfy all their schemas.
  size_t index = 0;
  for (const auto& [pattern, part] : patterns.items()) {
    DSV4_ASSIGN_OR_RETURN(Dfa own, At(Dfa::Intersect(names, matching[index], parts_.limits), pointer));
    for (size_t i = 0; i < matching.size(); ++i) {
      if (i == index) continue;
      DSV4_ASSIGN_OR_RETURN(own, At(Dfa::Subtract(own, matching[i], parts_.limits), pointer));
    }
    others.push_back({std::move(own), part, Below(Below(pointer, "patternProperties"), pattern)});
    ++index;
  }
  if (additional != false) {
    for (const Dfa& match : matching) {
      DSV4_ASSIGN_OR_RETURN(names, At(Dfa::Subtract(names, match, parts_.limits), pointer));
    }
    others.push_back({std::move(names), additional, Below(pointer, "additionalProperties")});
  }
  return others;
}

// Members in order, each after a comma but the first; `count` of them so far, as far as minProperties and
// maxProperties count:
//   open ( from 0, 0 | close if none is required )
//   from i, count   = ( member i, then after i + 1, count + 1 | from i + 1, count if i may be left out )
//   after i, count  = ( comma, from i, count | close if none from i on is required and there are enough )
// and behind the last, others in a loop.
Result<uint32_t> SchemaCompiler::Object(const Json& schema, const std::string& pointer) {
  const Json additional = Additional(schema);
  std::vector<Member> members = Members(schema, pointer, additional);
  DSV4_ASSIGN_OR_RETURN(const std::vector<OtherMembers> others, Others(schema, pointer, additional, members));
  size_t min = CountOf(schema, "minProperties").value_or(0);
  std::optional<size_t> max = CountOf(schema, "maxProperties");
  if (max && *max < min)
    return Error(SchemaError(pointer, fmt::format("maxProperties {} below minProperties {}", *max, min)));
  // Bounds that the members keep by themselves.
  const auto num_required = static_cast<size_t>(
      std::ranges::count_if(members, [](const Member& member) { return member.required; }));
  if (min <= num_required) min = 0;
  if (others.empty() && max && *max >= members.size()) max.reset();
  const size_t last_count = max.value_or(min);
  // Many others are counted behind the members; of these, in front of them, there are only so many.
  const bool counted = !others.empty() && last_count >= static_cast<size_t>(kLargeCount);
  const size_t num_counts = (counted ? std::min(last_count, members.size()) : last_count) + 1;
  if (num_counts > kMaxUnrolled || num_counts * (members.size() + 1) > kMaxUnrolled) {
    return Error(
        SchemaError(pointer, fmt::format("minProperties and maxProperties: more than {} counted members are "
                                         "not supported",
                                         kMaxUnrolled)));
  }
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("}", parts_.end()));
  const uint32_t dead = parts_.builder.Split({});
  const auto after_one = [&](size_t count) { return max ? count + 1 : std::min(count + 1, last_count); };
  // By count: from the member that is being added on, and after the one before it.
  std::vector<uint32_t> from(num_counts);
  std::vector<uint32_t> after(num_counts);
  std::vector<Dfa> names;
  for (uint32_t& node : from) node = parts_.builder.Split({});
  for (size_t count = 0; count < num_counts; ++count) {
    std::vector<uint32_t> ways;
    if (!others.empty()) {
      DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), parts_.Punctuation(",", from[count]));
    }
    if (count >= min) ways.push_back(close);
    after[count] = ways.size() == 1 ? ways[0] : parts_.builder.Split(std::move(ways));
  }
  const auto one_other = [&](uint32_t next) -> Result<uint32_t> {
    std::vector<uint32_t> ways;
    for (const OtherMembers& other : others) {
      DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(other.schema, other.pointer, next));
      DSV4_ASSIGN_OR_RETURN(const uint32_t colon, parts_.Punctuation(":", value));
      DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), parts_.Terminal(other.names, colon));
    }
    return parts_.builder.Split(std::move(ways));
  };
  uint32_t other_one = 0;
  uint32_t turn = 0;
  if (counted) {
    DSV4_ASSIGN_OR_RETURN(other_one, one_other(parts_.end()));
    DSV4_ASSIGN_OR_RETURN(turn, parts_.Punctuation(",", other_one));
  }
  for (size_t count = 0; count < num_counts && !others.empty(); ++count) {
    if (max && count + 1 > *max) continue;
    uint32_t way = 0;
    if (counted) {
      const uint32_t most = max ? Left(*max, count + 1) : Node::kEndless;
      way = parts_.builder.Call(other_one, parts_.builder.Repeat(turn, Left(min, count + 1), most, close));
    } else {
      DSV4_ASSIGN_OR_RETURN(way, one_other(after[after_one(count)]));
    }
    parts_.builder.SetOptions(from[count], {way});
  }
  bool may_close = true;
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    const Regex key = Concat({Literal(Literally(member->name)), Literal(":"), Space()});
    DSV4_ASSIGN_OR_RETURN(const Dfa name, CompileTerminal(key, member->pointer));
    may_close = may_close && !member->required;
    std::vector<uint32_t> next_from(num_counts);
    std::vector<uint32_t> next_after(num_counts);
    for (size_t count = 0; count < num_counts; ++count) {
      uint32_t this_one = dead;
      if (after_one(count) < num_counts) {
        DSV4_ASSIGN_OR_RETURN(const uint32_t value,
                              Value(member->schema, member->pointer, after[after_one(count)]));
        DSV4_ASSIGN_OR_RETURN(this_one, parts_.Terminal(name, value));
      }
      next_from[count] = member->required ? this_one : parts_.builder.Split({this_one, from[count]});
      DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", next_from[count]));
      next_after[count] = may_close && count >= min ? parts_.builder.Split({comma, close}) : comma;
    }
    from = std::move(next_from);
    after = std::move(next_after);
  }
  return parts_.Punctuation("{", may_close && min == 0 ? parts_.builder.Split({from[0], close}) : from[0]);
}

std::string SchemaCompiler::SpelledName(const std::string& name) {
  const std::string quoted = JsonText(name);
  return quoted.substr(1, quoted.size() - 2);
}

Result<Dfa> SchemaCompiler::OtherNames(const std::vector<Member>& members, const std::string& pointer) {
  const Regex plain = SpelledChar(Complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  DSV4_ASSIGN_OR_RETURN(Dfa any, CompileTerminal(Quoted(Repeat(plain, 0, kUnbounded)), pointer));
  if (!context_.closer.empty()) {
    DSV4_ASSIGN_OR_RETURN(any, Without(any, context_.closer, pointer));
  }
  if (members.empty()) return any;
  std::vector<Regex> names;
  for (const Member& member : members) names.push_back(Literal(JsonText(member.name)));
  DSV4_ASSIGN_OR_RETURN(const Dfa taken, CompileTerminal(Either(names), pointer));
  return At(Dfa::Subtract(any, taken, parts_.limits), pointer);
}

// Items one by one as far as they differ or are counted, then in a loop.
Result<uint32_t> SchemaCompiler::Array(const Json& schema, const std::string& pointer) {
  const Json prefix = schema.value("prefixItems", Json::array());
  const Json items =
      schema.contains("items") ? schema["items"] : schema.value("unevaluatedItems", Json(true));
  const size_t min = CountOf(schema, "minItems").value_or(0);
  const std::optional<size_t> max = CountOf(schema, "maxItems");
  if (max && *max < min)
    return Error(SchemaError(pointer, fmt::format("maxItems {} below minItems {}", *max, min)));
  if (schema.contains("contains")) return Containing(schema, pointer, items, min, max);
  if (prefix.empty() && schema.value("uniqueItems", false)) {
    DSV4_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(items, Below(pointer, "items")));
    if (const std::vector<Json> values = FewValues(flat); !values.empty())
      return DifferentItems(values, min, max.value_or(values.size()));
  }
  size_t unrolled = std::max(prefix.size(), min);
  if (max) unrolled = *max;
  if (items == false && unrolled > prefix.size()) unrolled = std::max(prefix.size(), min);
  if (items == false && min > prefix.size()) return parts_.builder.Split({});
  // Many alike are counted; the first is no turn of that, since it has no comma in front.
  const bool counted =
      items != false && unrolled > prefix.size() && unrolled >= static_cast<size_t>(kLargeCount);
  if (counted) unrolled = std::max(prefix.size(), size_t{1});
  const bool open_ended = !max && items != false && !counted;
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("]", parts_.end()));
  const std::string items_pointer = Below(pointer, "items");
  uint32_t after = close;                    // After `i` items.
  uint32_t item = parts_.builder.Split({});  // Item `i`, if there is one, and what follows.
  if (counted) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(items, items_pointer, parts_.end()));
    DSV4_ASSIGN_OR_RETURN(const uint32_t turn, parts_.Punctuation(",", value));
    after =
        parts_.builder.Repeat(turn, Left(min, unrolled), max ? Left(*max, unrolled) : Node::kEndless, close);
  }
  if (open_ended) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", item));
    after = parts_.builder.Split({comma, close});
    DSV4_ASSIGN_OR_RETURN(const uint32_t value, Value(items, items_pointer, after));
    parts_.builder.SetOptions(item, {value});
  }
  for (size_t i = unrolled; i-- > 0;) {
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

// Some items, from minContains to maxContains, satisfy another schema too. States: items so far, and such items
// so far, as far as they count.
Result<uint32_t> SchemaCompiler::Containing(const Json& schema, const std::string& pointer, const Json& items,
                                            size_t min, std::optional<size_t> max) {
  const Json prefix = schema.value("prefixItems", Json::array());
  const size_t wanted = CountOf(schema, "minContains").value_or(1);
  const std::optional<size_t> most = CountOf(schema, "maxContains");
  if (most && *most < wanted)
    return Error(SchemaError(pointer, fmt::format("maxContains {} below minContains {}", *most, wanted)));
  if (items == false) max = std::min(max.value_or(prefix.size()), prefix.size());
  if (max && *max < std::max(min, wanted)) return parts_.builder.Split({});
  const size_t last = max.value_or(std::max({min, wanted, prefix.size()}));
  const size_t counted = most.value_or(wanted);
  if (last >= kMaxUnrolled || (last + 1) * (counted + 1) > kMaxUnrolled) {
    if (prefix.empty()) return ContainingFirst(schema, pointer, items, min, max);
    return Error(SchemaError(
        Below(pointer, "contains"),
        fmt::format("beside prefixItems more than {} counted items are not supported", kMaxUnrolled)));
  }
  const std::string at = Below(pointer, "contains");
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("]", parts_.end()));
  std::map<std::pair<size_t, size_t>, uint32_t> item;  // The next item, in front of it.
  for (size_t i = 0; i <= last; ++i) {
    for (size_t found = 0; found <= counted; ++found) item[{i, found}] = parts_.builder.Split({});
  }
  const auto after = [&](size_t i, size_t found) -> Result<uint32_t> {
    std::vector<uint32_t> ways;
    if (!max || i < last) {
      DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), parts_.Punctuation(",", item[{i, found}]));
    }
    if (i >= min && found >= wanted) ways.push_back(close);
    return parts_.builder.Split(std::move(ways));
  };
  for (size_t i = 0; i <= last; ++i) {
    if (max && i == last) break;
    const bool in_prefix = i < prefix.size();
    const Json& own = in_prefix ? prefix[i] : items;
    const std::string own_at = in_prefix ? Below(Below(pointer, "prefixItems"), i) : Below(pointer, "items");
    const Json both = Json{{"allOf", Json::array({own, schema["contains"]})}};
    // Others, which are not such where such have an upper bound.
    const Json other = most ? Json{{"allOf", Json::array({own, Json{{"not", schema["contains"]}}})}} : own;
    const size_t next = max ? i + 1 : std::min(i + 1, last);
    for (size_t found = 0; found <= counted; ++found) {
      std::vector<uint32_t> ways;
      DSV4_ASSIGN_OR_RETURN(const uint32_t other_after, after(next, found));
      DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), Value(other, most ? at : own_at, other_after));
      if (found < counted) {
        DSV4_ASSIGN_OR_RETURN(const uint32_t found_after, after(next, found + 1));
        DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), Value(both, at, found_after));
      }
      parts_.builder.SetOptions(item[{i, found}], std::move(ways));
    }
  }
  const bool may_be_empty = min == 0 && wanted == 0;
  return parts_.Punctuation("[", may_be_empty ? parts_.builder.Split({item[{0, 0}], close}) : item[{0, 0}]);
}

// The same for large numbers, by counters: the items that are asked for come first.
Result<uint32_t> SchemaCompiler::ContainingFirst(const Json& schema, const std::string& pointer,
                                                 const Json& items, size_t min, std::optional<size_t> max) {
  const std::string at = Below(pointer, "contains");
  const size_t wanted = CountOf(schema, "minContains").value_or(1);
  const std::optional<size_t> most = CountOf(schema, "maxContains");
  const Json both = Json{{"allOf", Json::array({items, schema["contains"]})}};
  const Json other = most ? Json{{"allOf", Json::array({items, Json{{"not", schema["contains"]}}})}} : items;
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("]", parts_.end()));
  // From `least` to `many` values, each behind a comma.
  const auto values = [&](const Json& value, const std::string& place, size_t least,
                          std::optional<size_t> many, uint32_t next) -> Result<uint32_t> {
    if (many && *many == 0) return next;
    DSV4_ASSIGN_OR_RETURN(const uint32_t one, Value(value, place, parts_.end()));
    DSV4_ASSIGN_OR_RETURN(const uint32_t turn, parts_.Punctuation(",", one));
    return parts_.builder.Repeat(turn, static_cast<uint32_t>(least),
                                 many ? static_cast<uint32_t>(*many) : Node::kEndless, next);
  };
  const auto rest = [&](size_t done) {
    return values(other, most ? at : Below(pointer, "items"), Left(min, done),
                  max ? std::optional(Left(*max, done)) : std::nullopt, close);
  };
  // More than are wanted, and how many more there may be in front of the others.
  constexpr size_t kMaxMore = 64;
  const size_t highest = std::min(most.value_or(wanted), max.value_or(wanted + kMaxMore));
  const size_t first = std::max(wanted, size_t{1});
  uint32_t behind = parts_.builder.Split({});
  for (size_t count = std::min(highest, first + kMaxMore) + 1; count-- > first;) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t others, rest(count));
    DSV4_ASSIGN_OR_RETURN(const uint32_t one_more, values(both, at, 1, 1, behind));
    behind = parts_.builder.Split({others, one_more});
  }
  std::vector<uint32_t> ways;
  if (highest >= first) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t such, values(both, at, first - 1, first - 1, behind));
    DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), Value(both, at, such));
  }
  if (wanted == 0) {
    if (min == 0) ways.push_back(close);
    DSV4_ASSIGN_OR_RETURN(const uint32_t others, rest(1));
    DSV4_ASSIGN_OR_RETURN(ways.emplace_back(), Value(other, most ? at : Below(pointer, "items"), others));
  }
  return parts_.Punctuation("[", parts_.builder.Split(std::move(ways)));
}

// States: which values were written.
Result<uint32_t> SchemaCompiler::DifferentItems(const std::vector<Json>& values, size_t min, size_t max) {
  const size_t num_sets = size_t{1} << values.size();
  DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Punctuation("]", parts_.end()));
  std::vector<uint32_t> item(num_sets);
  std::vector<uint32_t> after(num_sets);
  const auto size_of = [](size_t set) { return static_cast<size_t>(__builtin_popcountll(set)); };
  for (size_t set = num_sets; set-- > 0;) {
    std::vector<uint32_t> ways;
    for (size_t i = 0; i < values.size() && size_of(set) < max; ++i) {
      if ((set >> i & 1) != 0) continue;
      DSV4_ASSIGN_OR_RETURN(ways.emplace_back(),
                            parts_.Text(Literally(values[i]), after[set | size_t{1} << i]));
    }
    item[set] = parts_.builder.Split(std::move(ways));
    DSV4_ASSIGN_OR_RETURN(const uint32_t comma, parts_.Punctuation(",", item[set]));
    after[set] = size_of(set) >= min ? parts_.builder.Split({comma, close}) : comma;
  }
  return parts_.Punctuation("[", min == 0 ? parts_.builder.Split({item[0], close}) : item[0]);
}

}  // namespace dsv4::grammar
