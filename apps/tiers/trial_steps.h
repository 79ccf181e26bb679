// Times a few whole steps of a model whose experts are not all resident (model/placement/expert_trial.h), as
// an answer of one sequence takes them. No state, no number and no bit of a later answer depends on it; what
// is in the cache of experts may.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "model/placement/expert_trial.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

// Counts of a stage's tiers since the model came.
struct TierCounts {
  int64_t host_experts = 0;
  double host_seconds = 0;
  int64_t missed = 0;      // Cached experts that were brought.
  int64_t disk_bytes = 0;  // Bytes that its process has read from disk.
};

struct TrialOptions {
  std::function<Result<std::vector<TierCounts>>()> counts;  // By stage; the same ones each time.
  int64_t prompt_tokens = 1;                                // Tokens that come first.
  // Steps that choose their tokens on the backend, each queued before the one in front has ended;
  // Model::can_queue.
  bool ahead = false;
};

// About a second where a step takes 20 ms, most of it the prompt; few steps where they are slow. Errors: of
// the model's steps, and Internal where one chooses no token.
Result<model::SeenTrial> TimeSteps(model::Model& model, const TrialOptions& options);

// Counts of this process, whose model is on `device`, the CUDA backend.
TierCounts CountsOf(const ops::Backend& device);

// Tokens of a prompt that fills the slots of cached experts, or the slots that the link fills in a second.
// Too few for the prompt to be streamed.
int64_t FillingTokens(const model::ExpertSplit& split, const model::ExpertCosts& costs);

}  // namespace dsv4::apps
