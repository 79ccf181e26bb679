// A grammar as the engine wants it: sampling::TokenConstraint over a Matcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/matcher.h"
#include "sampling/token_constraint.h"

namespace dsv4::grammar {

class GrammarConstraint final : public sampling::TokenConstraint {
 public:
  explicit GrammarConstraint(Matcher matcher);

  std::span<const uint64_t> Allowed() override;
  void Accept(int32_t token) override;
  size_t CountAllowed(std::span<const int32_t> draft) override;
  std::vector<int32_t> Forced(size_t most) override;

 private:
  Matcher matcher_;
  TokenMask mask_;
};

}  // namespace dsv4::grammar
