// From the parts of a JSON schema to nodes of a grammar. Internal to this module: json_schema.h and answer_grammar.h are what others use.
#pragma once

#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/json_text.h"
#include "grammar/program.h"
#include "grammar/schema_keywords.h"

namespace dsv4::grammar {

// State that all schemas of a grammar share: its nodes, its limits and the automata that occur again and
// again.
class GrammarParts {
 public:
  GrammarParts() : end_(builder.Return()) {}

  ProgramBuilder builder;
  DfaLimits limits;
  size_t rule_bytes = 0;  // Texts of the schemas that rules are made from.
  // By position and schema, the nodes of its strings, numbers and words: most parameters of most tools are alike.
  std::unordered_map<std::string, std::vector<uint32_t>> scalars;
  // Program::work so far.
  int64_t work() const { return DfaLimits().work_left - limits.work_left; }
  uint32_t end() const { return end_; }  // The return of every rule.

  // The same without the texts that have `text` in them.
  Result<Dfa> Without(const Dfa& dfa, const std::string& text);
  Result<uint32_t> Terminal(const Dfa& dfa, uint32_t next);
  // The same without `excluded` in its texts; empty: with all. `next` itself where only the empty text is left.
  Result<uint32_t> TerminalWithout(Dfa dfa, const std::string& excluded, uint32_t next);
  // `text` and nothing else, then `next`.
  Result<uint32_t> Text(const std::string& text, uint32_t next);
  // A bracket, comma or colon of JSON with its white space, then `next`.
  Result<uint32_t> Punctuation(const std::string& text, uint32_t next);

 private:
  uint32_t end_;
  std::unordered_map<std::string, uint32_t> known_;  // Automata by what they are made of.
  std::unordered_map<std::string, Dfa> with_text_;   // Texts that have this one in them.
};

// Position of a value: an answer's content, or an argument of a call.
struct ValueContext {
  // The text that ends a parameter ("</", the marker's text, the tag's name, ">"): no value can have it. Empty outside of calls.
  std::string closer = {};
  // Unknown keywords of the schema are left out, where otherwise it is an error.
  bool lenient = false;
  // A `format` that is not known is an error. Otherwise it says nothing of the string: JSON Schema calls it an annotation.
  bool strict_formats = false;
};

// The character of a closer that other texts seldom have; what is pieced together goes without it. Empty where the closer is.
std::string OddCharacterOf(const std::string& closer);

// Which part of a schema's values: a call writes strings raw and everything else as JSON.
enum class ValuePart : uint8_t { kAll, kRawString, kAllButString };

// One schema document. References lead into it.
class SchemaCompiler {
 public:
  // Both outlive this.
  SchemaCompiler(GrammarParts& parts, const Json& document, ValueContext context);

  // The entry of the rule for values of `schema`. Equal schemas share one; an error is the first that Finish finds.
  Result<uint32_t> Rule(const Json& schema, const std::string& pointer, ValuePart part = ValuePart::kAll);
  // Fills in all rules. Errors: those of CompileJsonSchema.
  Status Finish();

  struct Member {
    std::string name;
    Json schema;
    std::string pointer;
    bool required;
  };
  // Schema of members that are not listed: what the schema says, else none where it lists any.
  static Json Additional(const Json& schema);
  // Members of `properties`, then those that only `required` names.
  static std::vector<Member> Members(const Json& schema, const std::string& pointer, const Json& additional);

  // With $ref and allOf worked in.
  Result<Json> Flat(const Json& schema, const std::string& pointer);
  struct Branch {
    Json schema;
    std::string pointer;
  };
  // Branches of a flat schema with anyOf or oneOf, each with what stands beside that.
  Result<std::vector<Branch>> Branches(const Json& schema, const std::string& pointer);
  // The types a schema allows: those it names, else those its keywords are about, else all.
  static std::vector<std::string> Types(const Json& schema);

 private:
  struct PendingRule {
    Json schema;
    std::string pointer;
    ValuePart part;
    uint32_t entry;
  };
  using Nodes = std::vector<uint32_t>;

  Result<uint32_t> Value(const Json& schema, const std::string& pointer, uint32_t next,
                         ValuePart part = ValuePart::kAll);
  Result<uint32_t> Terminal(const Dfa& dfa) { return parts_.Terminal(dfa, parts_.end()); }
  Result<Dfa> CompileTerminal(const Regex& regex, const std::string& pointer);
  static Result<Dfa> At(Result<Dfa> dfa, const std::string& pointer);
  Result<Nodes> Options(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Nodes> LenientOptions(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Nodes> OfBranches(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Nodes> OfValues(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Nodes> OfTypes(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Nodes> ScalarNodes(const Json& schema, const std::string& pointer, ValuePart part);
  static std::optional<Regex> CountedPattern(const Json& schema, ValuePart part);
  Result<std::vector<Dfa>> Scalars(const Json& schema, const std::string& pointer, ValuePart part);
  Result<Dfa> Number(const Json& schema, const std::string& pointer, bool integer);
  Result<Dfa> String(const Json& schema, const std::string& pointer, Spelling spelling);
  Result<Dfa> CountedString(int min, int max, const std::string& pointer, Spelling spelling);
  Result<uint32_t> Object(const Json& schema, const std::string& pointer);
  // Members that are not listed, by what their names are.
  struct OtherMembers {
    Dfa names;
    Json schema;
    std::string pointer;
  };
  // Puts on `members` too what patternProperties and propertyNames say of their names.
  Result<std::vector<OtherMembers>> Others(const Json& schema, const std::string& pointer,
                                           const Json& additional, std::vector<Member>& members);
  static std::string SpelledName(const std::string& name);
  Result<Dfa> OtherNames(const std::vector<Member>& members, const std::string& pointer);
  Result<uint32_t> Array(const Json& schema, const std::string& pointer);
  Result<uint32_t> Containing(const Json& schema, const std::string& pointer, const Json& items, size_t min,
                              std::optional<size_t> max);
  Result<uint32_t> ContainingFirst(const Json& schema, const std::string& pointer, const Json& items,
                                   size_t min, std::optional<size_t> max);
  Result<uint32_t> DifferentItems(const std::vector<Json>& values, size_t min, size_t max);
  // The texts of `dfa` that have not `text` in them.
  Result<Dfa> Without(const Dfa& dfa, const std::string& text, const std::string& pointer);
  std::string Literally(const Json& value) const;

  GrammarParts& parts_;
  const Json& document_;
  ValueContext context_;
  SchemaFlattener flattener_;
  std::unordered_map<std::string, uint32_t> rules_;
  std::deque<PendingRule> pending_;
};

}  // namespace dsv4::grammar
