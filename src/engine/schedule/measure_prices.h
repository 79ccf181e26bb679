// Prices of steps of several rows and of drafts of the block on this machine, measured before the first
// request. Prices that are learnt from requests begin with steps that a device meets for the first time. Rows
// that seem not to pay are then tried ever more seldom.
#pragma once

#include <cstdint>

#include "engine/schedule/prefill_policy.h"
#include "model/runtime/model.h"
#include "speculation/draft_policy.h"

namespace dsv4::engine {

struct PriceOptions {
  int64_t most_drafted = 4;     // Rows beside the first.
  int64_t most_mtp_tokens = 0;  // Tokens of the draft block; 0: it is not asked.
  double most_seconds = 0.5;    // Behind the first steps, which find a device cold.
};

// Tells the policy, of one sequence whose steps choose their tokens on the backend and are queued ahead
// (queued_stepper.cc). Does without what fails or has no time left, and leaves nothing in the model.
void MeasurePrices(model::Model& model, const PriceOptions& options, speculation::DraftPolicy& policy);

// Tells the policy what passes of prompts take, from few tokens to `most_tokens`, and `drafts` (may be null)
// what steps of as many rows do. Ends after a second or two.
void MeasurePasses(model::Model& model, int64_t most_tokens, PrefillPolicy& policy,
                   speculation::DraftPolicy* drafts);

}  // namespace dsv4::engine
