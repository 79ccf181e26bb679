// --speculation of `run`, `serve` and `bench`.
#pragma once

#include <string>

#include "apps/shared/model_flags.h"
#include "base/status.h"
#include "engine/engine.h"
#include "model/runtime/model.h"

namespace dsv4::apps {

inline constexpr const char* kSpeculationHelp =
    "Verify guessed tokens in one step; the answer is the same: auto, off, suffix[:K] (what followed the "
    "same text before), mtp[:K] (the model's draft block) or dspark[:K] (its drafter of blocks), always up "
    "to K "
    "tokens";

// Choice of the value, as speculation::ParseChoice reads it. InvalidArgument for other values; and where
// `verifies` (--verify looks at steps of one row), for others than auto, which is off then, and off.
Result<speculation::Choice> ParseSpeculation(const std::string& value, bool verifies);

// Has the model's drafter loaded for it, a draft block or one of DSpark; for auto only where a device has
// room for it.
void WantDrafter(const speculation::Choice& choice, ModelFlags& flags);

// The engine's options for it. Says in one line why a drafter of the model that was asked for is not there;
// drafts are then the suffix drafter's.
engine::SpeculationOptions SpeculationOf(const speculation::Choice& choice, const model::Model& model);

}  // namespace dsv4::apps
