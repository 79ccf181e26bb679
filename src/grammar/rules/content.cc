// Compiler of a content rule: schema, regex, choice, grammar or structural tag to one program.
#include "grammar/rules/content.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "grammar/rules/gbnf.h"
#include "grammar/rules/lark.h"
#include "grammar/rules/rule_compiler.h"
#include "grammar/rules/scanner.h"
#include "grammar/rules/structural_tag.h"

namespace dsv4::grammar {
namespace {

RuleSet OneRule(Expr body) { return {.rules = {{"text", std::move(body)}}, .start = 0}; }

Result<RuleSet> ParseChoice(std::string_view text) {
  DSV4_TRY(Scanner::CheckText(text));
  DSV4_ASSIGN_OR_RETURN(const Json choices, ParseJson(text, "choice"));
  if (!choices.is_array() || choices.empty())
    return Error(InvalidArgument("wanted a list of texts that is not empty"));
  std::vector<Regex> options;
  std::set<std::string> seen;
  for (const Json& choice : choices) {
    if (!choice.is_string())
      return Error(InvalidArgument(fmt::format("wanted texts, got {}", choice.type_name())));
    if (seen.insert(choice).second) options.push_back(Literal(choice.get_ref<const std::string&>()));
  }
  return OneRule(RegexExpr(Either(std::move(options))));
}

Result<RuleSet> Parse(const ContentRule& rule) {
  switch (rule.kind) {
    case ContentRule::Kind::kJsonSchema:
      return OneRule(JsonSchemaExpr(rule.text));
    case ContentRule::Kind::kRegex: {
      DSV4_ASSIGN_OR_RETURN(Regex regex, WholePattern(rule.text));
      return OneRule(RegexExpr(std::move(regex)));
    }
    case ContentRule::Kind::kChoice:
      return ParseChoice(rule.text);
    case ContentRule::Kind::kGrammar:
      return ParseGrammar(rule.text);
    case ContentRule::Kind::kGbnf:
      return ParseGbnf(rule.text);
    case ContentRule::Kind::kLark:
      return ParseLark(rule.text);
    case ContentRule::Kind::kStructuralTag:
      return ParseStructuralTag(rule.text);
  }
  return Error(Internal("no such rule"));
}

Result<uint32_t> Compile(GrammarParts& parts, const ContentRule& rule, const std::string& closer) {
  if (rule.kind == ContentRule::Kind::kJsonSchema) {
    DSV4_ASSIGN_OR_RETURN(const Json document, ParseSchema(rule.text));
    SchemaCompiler schemas(parts, document, {.closer = closer, .strict_formats = rule.strict});
    DSV4_ASSIGN_OR_RETURN(const uint32_t entry, schemas.Rule(document, ""));
    DSV4_TRY(schemas.Finish());
    return entry;
  }
  DSV4_ASSIGN_OR_RETURN(const RuleSet rules, Parse(rule));
  return RuleCompiler::Compile(parts, rules, closer);
}

}  // namespace

Result<RuleSet> ParseGrammar(std::string_view text) {
  return text.find("::=") != std::string_view::npos ? ParseGbnf(text) : ParseLark(text);
}

// Bytes of a rule as the request has it.
constexpr size_t kMaxContentRuleBytes = size_t{1} << 20;

Result<uint32_t> CompileContent(GrammarParts& parts, const ContentRule& rule, const std::string& closer) {
  if (rule.text.size() > kMaxContentRuleBytes) {
    return Error(InvalidArgument(fmt::format("{}: {}, at most {} are compiled", rule.label,
                                             Counted(rule.text.size(), "byte"), kMaxContentRuleBytes)));
  }
  Result<uint32_t> entry = Compile(parts, rule, closer);
  if (!entry && !rule.label.empty()) return Error(entry.error().WithContext(rule.label));
  return entry;
}

Status CheckContent(const ContentRule& rule) {
  GrammarParts parts;
  DSV4_ASSIGN_OR_RETURN_STATUS(const uint32_t entry, CompileContent(parts, rule));
  const auto program = std::move(parts.builder).Build(entry, {MustLiveOf(rule, entry)});
  return program ? Status() : program.error();
}

ProgramBuilder::MustLive MustLiveOf(const ContentRule& rule, uint32_t entry) {
  const bool is_schema = rule.kind == ContentRule::Kind::kJsonSchema;
  return {entry, is_schema ? rule.label + ": json schema" : rule.label,
          is_schema ? "no value satisfies the schema" : "no text satisfies it"};
}

}  // namespace dsv4::grammar
