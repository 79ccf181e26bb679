// A grammar as the engine wants it: sampling::TokenConstraint over a Matcher.
#pragma once

#include <span>

#include "grammar/matcher.h"
#include "sampling/token_constraint.h"

namespace dsv4::grammar {

class GrammarConstraint final : public sampling::TokenConstraint {
 public:
  explicit GrammarConstraint(Matcher matcher);

  std::span<const uint64_t> Allowed() override;
  void Accept(int32_t token) override;

 private:
  Matcher matcher_;
  TokenMask mask_;
};

}  // namespace dsv4::grammar
