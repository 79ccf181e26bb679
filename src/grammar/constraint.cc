#include "grammar/constraint.h"

#include <utility>

#include "base/check.h"

namespace dsv4::grammar {

GrammarConstraint::GrammarConstraint(Matcher matcher, std::optional<TokenId> begins_after)
    : matcher_(std::move(matcher)), mask_(matcher_.num_ids()), begins_after_(begins_after) {}

std::span<const uint64_t> GrammarConstraint::Allowed() {
  if (begins_after_) return {};
  matcher_.Mask(mask_);
  return mask_.words();
}

void GrammarConstraint::Accept(int32_t token) {
  if (begins_after_) {
    if (token == *begins_after_) begins_after_.reset();
    return;
  }
  // The sampler takes what Allowed() says.
  const Status status = matcher_.Accept(token);
  DSV4_CHECK(status.ok()) << status.ToString();
}

}  // namespace dsv4::grammar
