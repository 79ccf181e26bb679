// MeanSlowestTier: what a layer waits for its routed experts, as choices fall on the tiers. Counted over all
// choices, not sampled.
#pragma once

#include <cstdint>

namespace dsv4::model {

// A layer's experts, and a step of `batch` tokens that each choose `top_k` different ones, all equally often.
struct ExpertDraws {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t batch = 1;
  int64_t host = 0;    // Among the experts, those that the host multiplies,
  int64_t cached = 0;  // those that are brought to the device where they are not there; others are resident.
  double miss_share = 0;  // Share of chosen cached ones that is brought.
};

// Seconds for one expert.
struct TierSeconds {
  double host = 0;    // Seconds for which the host multiplies it,
  double link = 0;    // that the link brings it,
  double device = 0;  // that the device reads it, brought or not.
};

// The expectation of the slowest of the three, which work side by side. An expert that several tokens choose
// counts once.
double MeanSlowestTier(const ExpertDraws& draws, const TierSeconds& seconds);

}  // namespace dsv4::model
