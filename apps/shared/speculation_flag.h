// --speculation of `run`, `serve` and `bench`.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/engine.h"

namespace dsv4::apps {

inline constexpr const char* kSpeculationHelp =
    "Verify guessed tokens in one step; the answer is the same: auto, off, or suffix[:K] (what followed the "
    "same text before, always "
    "up to K tokens)";

// What the value says. InvalidArgument for others than auto, off, suffix and suffix:K with K of 1 to 64; and where `verifies`
// (--verify looks at steps of one row), for others than auto, which is off then, and off.
Result<engine::SpeculationOptions> ParseSpeculation(const std::string& value, bool verifies);

}  // namespace dsv4::apps
