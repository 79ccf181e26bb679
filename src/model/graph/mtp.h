// The MTP block (multi-token prediction): one layer behind the model's that drafts the tokens to come
// (model.md 10). Slot p combines the streams that the model left at position p with the embedding of the
// token at p + 1. It predicts the token at p + 2, and sees the slots of a window before it. The next slot of
// a draft takes the block's own streams and the token that was just drafted.
//
// A slot's row in the window depends on its streams and its token alone. So a pass of the model leaves
// streams and tokens in rings (kv/cache_layout.h). Window rows are made of them in blocks, or when a draft
// wants them, without attention and without experts.
#pragma once

#include <cstdint>
#include <span>

#include "model/graph/draft_rows.h"
#include "model/graph/step.h"
#include "model/graph/trunk.h"

namespace dsv4::model {

// Called at the end of a pass, between BeginAppend and CommitAppend. Keeps the rows that drafts need, and
// makes the slots that a sequence of its new length has in any case. `trunk` is the state behind the stage's
// last layer. The last stage sends the model's streams to the first, which keeps them.
Status KeepForDrafts(const StepContext& context, const Graph& graph, const TrunkState& trunk);

// Sequences with most choices come first. Makes the slots that are missing, and drafts. Row i's token number
// j goes to tokens[j, i], an I32 tensor of the backend, [most choices, rows]. The faults have the same shape
// and are those of op `sample`. `allowed` as in ChosenTokens.
Status RunDraft(const Graph& graph, Arena& arena, PassArrays& arrays, std::span<const DraftRow> rows,
                const TensorView& allowed, const TensorView& tokens, const TensorView& faults);

}  // namespace dsv4::model
