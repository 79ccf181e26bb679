// Choice: which token is taken, given the logits of all. It is defined to the last bit: the sampler on the
// host and the op `sample` on any device take the same token.
//
//   highest   the highest logit; +0 and -0 are equal
//   exponent  (logit - highest) / temperature, each step rounded to float
//   weight    ExpOfNonPositive(exponent), rounded to a multiple of 2^-35. Weights are at most 1, so sums of up to kMaxChoices are
//             exact doubles, in whatever order they are made.
//   rank      by logit, the highest first, the lowest id first on ties; -infinity has none
//
// Three limits choose the kept tokens, one after the other. The first top_k in rank are kept. The fewest of
// these are kept whose weights sum to at least top_p times the sum of all of them (in double). Of these,
// tokens are kept whose exponent is at least log(min_p), rounded to float. The sum of kept weights in the
// order of ids decides the draw. The first token with which it is more than uniform times the sum of all kept
// ones (in double) is drawn. Temperature 0 takes the first in rank.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace dsv4::sampling {

// A larger vocabulary would make sums of weights inexact.
inline constexpr int64_t kMaxChoices = int64_t{1} << 18;

struct ChoiceParams {
  float temperature = 1.0F;  // >= 0; 0 is greedy, and nothing below matters.
  int32_t top_k = 0;         // 0 keeps all.
  float top_p = 1.0F;        // In (0, 1]; 1 keeps all.
  float min_p = 0.0F;        // In [0, 1); 0 keeps all.
  double uniform = 0.0;      // In [0, 1): UniformDraw's.

  bool has_filters() const { return top_k > 0 || top_p < 1.0F || min_p > 0.0F; }
  // Exponents below are dropped; -infinity without min_p.
  float lowest_exponent() const { return static_cast<float>(std::log(static_cast<double>(min_p))); }
};

// A number that is added to a token's logit before anything else. -infinity keeps the token from being chosen.
struct TokenBias {
  int32_t token = 0;
  float bias = 0.0F;
};

// Penalties of tokens that have been seen.
struct Penalties {
  float repetition = 1.0F;  // > 0; divides a logit above 0, multiplies another.
  float presence = 0.0F;    // Subtracted once,
  float frequency = 0.0F;   // and once for each time that the token was seen.

  bool any() const { return repetition != 1.0F || presence != 0.0F || frequency != 0.0F; }
  friend bool operator==(const Penalties& a, const Penalties& b) = default;
};

// A token, and how often penalties see it.
struct TokenCount {
  int32_t token = 0;
  int32_t count = 0;
};

// The logit by which a token is chosen that has a bias and was seen `count` times. -infinity stays. More than a float holds is the
// largest float.
constexpr float Adjusted(float logit, float bias, int32_t count, const Penalties& penalties) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (logit < -kMost) return logit;
  logit += bias;
  if (count > 0) {
    logit = logit > 0.0F ? logit / penalties.repetition : logit * penalties.repetition;
    logit -= penalties.presence + penalties.frequency * static_cast<float>(count);
  }
  return logit > kMost ? kMost : logit;
}

// A token that may be drawn, with its weight.
struct WeightedToken {
  int32_t id = 0;
  float weight = 0.0F;
};

// e^x for x <= 0, off by less than 3e-7 of it; 0 below -87, where floats lose their precision. Here and below every operation is rounded
// by itself: callers are compiled without fusing. Device code calls them too.
constexpr float ExpOfNonPositive(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds n to an integer, in the sum's low bits.
  constexpr float kRound = 12582912.0F;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r =
      (x - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts; products with the first are exact.
  const float tail = 1.0F / 24 + r * (1.0F / 120 + r * (1.0F / 720 + r * (1.0F / 5040)));
  const float series = 1.0F + r * (1.0F + r * (0.5F + r * (1.0F / 6 + r * tail)));
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const uint32_t keep = x < -87.0F ? 0U : ~0U;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(series) + (power << 23)) & keep);
}

// The weight of one logit.
constexpr float WeightOf(float logit, float highest, float temperature) {
  const float weight = ExpOfNonPositive((logit - highest) / temperature);
  // Floats from 2^-12 on are multiples of 2^-35 anyway. Chosen by bits, which loops do in vectors.
  constexpr float kFine = 0x1p-12F;
  const float rounded = (weight + kFine) - kFine;
  const uint32_t fine = weight < kFine ? ~0U : 0U;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) & fine) |
                              (std::bit_cast<uint32_t>(weight) & ~fine));
}

// The logits to choose among. A logit becomes -infinity where `allowed` (one entry a token; empty allows all)
// is 0. So it does where bit id % 64 of word id / 64 of `permitted` (empty permits all) is 0. `choices` is as
// long as `logits`. The id of the first logit that is NaN or +infinity, allowed or not: `choices` is then of
// no use.
std::optional<int32_t> TakeAllowed(std::span<const float> logits, std::span<const uint8_t> allowed,
                                   std::span<const uint64_t> permitted, std::span<float> choices);

// Tokens that the filters keep, in rank. Temperature > 0, and at least one logit is finite; at least one token is kept.
std::vector<WeightedToken> Keep(const ChoiceParams& params, std::span<const float> choices);

// The token, or nullopt if no logit is finite. `choices` hold no NaN and no +infinity, and are overwritten.
std::optional<int32_t> Choose(const ChoiceParams& params, std::span<float> choices);

}  // namespace dsv4::sampling
