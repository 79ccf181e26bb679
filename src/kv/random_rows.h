// Made-up rows, for measurements at a depth that takes too long to compute. The cost of a step depends on the
// number of rows, and hardly on their values.
#pragma once

#include <cstdint>

#include "kv/sequence_state.h"

namespace dsv4::kv {

// Appends rows to an empty state up to `length` tokens: every row that the next tokens need, stored as the
// layout says. Their size is that of a model's normed rows. They lie on the number grids of release numerics:
// FP8, and FP4 for the indexer's keys. Different seeds give different rows. A row depends on its seed, layer,
// kind and slot, whichever of several ranks keeps it. The journal tells other ranks to do the same.
// FailedPrecondition for a state that is not empty; else errors are those of BeginAppend.
Status FillWithRandomRows(SequenceState& state, int64_t length, uint64_t seed);

}  // namespace dsv4::kv
