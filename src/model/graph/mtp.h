// The MTP block (multi-token prediction): one layer behind the model's that drafts the tokens to come (model.md 10). Slot p joins the streams
// that the model left at position p with the embedding of the token at p + 1, and foretells the token at p + 2; it sees the slots of a window
// before it. The next slot of a draft takes the block's own streams and the token that was just drafted.
//
// A slot's row in the window depends on its streams and its token alone. So a pass of the model leaves streams and tokens in rings
// (kv/cache_layout.h), and window rows are made of them in blocks, or when a draft wants them: without attention, and without experts.
#pragma once

#include <cstdint>
#include <span>

#include "model/graph/draft_rows.h"
#include "model/graph/step.h"
#include "model/graph/trunk.h"

namespace dsv4::model {

// At the end of a pass, between BeginAppend and CommitAppend: keeps what drafts need of it, and makes the slots that a sequence of its new
// length has in any case. `trunk`: behind the stage's last layer; the last stage sends the model's streams to the first, which keeps them.
Status KeepForDrafts(const StepContext& context, const Graph& graph, const TrunkState& trunk);

// Sequences with most choices come first. Makes the slots that are missing, and drafts: row i's token number
// j goes to tokens[j, i], an I32 tensor of the backend, [most choices, rows]; faults, of the same shape, are
// those of op `sample`. `allowed` as in ChosenTokens.
Status RunDraft(const Graph& graph, Arena& arena, PassArrays& arrays, std::span<const DraftRow> rows,
                const TensorView& allowed, const TensorView& tokens, const TensorView& faults);

}  // namespace dsv4::model
