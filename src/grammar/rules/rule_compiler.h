// From rules to nodes of a grammar. Rules may be ambiguous, may be empty, and may begin with themselves (`list: list "," item | item`).
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/rules/rule_analysis.h"
#include "grammar/rules/rule_set.h"
#include "grammar/schema_compiler.h"

namespace dsv4::grammar {

// Calls inside each other in texts of rules; each may be several rules deep for one bracket.
inline constexpr uint32_t kMaxRuleDepth = 1000;

class RuleCompiler {
 public:
  // All outlive this. No terminal has `closer` in it, the text that ends a parameter of a call; empty: none does.
  RuleCompiler(GrammarParts& parts, const RuleSet& rules, std::string closer = {});

  // The entry of the start rule. ResourceExhausted when the grammar becomes too large, as far as possible before it is made;
  // InvalidArgument for a schema in it that is wrong. Whether any text satisfies it shows ProgramBuilder::Build.
  static Result<uint32_t> Compile(GrammarParts& parts, const RuleSet& rules, std::string closer = {});

 private:
  struct Pending {
    Expr body;
    uint32_t entry;
  };
  // Beginnings of an expression: rules of a group, each with what follows it; and what begins with none of
  // them.
  struct Beginnings {
    std::vector<std::pair<uint32_t, Expr>> rules;
    std::vector<Expr> others;
  };

  Result<uint32_t> Run(const RuleAnalysis& analysis);
  Result<uint32_t> Node(const Expr& expr, uint32_t next);
  Result<uint32_t> NodeOfParts(const ExprNode& expr, uint32_t next);
  Result<uint32_t> SequenceNode(const ExprNode& expr, uint32_t next);
  Result<uint32_t> RepeatNode(const ExprNode& expr, uint32_t next);
  Result<uint32_t> RegexNodeOf(const Regex& regex, uint32_t next);
  Result<uint32_t> FreeText(const ExprNode& expr, uint32_t next);
  Result<uint32_t> JsonSchema(const std::string& schema, uint32_t next);
  // Entries; made once each.
  uint32_t Entry(uint32_t rule);
  uint32_t EntryOfNonEmpty(uint32_t rule);
  uint32_t EntryOf(Expr body);
  // Fills in the entries of a group of rules that begin with each other.
  Status FillGroup(uint32_t group);
  // The expression without the empty text.
  Expr NonEmpty(const Expr& expr);
  Status Begin(const Expr& expr, uint32_t group, Beginnings& out);
  // Rest that follows part `i` of a sequence.
  static Expr Rest(const ExprNode& sequence, size_t i);
  static Expr OneLess(const ExprNode& repeat, bool part_may_be_empty);

  GrammarParts& parts_;
  const RuleSet& rules_;
  std::string closer_;
  const RuleAnalysis* analysis_ = nullptr;
  std::map<uint32_t, uint32_t> entries_;
  std::map<uint32_t, uint32_t> non_empty_entries_;
  std::map<const ExprNode*, std::pair<Expr, uint32_t>> body_entries_;
  std::map<std::string, uint32_t> schema_entries_;
  std::deque<Pending> pending_;
  std::vector<uint32_t> pending_groups_;
  std::map<uint32_t, uint8_t> groups_seen_;
  size_t made_ = 0;  // Expressions, of which some are copies.
};

}  // namespace dsv4::grammar
