#include "grammar/constraint.h"

#include <utility>

#include "base/check.h"

namespace dsv4::grammar {

GrammarConstraint::GrammarConstraint(Matcher matcher)
    : matcher_(std::move(matcher)), mask_(matcher_.num_ids()) {}

std::span<const uint64_t> GrammarConstraint::Allowed() {
  matcher_.Mask(mask_);
  return mask_.words();
}

void GrammarConstraint::Accept(int32_t token) {
  // The sampler takes what Allowed() says.
  const Status status = matcher_.Accept(token);
  DSV4_CHECK(status.ok()) << status.ToString();
}

size_t GrammarConstraint::CountAllowed(std::span<const int32_t> draft) {
  return matcher_.CountAllowed(draft);
}

std::vector<int32_t> GrammarConstraint::Forced(size_t most) { return matcher_.ForcedTokens(most); }

}  // namespace dsv4::grammar
