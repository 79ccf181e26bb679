// Tests of random draws of experts against trying all of them.
#include "model/placement/expert_draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace dsv4::model {
namespace {

// All subsets of `count` of `num_experts`, as bits.
std::vector<unsigned> Subsets(int64_t num_experts, int64_t count) {
  std::vector<unsigned> subsets;
  for (unsigned set = 0; set < 1U << num_experts; ++set)
    if (std::popcount(set) == count) subsets.push_back(set);
  return subsets;
}

// The same by trying every choice of up to three tokens and every set of cached experts that are not there.
// Experts by bit: the host's, cached ones, residents.
double ByTryingAll(const ExpertDraws& draws, const TierSeconds& seconds) {
  const std::vector<unsigned> choices = Subsets(draws.num_experts, draws.top_k);
  const std::vector<unsigned> none = {0};
  const unsigned host = (1U << draws.host) - 1;
  const unsigned cached = ((1U << draws.cached) - 1) << draws.host;
  double sum = 0;
  for (const unsigned a : choices) {
    for (const unsigned b : draws.batch > 1 ? choices : none) {
      for (const unsigned c : draws.batch > 2 ? choices : none) {
        const unsigned chosen = a | b | c;
        for (unsigned absent = 0; absent < 1U << draws.num_experts; ++absent) {
          if ((absent & ~cached) != 0) continue;
          const int away = std::popcount(absent);
          const double p = std::pow(draws.miss_share, away) *
                           std::pow(1 - draws.miss_share, static_cast<double>(draws.cached) - away);
          sum += p * std::max({std::popcount(chosen & host) * seconds.host,
                               std::popcount(chosen & absent) * seconds.link,
                               std::popcount(chosen & ~host) * seconds.device});
        }
      }
    }
  }
  return sum / std::pow(static_cast<double>(choices.size()), static_cast<double>(draws.batch));
}

TEST(ExpertDraws, AreCountedAsTryingAllOfThemSays) {
  const TierSeconds seconds{.host = 2.0, .link = 3.0, .device = 0.7};
  for (const int64_t batch : {1, 2, 3}) {
    for (const double miss_share : {0.0, 0.3, 1.0}) {
      for (const auto& [host, cached] : {std::pair{0, 0}, {7, 0}, {0, 7}, {3, 4}, {2, 3}, {1, 1}}) {
        const ExpertDraws draws{.num_experts = 7,
                                .top_k = 3,
                                .batch = batch,
                                .host = host,
                                .cached = cached,
                                .miss_share = miss_share};
        EXPECT_NEAR(MeanSlowestTier(draws, seconds), ByTryingAll(draws, seconds), 1e-9)
            << batch << " tokens, host " << host << ", cached " << cached << ", missed " << miss_share;
      }
    }
  }
}

TEST(ExpertDraws, OfARealLayer) {
  const TierSeconds seconds{.host = 1, .link = 1};
  ExpertDraws draws{.num_experts = 256, .top_k = 6, .host = 256};
  EXPECT_NEAR(MeanSlowestTier(draws, seconds), 6, 1e-9);
  draws.batch = 64;  // 256 experts, of which a token leaves out 250 of 256.
  EXPECT_NEAR(MeanSlowestTier(draws, seconds), 256 * (1 - std::pow(250.0 / 256.0, 64)), 1e-6);
  draws.top_k = 300;  // No more than there are.
  EXPECT_NEAR(MeanSlowestTier(draws, seconds), 256, 1e-9);
}

}  // namespace
}  // namespace dsv4::model
