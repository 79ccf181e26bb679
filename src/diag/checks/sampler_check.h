// sampler: what happens to the logits between the model and the token. Shows every stage, proves that the
// penalties see the prompt and reach the logits, and tests the distribution of the random path. Field lesson
// P3.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "diag/report/report.h"
#include "sampling/sampling_params.h"

namespace dsv4::diag {

struct SamplerInput {
  std::span<const float> logits;     // Logits of the prompt's last position.
  std::span<const int32_t> prompt;   // Prompt whose penalties are to be seen.
  std::span<const uint8_t> allowed;  // As in sampling/sampler.h; may be empty.
  sampling::SamplingParams params;   // Valid. What the stages are shown with.
  // The first token that the path under test chooses for this prompt: the engine, or a suspect in a test.
  std::function<Result<int32_t>(const sampling::SamplingParams& params)> first_token;
};

// Errors: those of first_token.
Result<CheckReport> CheckSampler(const SamplerInput& input);

}  // namespace dsv4::diag
