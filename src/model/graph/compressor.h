// The compressor: pools every `compress_ratio` tokens to one entry and stores it. CSA layers run it twice,
// once for the entries that attention reads and once, with other weights, for the indexer's keys (model.md
// 6).
#pragma once

#include "model/checkpoint/weights.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

enum class CompressorPart : uint8_t { kMain, kIndexer };

// The raw rows of a pass, [n, channels * width] F32; where an entry is of one token, values of the
// activations' dtype and no scores.
struct CompressorRows {
  TensorView values;
  TensorView scores;
};

// Rows of tokens u [n, D].
Result<CompressorRows> ProjectRows(const LayerStep& step, CompressorPart part,
                                   const CompressorWeights& weights, const TensorView& u);

// Runs a pass's rows through the compressor: they go to the sequences' rings, completed entries to their
// pages. Entries stay in the arena, elsewhere than those of the layer's other compressor, so that a backend
// may make both at once.
Status Compress(const LayerStep& step, CompressorPart part, const CompressorWeights& weights,
                const CompressorRows& rows);

// The same where indexer keys come from the latents that become entries (KeySource::kLatents): makes both.
Status CompressLatents(const LayerStep& step, const LayerWeights& weights, const CompressorRows& rows);

}  // namespace dsv4::model
