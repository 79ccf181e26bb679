// Facts that must be known of rules before nodes are made of them: which may be empty, which are regular, and
// which begin with themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "grammar/rules/rule_set.h"

namespace dsv4::grammar {

class RuleAnalysis {
 public:
  // `rules` outlives this. Errors: more of anything than is compiled (ResourceExhausted), before any of it is
  // made.
  static Result<RuleAnalysis> Of(const RuleSet& rules);

  bool MayBeEmpty(const ExprNode& expr) const;
  // The expression as one over bytes; empty when it is none, or one of more than kMaxFused states.
  std::optional<Regex> AsRegex(const ExprNode& expr) const;
  // Rules that lead to each other without a byte have one number; alone and not into itself: kNoGroup.
  static constexpr uint32_t kNoGroup = UINT32_MAX;
  uint32_t GroupOf(uint32_t rule) const { return group_[rule]; }
  // Whether a text of it may begin with a rule of the group.
  bool BeginsWith(const ExprNode& expr, uint32_t group) const;

  static constexpr size_t kMaxFused = 4000;

 private:
  // A rule or expression that is regular, and how large.
  struct Regular {
    Regex regex;
    size_t states = 0;
    int depth = 0;
  };
  explicit RuleAnalysis(const RuleSet& rules) : rules_(&rules) {}
  Status CheckSizes() const;
  void FindEmpty();
  void FindRegular();
  void FindGroups();
  std::optional<Regular> RegularOf(const ExprNode& expr) const;
  void AddCalled(const ExprNode& expr, bool first_only, std::vector<uint32_t>& out) const;
  // Rules in an order in which each comes behind those it leads to, as far as that goes; strongly connected
  // ones share a number.
  std::vector<uint32_t> Components(bool first_only, std::vector<uint32_t>& order) const;

  const RuleSet* rules_;
  std::vector<uint8_t> empty_;                   // By rule.
  std::vector<std::optional<Regular>> regular_;  // By rule.
  std::vector<uint32_t> group_;                  // By rule.
};

}  // namespace dsv4::grammar
