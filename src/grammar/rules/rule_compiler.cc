// Compiler of rules to program nodes: regular parts as automata, left recursion turned round.
#include "grammar/rules/rule_compiler.h"

#include <algorithm>
#include <optional>

#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex_nodes.h"

namespace dsv4::grammar {
namespace {

using Kind = ExprNode::Kind;

// Parts of sequences that were copied because what is in front of them may be empty.
constexpr size_t kMaxMade = 1'000'000;

}  // namespace

RuleCompiler::RuleCompiler(GrammarParts& parts, const RuleSet& rules, std::string closer)
    : parts_(parts), rules_(rules), closer_(std::move(closer)) {}

Result<uint32_t> RuleCompiler::Compile(GrammarParts& parts, const RuleSet& rules, std::string closer) {
  DSV4_ASSIGN_OR_RETURN(const RuleAnalysis analysis, RuleAnalysis::Of(rules));
  return RuleCompiler(parts, rules, std::move(closer)).Run(analysis);
}

Result<uint32_t> RuleCompiler::Run(const RuleAnalysis& analysis) {
  analysis_ = &analysis;
  parts_.builder.RaiseDepth(kMaxRuleDepth);
  const uint32_t start = Entry(rules_.start);
  while (!pending_.empty() || !pending_groups_.empty()) {
    if (!pending_groups_.empty()) {
      const uint32_t group = pending_groups_.back();
      pending_groups_.pop_back();
      DSV4_TRY(FillGroup(group));
    } else {
      const Pending next = std::move(pending_.front());
      pending_.pop_front();
      DSV4_ASSIGN_OR_RETURN(const uint32_t node, Node(next.body, parts_.end()));
      parts_.builder.SetOptions(next.entry, {node});
    }
    DSV4_TRY(parts_.builder.CheckSize());
    if (made_ > kMaxMade)
      return Error(ResourceExhausted("grammar: too many parts that may be empty stand beside each other"));
  }
  return start;
}

uint32_t RuleCompiler::EntryOf(Expr body) {
  if (body->kind == Kind::kRule) return body->min == 1 ? EntryOfNonEmpty(body->rule) : Entry(body->rule);
  const ExprNode* key = body.get();
  const auto [found, is_new] = body_entries_.try_emplace(key, body, 0);
  if (is_new) {
    found->second.second = parts_.builder.Split({});
    pending_.push_back({std::move(body), found->second.second});
  }
  return found->second.second;
}

uint32_t RuleCompiler::Entry(uint32_t rule) {
  const auto [found, is_new] = entries_.try_emplace(rule, 0);
  if (!is_new) return found->second;
  const uint32_t entry = parts_.builder.Split({});
  found->second = entry;
  if (analysis_->GroupOf(rule) == RuleAnalysis::kNoGroup) {
    pending_.push_back({rules_.rules[rule].body, entry});
    return entry;
  }
  std::vector<uint32_t> options = {EntryOfNonEmpty(rule)};
  if (analysis_->MayBeEmpty(*RuleExpr(rule))) options.push_back(parts_.end());
  parts_.builder.SetOptions(entry, std::move(options));
  return entry;
}

uint32_t RuleCompiler::EntryOfNonEmpty(uint32_t rule) {
  const uint32_t group = analysis_->GroupOf(rule);
  if (group == RuleAnalysis::kNoGroup && !analysis_->MayBeEmpty(*RuleExpr(rule))) return Entry(rule);
  // Rules of a group are filled in together.
  const auto [found, is_new] = non_empty_entries_.try_emplace(rule, 0);
  if (!is_new) return found->second;
  const uint32_t entry = parts_.builder.Split({});
  found->second = entry;
  if (group == RuleAnalysis::kNoGroup) {
    pending_.push_back({NonEmpty(rules_.rules[rule].body), entry});
  } else if (groups_seen_.try_emplace(group, 1).second) {
    pending_groups_.push_back(group);
  }
  return entry;
}

// Fills a group of rules A that begin with each other, A = B x | C y | z ... Every text is some z and behind
// it such x, y that lead from its rule to the one that was asked for. So for each rule that may be asked for
// there is a state for each rule that has been read. Behind a z of B stands state B, and an x of A = B x
// leads from B to A. In the state that was asked for the text may end.
Status RuleCompiler::FillGroup(uint32_t group) {
  std::vector<uint32_t> members;
  for (uint32_t rule = 0; rule < rules_.rules.size(); ++rule) {
    if (analysis_->GroupOf(rule) == group) members.push_back(rule);
  }
  const size_t count = members.size();
  constexpr size_t kMaxMembers = 100;
  if (count > kMaxMembers) {
    return ResourceExhausted("grammar: more than 100 rules begin with each other, one of them \"" +
                             rules_.rules[members[0]].name + "\"");
  }
  const auto index_of = [&](uint32_t rule) {
    return static_cast<size_t>(std::lower_bound(members.begin(), members.end(), rule) - members.begin());
  };
  struct Edge {
    size_t to;
    uint32_t entry;
  };
  std::vector<std::vector<Edge>> edges(count);       // By the rule that was read.
  std::vector<std::vector<uint8_t>> reaches(count);  // Relation of rules: A = B makes one what the other is.
  std::vector<std::vector<uint32_t>> starts(count);
  for (size_t i = 0; i < count; ++i) reaches[i].assign(count, 0);
  for (size_t i = 0; i < count; ++i) {
    reaches[i][i] = 1;
    Beginnings beginnings;
    DSV4_RETURN_IF_ERROR(Begin(rules_.rules[members[i]].body, group, beginnings));
    for (auto& [rule, rest] : beginnings.rules) {
      const size_t from = index_of(rule);
      if (analysis_->MayBeEmpty(*rest)) reaches[from][i] = 1;
      const Expr more = NonEmpty(rest);
      edges[from].push_back({i, EntryOf(more)});
    }
    for (const Expr& other : beginnings.others) starts[i].push_back(EntryOf(other));
  }
  for (size_t via = 0; via < count; ++via) {
    for (size_t from = 0; from < count; ++from) {
      for (size_t to = 0; to < count && reaches[from][via] != 0; ++to) reaches[from][to] |= reaches[via][to];
    }
  }
  for (size_t asked = 0; asked < count; ++asked) {
    std::vector<uint32_t> states(count);
    for (uint32_t& state : states) state = parts_.builder.Split({});
    std::vector<uint32_t> options;
    for (size_t i = 0; i < count; ++i) {
      for (const uint32_t entry : starts[i]) options.push_back(parts_.builder.Call(entry, states[i]));
    }
    // The entry may be in use already, or come to be.
    parts_.builder.SetOptions(EntryOfNonEmpty(members[asked]), std::move(options));
    for (size_t i = 0; i < count; ++i) {
      std::vector<uint32_t> ways;
      if (reaches[i][asked] != 0) ways.push_back(parts_.end());
      for (size_t as = 0; as < count; ++as) {
        if (reaches[i][as] == 0) continue;
        for (const Edge& edge : edges[as]) ways.push_back(parts_.builder.Call(edge.entry, states[edge.to]));
      }
      parts_.builder.SetOptions(states[i], std::move(ways));
    }
    DSV4_RETURN_IF_ERROR(parts_.builder.CheckSize());
  }
  return {};
}

Expr RuleCompiler::Rest(const ExprNode& sequence, size_t i) {
  return SequenceExpr({sequence.parts.begin() + static_cast<ptrdiff_t>(i) + 1, sequence.parts.end()});
}

Expr RuleCompiler::OneLess(const ExprNode& repeat, bool part_may_be_empty) {
  return RepeatExpr(repeat.parts[0], part_may_be_empty ? 0 : std::max(0, repeat.min - 1),
                    repeat.max == kUnbounded ? kUnbounded : repeat.max - 1);
}

Status RuleCompiler::Begin(const Expr& expr, uint32_t group, Beginnings& out) {
  if (++made_ > kMaxMade) return ResourceExhausted("grammar: rules that begin with each other are too large");
  if (!analysis_->BeginsWith(*expr, group)) {
    out.others.push_back(NonEmpty(expr));
    return {};
  }
  Beginnings inner;
  switch (expr->kind) {
    case Kind::kRule:
      out.rules.emplace_back(expr->rule, SequenceExpr({}));
      return {};
    case Kind::kEither:
      for (const Expr& part : expr->parts) DSV4_RETURN_IF_ERROR(Begin(part, group, out));
      return {};
    case Kind::kRepeat:
      if (expr->max == 0) return {};
      DSV4_RETURN_IF_ERROR(Begin(expr->parts[0], group, inner));
      break;
    case Kind::kSequence: {
      for (size_t i = 0; i < expr->parts.size(); ++i) {
        Beginnings first;
        DSV4_RETURN_IF_ERROR(Begin(expr->parts[i], group, first));
        const Expr rest = Rest(*expr, i);
        made_ += expr->parts.size() - i;
        for (auto& [rule, tail] : first.rules) out.rules.emplace_back(rule, SequenceExpr({tail, rest}));
        for (Expr& other : first.others) out.others.push_back(SequenceExpr({std::move(other), rest}));
        if (!analysis_->MayBeEmpty(*expr->parts[i])) break;
        if (made_ > kMaxMade) break;
      }
      return {};
    }
    case Kind::kRegex:
    case Kind::kJsonSchema:
    case Kind::kFreeText:
      return {};
  }
  const Expr rest = OneLess(*expr, analysis_->MayBeEmpty(*expr->parts[0]));
  for (auto& [rule, tail] : inner.rules) out.rules.emplace_back(rule, SequenceExpr({tail, rest}));
  for (Expr& other : inner.others) out.others.push_back(SequenceExpr({std::move(other), rest}));
  return {};
}

Expr RuleCompiler::NonEmpty(const Expr& expr) {
  if (!analysis_->MayBeEmpty(*expr) || ++made_ > kMaxMade) return expr;
  switch (expr->kind) {
    case Kind::kRegex:
      return RegexExpr(grammar::NonEmpty(expr->regex));
    case Kind::kJsonSchema:
      return expr;
    case Kind::kRule:
      if (const std::optional<Regex> regex = analysis_->AsRegex(*expr))
        return RegexExpr(grammar::NonEmpty(*regex));
      [[fallthrough]];
    case Kind::kFreeText: {
      ExprNode node = *expr;
      node.min = 1;
      return std::make_shared<const ExprNode>(std::move(node));
    }
    case Kind::kEither: {
      std::vector<Expr> options;
      for (const Expr& part : expr->parts) options.push_back(NonEmpty(part));
      return EitherExpr(std::move(options));
    }
    case Kind::kSequence: {
      std::vector<Expr> options;
      for (size_t i = 0; i < expr->parts.size() && made_ <= kMaxMade; ++i) {
        made_ += expr->parts.size() - i;
        options.push_back(SequenceExpr({NonEmpty(expr->parts[i]), Rest(*expr, i)}));
        if (!analysis_->MayBeEmpty(*expr->parts[i])) break;
      }
      return EitherExpr(std::move(options));
    }
    case Kind::kRepeat:
      if (expr->max == 0) return EitherExpr({});
      return SequenceExpr({NonEmpty(expr->parts[0]), OneLess(*expr, analysis_->MayBeEmpty(*expr->parts[0]))});
  }
  return expr;
}

// ---------------------------------------------------------------------------------------------------------------------
// Nodes

Result<uint32_t> RuleCompiler::Node(const Expr& expr, uint32_t next) {
  DSV4_TRY(parts_.builder.CheckSize());
  if (const std::optional<Regex> regex = analysis_->AsRegex(*expr)) {
    // Subsets may be many though the expression is small; then its parts are automata of their own.
    const Result<uint32_t> node = RegexNodeOf(*regex, next);
    if (node || parts_.limits.work_left < 0) return node;
    if (expr->kind == Kind::kRegex) return RegexNodes(parts_, *regex, OddCharacterOf(closer_), next);
  }
  return NodeOfParts(*expr, next);
}

Result<uint32_t> RuleCompiler::NodeOfParts(const ExprNode& expr, uint32_t next) {
  switch (expr.kind) {
    case Kind::kRegex:
      return Error(ResourceExhausted("grammar: an expression of too many states"));
    case Kind::kRule:
      return parts_.builder.Call(expr.min == 1 ? EntryOfNonEmpty(expr.rule) : Entry(expr.rule), next);
    case Kind::kJsonSchema:
      return JsonSchema(expr.schema, next);
    case Kind::kFreeText:
      return FreeText(expr, next);
    case Kind::kSequence:
      return SequenceNode(expr, next);
    case Kind::kEither: {
      std::vector<uint32_t> options;
      for (const Expr& part : expr.parts) {
        DSV4_ASSIGN_OR_RETURN(options.emplace_back(), Node(part, next));
      }
      return parts_.builder.Split(std::move(options));
    }
    case Kind::kRepeat:
      return RepeatNode(expr, next);
  }
  return Error(Internal("no such expression"));
}

// From the end; what is regular in a row is one automaton.
Result<uint32_t> RuleCompiler::SequenceNode(const ExprNode& expr, uint32_t next) {
  for (size_t end = expr.parts.size(); end > 0;) {
    size_t begin = end - 1;
    const auto run = [&](size_t from) {
      return analysis_->AsRegex(*SequenceExpr({expr.parts.begin() + static_cast<ptrdiff_t>(from),
                                               expr.parts.begin() + static_cast<ptrdiff_t>(end)}));
    };
    constexpr size_t kMaxRun = 32;
    while (begin > 0 && end - begin < kMaxRun && expr.parts[begin - 1]->kind != Kind::kFreeText &&
           run(begin - 1)) {
      --begin;
    }
    if (end - begin == expr.parts.size()) begin = end - 1;  // All of it was tried and was too large.
    if (end - begin > 1) {
      if (Result<uint32_t> node = RegexNodeOf(*run(begin), next)) {
        next = *node;
        end = begin;
        continue;
      }
      begin = end - 1;
    }
    DSV4_ASSIGN_OR_RETURN(next, Node(expr.parts[begin], next));
    end = begin;
  }
  return next;
}

Result<uint32_t> RuleCompiler::RepeatNode(const ExprNode& expr, uint32_t next) {
  if (expr.max == 0) return next;
  const bool may_be_empty = analysis_->MayBeEmpty(*expr.parts[0]);
  const uint32_t entry = EntryOf(may_be_empty ? NonEmpty(expr.parts[0]) : expr.parts[0]);
  const int min = may_be_empty ? 0 : expr.min;
  if (std::max(min, expr.max) >= kLargeCount) {
    return parts_.builder.Repeat(
        entry, static_cast<uint32_t>(min),
        expr.max == kUnbounded ? grammar::Node::kEndless : static_cast<uint32_t>(expr.max), next);
  }
  if (expr.max == kUnbounded) {
    const uint32_t loop = parts_.builder.Split({});
    parts_.builder.SetOptions(loop, {parts_.builder.Call(entry, loop), next});
    next = loop;
  } else {
    const uint32_t behind = next;
    for (int i = min; i < expr.max; ++i) {
      next = parts_.builder.Split({parts_.builder.Call(entry, next), behind});
    }
  }
  for (int i = 0; i < min; ++i) next = parts_.builder.Call(entry, next);
  return next;
}

Result<uint32_t> RuleCompiler::RegexNodeOf(const Regex& regex, uint32_t next) {
  // With a large count the expression has parts that can be counted otherwise: not much is spent on its states.
  std::optional<TrialLimits> trial;
  if (HasLargeCount(*regex)) trial.emplace(parts_.limits);
  DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(regex, parts_.limits));
  trial.reset();
  return parts_.TerminalWithout(std::move(dfa), closer_, next);
}

Result<uint32_t> RuleCompiler::FreeText(const ExprNode& expr, uint32_t next) {
  if (expr.max == 0 && expr.min > 0) return parts_.builder.Split({});
  const Regex any = SpelledChar(AllChars(), Spelling::kRaw);
  std::vector<Regex> excluded;
  for (const std::string& text : expr.excluded) excluded.push_back(Literal(text));
  if (!closer_.empty()) excluded.push_back(Literal(closer_));
  DSV4_ASSIGN_OR_RETURN(Dfa dfa, Dfa::Compile(Repeat(any, expr.min, expr.max), parts_.limits));
  if (!excluded.empty()) {
    const Regex bytes = Repeat(ByteRange(0, 255), 0, kUnbounded);
    DSV4_ASSIGN_OR_RETURN(const Dfa with,
                          Dfa::Compile(Concat({bytes, Either(std::move(excluded)), bytes}), parts_.limits));
    DSV4_ASSIGN_OR_RETURN(dfa, Dfa::Subtract(dfa, with, parts_.limits));
  }
  return parts_.Terminal(dfa, next);
}

Result<uint32_t> RuleCompiler::JsonSchema(const std::string& schema, uint32_t next) {
  auto found = schema_entries_.find(schema);
  if (found == schema_entries_.end()) {
    DSV4_ASSIGN_OR_RETURN(const Json document, ParseSchema(schema));
    SchemaCompiler compiler(parts_, document, {.closer = closer_});
    DSV4_ASSIGN_OR_RETURN(const uint32_t entry, compiler.Rule(document, ""));
    DSV4_TRY(compiler.Finish());
    found = schema_entries_.emplace(schema, entry).first;
  }
  return parts_.builder.Call(found->second, next);
}

}  // namespace dsv4::grammar
