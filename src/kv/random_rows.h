// Made-up rows, for measurements at a depth that takes too long to compute: what a step costs depends on how many rows there are, and
// hardly on what they say.
#pragma once

#include <cstdint>

#include "kv/sequence_state.h"

namespace dsv4::kv {

// Appends rows to an empty state up to `length` tokens: every row that the next tokens need, of the size that a model's normed rows
// have and on the number grids that release numerics round them to (FP8; FP4 for the indexer's keys), stored as the layout says. Different seeds give
// different rows; a row is that of its seed, layer, kind and place, whichever of several ranks keeps it. The journal tells other ranks to
// do the same. FailedPrecondition for a state that is not empty; else errors are those of BeginAppend.
Status FillWithRandomRows(SequenceState& state, int64_t length, uint64_t seed);

}  // namespace dsv4::kv
