#include "grammar/constraint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4::grammar {

GrammarConstraint::GrammarConstraint(Matcher matcher, std::optional<TokenId> begins_after)
    : matcher_(std::move(matcher)), mask_(matcher_.num_ids()), begins_after_(begins_after) {
  if (!begins_after_) return;
  for (TokenId id = 0; id < matcher_.num_ids(); ++id) {
    const auto& stops = matcher_.stop_ids();
    if (std::find(stops.begin(), stops.end(), id) == stops.end()) mask_.Allow(id);
  }
}

std::span<const uint64_t> GrammarConstraint::Allowed() {
  if (!begins_after_) matcher_.Mask(mask_);
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
