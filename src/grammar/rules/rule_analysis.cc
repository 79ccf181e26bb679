// Analysis of rules: sizes, empty and regular ones, and groups that begin with each other.
#include "grammar/rules/rule_analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace dsv4::grammar {
namespace {

using Kind = ExprNode::Kind;

constexpr size_t kMaxRules = 4096;
// Bound of nodes that an expression becomes; its repetitions are written out.
constexpr int64_t kMaxWritten = 100'000;
// Bound of expressions inside each other where rules stand for what they say.
constexpr int kMaxFusedDepth = 100;

// States of the automaton that `regex` becomes, at least about; saturates.
double NumWritten(const ExprNode& expr) {
  double sum = 1;
  if (expr.kind == Kind::kRepeat) {
    const double count = expr.max == kUnbounded ? expr.min + 1.0 : expr.max;
    // Every copy of a part that is no regex is a call, as long as they are not counted.
    const bool fuses = expr.parts[0]->kind == Kind::kRegex;
    return fuses ? 1 : NumWritten(*expr.parts[0]) + (count < kLargeCount ? count : 1);
  }
  for (const Expr& part : expr.parts) sum += NumWritten(*part);
  return sum;
}

}  // namespace

Result<RuleAnalysis> RuleAnalysis::Of(const RuleSet& rules) {
  RuleAnalysis analysis(rules);
  DSV4_TRY(analysis.CheckSizes());
  analysis.FindEmpty();
  analysis.FindRegular();
  analysis.FindGroups();
  return analysis;
}

Status RuleAnalysis::CheckSizes() const {
  if (rules_->rules.size() > kMaxRules) {
    return ResourceExhausted(fmt::format("grammar: {}, at most {} are compiled",
                                         Counted(rules_->rules.size(), "rule"), kMaxRules));
  }
  double sum = 0;
  for (const RuleSet::Rule& rule : rules_->rules) {
    sum += NumWritten(*rule.body);
    if (sum > static_cast<double>(kMaxWritten)) {
      return ResourceExhausted(
          fmt::format("grammar, rule \"{}\": with it the grammar has more than {}, repetitions written out",
                      rule.name, Counted(kMaxWritten, "part")));
    }
  }
  return {};
}

bool RuleAnalysis::MayBeEmpty(const ExprNode& expr) const {
  const auto part_may = [&](const Expr& part) { return MayBeEmpty(*part); };
  switch (expr.kind) {
    case Kind::kRegex:
      return grammar::MayBeEmpty(*expr.regex);
    case Kind::kRule:
      return expr.min == 0 && empty_[expr.rule] != 0;
    case Kind::kJsonSchema:
      return false;
    case Kind::kFreeText:
      return expr.min == 0;
    case Kind::kSequence:
      return std::all_of(expr.parts.begin(), expr.parts.end(), part_may);
    case Kind::kEither:
      return std::any_of(expr.parts.begin(), expr.parts.end(), part_may);
    case Kind::kRepeat:
      return expr.min == 0 || MayBeEmpty(*expr.parts[0]);
  }
  return false;
}

void RuleAnalysis::FindEmpty() {
  const size_t count = rules_->rules.size();
  empty_.assign(count, 0);
  std::vector<std::vector<uint32_t>> callers(count);
  std::vector<uint32_t> pending;
  for (uint32_t rule = 0; rule < count; ++rule) {
    std::vector<uint32_t> called;
    AddCalled(*rules_->rules[rule].body, /*first_only=*/false, called);
    std::sort(called.begin(), called.end());
    called.erase(std::unique(called.begin(), called.end()), called.end());
    for (const uint32_t other : called) callers[other].push_back(rule);
    pending.push_back(rule);
  }
  while (!pending.empty()) {
    const uint32_t rule = pending.back();
    pending.pop_back();
    if (empty_[rule] != 0 || !MayBeEmpty(*rules_->rules[rule].body)) continue;
    empty_[rule] = 1;
    pending.insert(pending.end(), callers[rule].begin(), callers[rule].end());
  }
}

std::optional<RuleAnalysis::Regular> RuleAnalysis::RegularOf(const ExprNode& expr) const {
  const auto fits = [](Regular regular) -> std::optional<Regular> {
    if (regular.states > kMaxFused || regular.depth > kMaxFusedDepth) return std::nullopt;
    return regular;
  };
  switch (expr.kind) {
    case Kind::kRegex:
      // Alone it is an automaton however large; Compile has its bounds.
      return Regular{expr.regex, static_cast<size_t>(std::min(NumStates(*expr.regex), 1e9)), 1};
    case Kind::kRule:
      return expr.min == 0 ? regular_[expr.rule] : std::nullopt;
    case Kind::kJsonSchema:
    case Kind::kFreeText:
      return std::nullopt;
    case Kind::kSequence:
    case Kind::kEither: {
      std::vector<Regex> parts;
      Regular sum = {nullptr, 1, 0};
      for (const Expr& part : expr.parts) {
        const std::optional<Regular> regular = RegularOf(*part);
        if (!regular) return std::nullopt;
        sum.states += regular->states;
        sum.depth = std::max(sum.depth, regular->depth + 1);
        if (sum.states > kMaxFused) return std::nullopt;
        parts.push_back(regular->regex);
      }
      sum.regex = expr.kind == Kind::kSequence ? Concat(std::move(parts)) : Either(std::move(parts));
      return fits(std::move(sum));
    }
    case Kind::kRepeat: {
      const std::optional<Regular> part = RegularOf(*expr.parts[0]);
      if (!part) return std::nullopt;
      const size_t count = static_cast<size_t>(std::max(1, expr.max == kUnbounded ? expr.min + 1 : expr.max));
      if (part->states > kMaxFused) return std::nullopt;
      // A large one is tried as one that counts, and else made of nodes.
      const size_t copies = count < kLargeCount ? count : 3;
      return fits({Repeat(part->regex, expr.min, expr.max), 1 + part->states * copies, part->depth + 1});
    }
  }
  return std::nullopt;
}

std::optional<Regex> RuleAnalysis::AsRegex(const ExprNode& expr) const {
  std::optional<Regular> regular = RegularOf(expr);
  return regular ? std::optional(std::move(regular->regex)) : std::nullopt;
}

void RuleAnalysis::FindRegular() {
  regular_.assign(rules_->rules.size(), std::nullopt);
  std::vector<uint32_t> order;
  const std::vector<uint32_t> component = Components(/*first_only=*/false, order);
  std::vector<uint32_t> called;
  for (const uint32_t rule : order) {
    called.clear();
    AddCalled(*rules_->rules[rule].body, false, called);
    const bool recursive = std::any_of(called.begin(), called.end(),
                                       [&](uint32_t other) { return component[other] == component[rule]; });
    if (recursive) continue;
    std::optional<Regular> regular = RegularOf(*rules_->rules[rule].body);
    if (regular && regular->states <= kMaxFused) regular_[rule] = std::move(regular);
  }
}

void RuleAnalysis::AddCalled(const ExprNode& expr, bool first_only, std::vector<uint32_t>& out) const {
  if (expr.kind == Kind::kRule) out.push_back(expr.rule);
  for (const Expr& part : expr.parts) {
    AddCalled(*part, first_only, out);
    if (first_only && expr.kind == Kind::kSequence && !MayBeEmpty(*part)) return;
  }
}

// Tarjan's algorithm, with a stack of its own.
std::vector<uint32_t> RuleAnalysis::Components(bool first_only, std::vector<uint32_t>& order) const {
  const size_t count = rules_->rules.size();
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<std::vector<uint32_t>> called(count);
  for (size_t i = 0; i < count; ++i) AddCalled(*rules_->rules[i].body, first_only, called[i]);
  std::vector<uint32_t> index(count, kNone);
  std::vector<uint32_t> low(count, 0);
  std::vector<uint32_t> component(count, kNone);
  std::vector<uint32_t> open;
  uint32_t next_index = 0;
  uint32_t next_component = 0;
  for (uint32_t root = 0; root < count; ++root) {
    if (index[root] != kNone) continue;
    std::vector<std::pair<uint32_t, size_t>> path = {{root, 0}};
    while (!path.empty()) {
      auto& [rule, edge] = path.back();
      if (edge == 0 && index[rule] == kNone) {
        index[rule] = low[rule] = next_index++;
        open.push_back(rule);
      }
      if (edge < called[rule].size()) {
        const uint32_t other = called[rule][edge++];
        if (index[other] == kNone) {
          path.emplace_back(other, 0);
        } else if (component[other] == kNone) {
          low[rule] = std::min(low[rule], index[other]);
        }
        continue;
      }
      const uint32_t done = rule;
      path.pop_back();
      if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[done]);
      if (low[done] != index[done]) continue;
      for (uint32_t member = kNone; member != done;) {
        member = open.back();
        open.pop_back();
        component[member] = next_component;
        order.push_back(member);
      }
      ++next_component;
    }
  }
  return component;
}

void RuleAnalysis::FindGroups() {
  std::vector<uint32_t> order;
  group_ = Components(/*first_only=*/true, order);
  std::vector<uint32_t> sizes(group_.size());
  for (const uint32_t group : group_) ++sizes[group];
  const std::vector<uint32_t> components = group_;
  std::vector<uint32_t> called;
  for (uint32_t rule = 0; rule < group_.size(); ++rule) {
    if (sizes[components[rule]] > 1) continue;
    called.clear();
    AddCalled(*rules_->rules[rule].body, true, called);
    if (std::find(called.begin(), called.end(), rule) == called.end()) group_[rule] = kNoGroup;
  }
}

bool RuleAnalysis::BeginsWith(const ExprNode& expr, uint32_t group) const {
  std::vector<uint32_t> called;
  AddCalled(expr, true, called);
  return std::any_of(called.begin(), called.end(), [&](uint32_t rule) { return group_[rule] == group; });
}

}  // namespace dsv4::grammar
