// A request's wishes for the sampler. Plain values with defaults that change nothing: temperature 1, no
// filter, no penalty.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"

namespace dsv4::sampling {

struct SamplingParams {
  // >= 0. 0 means greedy: the highest logit after bias and penalties, lowest id on ties; filters and seed
  // then do nothing.
  float temperature = 1.0F;
  // Keep the k highest; 0 keeps all.
  int top_k = 0;
  // Keep the smallest set of highest probabilities whose sum reaches top_p, in (0, 1]; 1 keeps all.
  float top_p = 1.0F;
  // Drop what is less probable than min_p times the most probable, in [0, 1); 0 keeps all.
  float min_p = 0.0F;
  // > 0; 1 is off. A seen token's logit is divided by it when positive and multiplied when negative (CTRL,
  // 2019).
  float repetition_penalty = 1.0F;
  // Subtracted once from the logit of every seen token, in [-2, 2] by custom; 0 is off.
  float presence_penalty = 0.0F;
  // Subtracted once per occurrence; 0 is off.
  float frequency_penalty = 0.0F;
  // Penalties see the last `penalty_window` tokens of prompt and output together; 0 means all of them.
  int penalty_window = 256;
  // Added to the logit of a token id before anything else.
  std::map<int32_t, float> logit_bias;
  // The draw for the n-th output token depends on (seed, n) and the logits only, so neither batch neighbours
  // nor scheduling change it.
  uint64_t seed = 0;
};

// InvalidArgument names the field, what it got and what it wants. `vocab_size` bounds logit_bias ids.
Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size);

}  // namespace dsv4::sampling
