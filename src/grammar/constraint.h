// A grammar as the engine wants it: sampling::TokenConstraint over a Matcher.
#pragma once

#include <optional>
#include <span>

#include "grammar/matcher.h"
#include "sampling/token_constraint.h"

namespace dsv4::grammar {

class GrammarConstraint final : public sampling::TokenConstraint {
 public:
  // With `begins_after` everything but the stop tokens is allowed until that token (the end of thinking) was sampled, itself included.
  explicit GrammarConstraint(Matcher matcher, std::optional<TokenId> begins_after = std::nullopt);

  std::span<const uint64_t> Allowed() override;
  void Accept(int32_t token) override;

 private:
  Matcher matcher_;
  TokenMask mask_;
  std::optional<TokenId> begins_after_;  // Empty once the grammar counts.
};

}  // namespace dsv4::grammar
