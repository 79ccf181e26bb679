// Compiler of a whole answer's grammar: reasoning, content, and tool calls with their parameters in any
// order.
#include "grammar/rules/answer_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/rules/content.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_rewrite.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {
namespace {

// Every name is a reading of the text in front of it.
constexpr size_t kMaxTools = Matcher::kMaxThreads / 2;

Regex Byte(uint8_t byte) { return ByteRange(byte, byte); }

// How tags begin: with the marker's token.
std::string OpenTag(const std::string& name) {
  return "<" + std::string(1, static_cast<char>(kCallMarkerByte)) + name;
}
std::string CloseTag(const std::string& name) {
  return "</" + std::string(1, static_cast<char>(kCallMarkerByte)) + name + ">";
}

// The parameters of one tool.
class ToolCompiler {
 public:
  // All outlive this.
  ToolCompiler(GrammarParts& parts, const CallTags& tags, const CallableTool& tool, const Json& document)
      : parts_(parts),
        tags_(tags),
        tool_(tool),
        document_(document),
        schemas_(parts, document,
                 {.closer = fmt::format("</{}{}>", tags_.marker, tags_.parameter),
                  .lenient = !tool.strict,
                  .strict_formats = tool.strict}) {}

  // The entry of what stands behind the opening tag of an invoke, the closing one included.
  Result<uint32_t> Compile() {
    DSV4_ASSIGN_OR_RETURN(close_, parts_.Text(CloseTag(tags_.invoke) + "\n", parts_.end()));
    Result<uint32_t> entry = Arguments(document_, "", 0);
    if (!entry && !tool_.strict && entry.error().code() == StatusCode::kInvalidArgument) {
      entry = Arguments(Json{{"type", "object"}}, "", 0);
    }
    if (!entry) return entry;
    DSV4_TRY(schemas_.Finish());
    return entry;
  }

 private:
  Result<uint32_t> Arguments(const Json& schema, const std::string& pointer, int depth) {
    constexpr int kMaxDepthOfBranches = 16;
    DSV4_ASSIGN_OR_RETURN(Json flat, schemas_.Flat(schema, pointer));
    if (flat == true) flat = Json{{"type", "object"}};
    const auto wrong = [&](const std::string& at, const char* what) { return Error(SchemaError(at, what)); };
    if (!flat.is_object()) return wrong(pointer, "wanted the schema of an object");
    if (flat.contains("anyOf") || flat.contains("oneOf")) {
      if (depth == kMaxDepthOfBranches) return wrong(pointer, "nested too deeply");
      DSV4_ASSIGN_OR_RETURN(const auto branches, schemas_.Branches(flat, pointer));
      std::vector<uint32_t> options;
      for (const SchemaCompiler::Branch& branch : branches) {
        DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Arguments(branch.schema, branch.pointer, depth + 1));
      }
      return parts_.builder.Split(std::move(options));
    }
    for (const char* keyword : {"enum", "const", "patternProperties", "propertyNames", "minProperties",
                                "maxProperties", kNotValues}) {
      if (!flat.contains(keyword)) continue;
      if (tool_.strict) return wrong(Below(pointer, keyword), "not supported for all arguments of a call");
      flat.erase(keyword);
    }
    const std::vector<std::string> types = SchemaCompiler::Types(flat);
    if (std::find(types.begin(), types.end(), "object") == types.end())
      return wrong(pointer, "wanted the schema of an object");
    return Members(flat, pointer);
  }

  // The parameters of an object. In front of the first one a call may also end, with an empty line, if none is required.
  Result<uint32_t> Members(const Json& schema, const std::string& pointer) {
    // A schema that lists the parameters means these, unless it says otherwise.
    const Json additional = SchemaCompiler::Additional(schema);
    const std::vector<SchemaCompiler::Member> members = SchemaCompiler::Members(schema, pointer, additional);
    for (const SchemaCompiler::Member& member : members) {
      if (!FitsIntoTag(member.name))
        return Error(SchemaError(member.pointer, "a name with a quote or \"<\" cannot be written in a call"));
    }
    const auto num_required = static_cast<size_t>(
        std::ranges::count_if(members, [](const SchemaCompiler::Member& member) { return member.required; }));
    if (members.size() <= kMostUnordered || num_required <= kMostUnordered)
      return InAnyOrder(members, additional, pointer);
    return InOrder(members, additional, pointer);
  }

  // A node for every set of parameters that were given, of those that are counted.
  Result<uint32_t> InAnyOrder(const std::vector<SchemaCompiler::Member>& members, const Json& additional,
                              const std::string& pointer) {
    const bool counts_all = members.size() <= kMostUnordered;
    struct Option {
      uint32_t entry;
      uint32_t bit;         // 0: not counted.
      uint32_t behind = 0;  // Tokens that must have been given before.
    };
    std::vector<Option> options;
    uint32_t required = 0;
    uint32_t next_bit = 1;
    for (const SchemaCompiler::Member& member : members) {
      DSV4_ASSIGN_OR_RETURN(const Dfa head, Dfa::Compile(Head(Literal(member.name)), parts_.limits));
      DSV4_ASSIGN_OR_RETURN(const uint32_t entry,
                            Parameter(head, member.schema, member.pointer, parts_.end()));
      const uint32_t bit = counts_all || member.required ? std::exchange(next_bit, next_bit << 1) : 0;
      if (member.required) required |= bit;
      options.push_back({.entry = entry, .bit = bit});
    }
    if (additional != false) {
      DSV4_ASSIGN_OR_RETURN(const Dfa head, HeadOfOthers(members));
      DSV4_ASSIGN_OR_RETURN(
          const uint32_t other,
          Parameter(head, additional, Below(pointer, "additionalProperties"), parts_.end()));
      // Behind the required ones: in front of them they would have no end but for a model that spells a name that is listed.
      options.push_back({.entry = other, .bit = 0, .behind = required});
    }
    std::vector<uint32_t> nodes(next_bit);  // By the set.
    for (uint32_t& node : nodes) node = parts_.builder.Split({});
    const auto ways = [&](uint32_t given) {
      std::vector<uint32_t> calls;
      for (const Option& option : options) {
        if ((given & option.bit) == 0 && (given & option.behind) == option.behind)
          calls.push_back(parts_.builder.Call(option.entry, nodes[given | option.bit]));
      }
      return calls;
    };
    for (uint32_t given = 0; given < next_bit; ++given) {
      std::vector<uint32_t> calls = ways(given);
      if ((given & required) == required) calls.push_back(close_);
      parts_.builder.SetOptions(nodes[given], std::move(calls));
    }
    std::vector<uint32_t> first = ways(0);
    if (required == 0) {
      DSV4_ASSIGN_OR_RETURN(first.emplace_back(), parts_.Text("\n", close_));
    }
    return parts_.builder.Split(std::move(first));
  }

  // Built from the end, twice: in front of `first` stands no parameter yet.
  Result<uint32_t> InOrder(const std::vector<SchemaCompiler::Member>& members, const Json& additional,
                           const std::string& pointer) {
    DSV4_ASSIGN_OR_RETURN(uint32_t first, parts_.Text("\n", close_));
    uint32_t from = close_;
    if (additional != false) {
      const uint32_t others = parts_.builder.Split({});
      DSV4_ASSIGN_OR_RETURN(const Dfa head, HeadOfOthers(members));
      DSV4_ASSIGN_OR_RETURN(const uint32_t other,
                            Parameter(head, additional, Below(pointer, "additionalProperties"), others));
      parts_.builder.SetOptions(others, {other, close_});
      from = others;
      first = parts_.builder.Split({other, first});
    }
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      DSV4_ASSIGN_OR_RETURN(const Dfa head, Dfa::Compile(Head(Literal(member->name)), parts_.limits));
      DSV4_ASSIGN_OR_RETURN(const uint32_t this_one, Parameter(head, member->schema, member->pointer, from));
      from = member->required ? this_one : parts_.builder.Split({this_one, from});
      first = member->required ? this_one : parts_.builder.Split({this_one, first});
    }
    return first;
  }

  // The parameter that `head` opens, up to the value of its attribute `string`; then `next`.
  Result<uint32_t> Parameter(const Dfa& head, const Json& schema, const std::string& pointer, uint32_t next) {
    DSV4_ASSIGN_OR_RETURN(const uint32_t string, schemas_.Rule(schema, pointer, ValuePart::kRawString));
    DSV4_ASSIGN_OR_RETURN(const uint32_t other, schemas_.Rule(schema, pointer, ValuePart::kAllButString));
    // A raw string has the ">" before it and the marker behind it in its own automaton.
    DSV4_ASSIGN_OR_RETURN(const uint32_t string_end, parts_.Text(tags_.parameter + ">\n", next));
    DSV4_ASSIGN_OR_RETURN(const uint32_t other_end, parts_.Text(CloseTag(tags_.parameter) + "\n", next));
    DSV4_ASSIGN_OR_RETURN(const uint32_t as_string,
                          parts_.Text("true\"", parts_.builder.Call(string, string_end)));
    DSV4_ASSIGN_OR_RETURN(const uint32_t as_other,
                          parts_.Text("false\">", parts_.builder.Call(other, other_end)));
    return parts_.Terminal(head, parts_.builder.Split({as_string, as_other}));
  }

  Regex Head(const Regex& name) const {
    return Concat({Literal(OpenTag(tags_.parameter) + " name=\""), name, Literal("\" string=\"")});
  }

  Result<Dfa> HeadOfOthers(const std::vector<SchemaCompiler::Member>& members) {
    const Regex plain = SpelledChar(Complement({{0, 0x1F}, {'"', '"'}, {'<', '<'}}), Spelling::kRaw);
    DSV4_ASSIGN_OR_RETURN(const Dfa any, Dfa::Compile(Head(Repeat(plain, 1, kUnbounded)), parts_.limits));
    // The parser takes a lone one of these two for all arguments in one object.
    std::vector<Regex> taken = {Literal("arguments"), Literal("input")};
    for (const SchemaCompiler::Member& member : members) taken.push_back(Literal(member.name));
    DSV4_ASSIGN_OR_RETURN(const Dfa heads, Dfa::Compile(Head(Either(std::move(taken))), parts_.limits));
    return Dfa::Subtract(any, heads, parts_.limits);
  }

  // Between the quotes of an attribute there are no escapes.
  static bool FitsIntoTag(std::string_view name) {
    return name.find_first_of("\"<") == std::string_view::npos;
  }

  GrammarParts& parts_;
  const CallTags& tags_;
  const CallableTool& tool_;
  const Json& document_;
  SchemaCompiler schemas_;
  uint32_t close_ = 0;
};

class AnswerCompiler {
 public:
  explicit AnswerCompiler(const AnswerRules& rules) : rules_(rules) {}

  Result<Program> Compile() {
    if (!rules_.tools.empty()) {
      DSV4_ASSIGN_OR_RETURN(calls_, Calls());
    }
    DSV4_ASSIGN_OR_RETURN(uint32_t start, Content());
    if (rules_.starts_in_reasoning) {
      DSV4_ASSIGN_OR_RETURN(start, Reasoning(start));
    }
    DSV4_ASSIGN_OR_RETURN(Program program, std::move(parts_.builder).Build(start, live_));
    program.work = parts_.work();
    return program;
  }

 private:
  // Calls behind "<M tool_calls>".
  Result<uint32_t> Calls() {
    const CallTags& tags = rules_.tags;
    if (rules_.tools.size() > kMaxTools) {
      return Error(
          ResourceExhausted(fmt::format("tools: got {}, at most {} can be called in an answer of a grammar",
                                        rules_.tools.size(), kMaxTools)));
    }
    DSV4_ASSIGN_OR_RETURN(const uint32_t close, parts_.Text(CloseTag(tags.tool_calls), parts_.end()));
    const uint32_t names = parts_.builder.Split({});
    DSV4_ASSIGN_OR_RETURN(const uint32_t invoke, parts_.Text(OpenTag(tags.invoke) + " name=\"", names));
    const uint32_t after = rules_.parallel_calls ? parts_.builder.Split({invoke, close}) : close;
    std::vector<uint32_t> options;
    for (const CallableTool& tool : rules_.tools) {
      Result<uint32_t> option = Invoke(tool, after);
      if (!option) return Error(option.error().WithContext(tool.label));
      options.push_back(*option);
    }
    parts_.builder.SetOptions(names, std::move(options));
    return parts_.Text("\n", invoke);
  }

  Result<uint32_t> Invoke(const CallableTool& tool, uint32_t next) {
    if (tool.name.find_first_of("\"<") != std::string::npos)
      return Error(InvalidArgument(fmt::format("a tool cannot have the name '{}'", tool.name)));
    if (tool.text) {
      DSV4_ASSIGN_OR_RETURN(const uint32_t text, TextCall(*tool.text));
      return parts_.Text(tool.name + "\">\n", parts_.builder.Call(text, next));
    }
    DSV4_ASSIGN_OR_RETURN(const Json document, ParseSchema(tool.parameters));
    DSV4_ASSIGN_OR_RETURN(const uint32_t body, ToolCompiler(parts_, rules_.tags, tool, document).Compile());
    if (tool.strict) live_.push_back({body, fmt::format("{}: json schema", tool.label)});
    return parts_.Text(tool.name + "\">\n", parts_.builder.Call(body, next));
  }

  // Text that stands behind the opening tag of an invoke whose one parameter is a text of a rule.
  Result<uint32_t> TextCall(const CallableTool::Text& text) {
    const CallTags& tags = rules_.tags;
    DSV4_ASSIGN_OR_RETURN(
        const uint32_t rule,
        CompileContent(parts_, text.rule, fmt::format("</{}{}>", tags.marker, tags.parameter)));
    live_.push_back(MustLiveOf(text.rule, rule));
    DSV4_ASSIGN_OR_RETURN(
        const uint32_t close,
        parts_.Text(CloseTag(tags.parameter) + "\n" + CloseTag(tags.invoke) + "\n", parts_.end()));
    return parts_.Text(OpenTag(tags.parameter) + " name=\"" + text.parameter + "\" string=\"true\">",
                       parts_.builder.Call(rule, close));
  }

  Result<uint32_t> Content() {
    const std::string opener = OpenTag(rules_.tags.tool_calls) + ">";
    switch (rules_.content) {
      case ContentKind::kText: {
        DSV4_CHECK(calls_) << "free text without tools is no grammar";
        DSV4_ASSIGN_OR_RETURN(const Dfa text, FreeTextUntil(Opener(), Opener()));
        return OpenEnded(text, *calls_);
      }
      case ContentKind::kJson:
      case ContentKind::kRule: {
        const bool is_json = rules_.content == ContentKind::kJson;
        const ContentRule asked =
            is_json ? ContentRule{.text = rules_.schema, .label = rules_.schema_label} : rules_.rule;
        DSV4_ASSIGN_OR_RETURN(const uint32_t rule, CompileContent(parts_, asked));
        live_.push_back(MustLiveOf(asked, rule));
        if (!calls_) return rule;
        DSV4_ASSIGN_OR_RETURN(const uint32_t call, parts_.Text("\n\n" + opener, *calls_));
        return parts_.builder.Split({rule, call});
      }
      case ContentKind::kCall:
        DSV4_CHECK(calls_) << "a call needs a tool";
        return parts_.Text("\n\n" + opener, *calls_);
      case ContentKind::kOpenCall:
        DSV4_CHECK(calls_) << "a call needs a tool";
        return parts_.Text(rules_.tags.tool_calls + ">", *calls_);
    }
    return Error(Internal("no such content"));
  }

  // A call inside of the reasoning ends it, as the parser has it.
  Result<uint32_t> Reasoning(uint32_t content) {
    const Regex closer = Either({Byte(kThinkEndByte), Literal(rules_.think_end)});
    const Regex end = calls_ ? Either({closer, Opener()}) : closer;
    DSV4_ASSIGN_OR_RETURN(const Dfa until_close, FreeTextUntil(closer, end));
    std::vector<uint32_t> options;
    // If the content is free the answer may also be nothing but reasoning.
    const bool may_end = rules_.content == ContentKind::kText;
    DSV4_ASSIGN_OR_RETURN(options.emplace_back(),
                          may_end ? OpenEnded(until_close, content) : parts_.Terminal(until_close, content));
    if (calls_) {
      DSV4_ASSIGN_OR_RETURN(const Dfa until_call, FreeTextUntil(Opener(), end));
      DSV4_ASSIGN_OR_RETURN(options.emplace_back(), parts_.Terminal(until_call, *calls_));
    }
    return parts_.builder.Split(std::move(options));
  }

  // The opening tag of calls. In free text it is one however it is spelled, because the parser reads text.
  Regex Opener() const {
    return Concat({Literal("<"), Either({Byte(kCallMarkerByte), Literal(rules_.tags.marker)}),
                   Literal(rules_.tags.tool_calls + ">")});
  }

  // Free text that ends with `last`, where nothing in front of that is an `end`. Free text is any bytes of ordinary tokens, and any
  // marker but the end of the reasoning.
  Result<Dfa> FreeTextUntil(const Regex& last, const Regex& end) {
    ByteSet bytes;
    for (size_t byte = 0; byte <= kOtherMarkerByte; ++byte) bytes.set(byte, byte != kThinkEndByte);
    const Regex text = Repeat(OneOf(bytes), 0, kUnbounded);
    DSV4_ASSIGN_OR_RETURN(const Dfa all, Dfa::Compile(Concat({text, last}), parts_.limits));
    DSV4_ASSIGN_OR_RETURN(
        const Dfa later,
        Dfa::Compile(Concat({text, end, Repeat(ByteRange(0, 255), 1, kUnbounded)}), parts_.limits));
    return Dfa::Subtract(all, later, parts_.limits);
  }

  // The answer may also end inside `dfa`.
  Result<uint32_t> OpenEnded(const Dfa& dfa, uint32_t next) {
    const uint32_t id = parts_.builder.AddDfa(dfa);
    parts_.builder.MayEndInside(id);
    return parts_.builder.Terminal(id, next);
  }

  const AnswerRules& rules_;
  GrammarParts parts_;
  std::optional<uint32_t> calls_;  // Empty: there are no tools.
  std::vector<ProgramBuilder::MustLive> live_;
};

}  // namespace

Result<std::shared_ptr<const Program>> CompileAnswer(const AnswerRules& rules) {
  DSV4_ASSIGN_OR_RETURN(Program program, AnswerCompiler(rules).Compile());
  return std::make_shared<const Program>(std::move(program));
}

}  // namespace dsv4::grammar
