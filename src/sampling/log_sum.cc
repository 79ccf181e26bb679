// Sums of the logits of a vocabulary on the host.
#include "sampling/log_sum.h"

#include <algorithm>

#include "sampling/ranking.h"

namespace dsv4::sampling {

LogSum SumOf(std::span<const float> logits) {
  LogSum sum{.highest = Highest(logits) + 0.0F};  // No -0.
  const bool wrong = std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); });
  if (wrong) sum.highest = std::numeric_limits<float>::quiet_NaN();
  if (!std::isfinite(sum.highest)) return sum;
  for (const float logit : logits) sum.Add(logit);
  return sum;
}

}  // namespace dsv4::sampling
