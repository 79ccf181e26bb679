// The compressor: pools every `compress_ratio` tokens to one entry and stores it. CSA layers run it twice, once for the
// entries that attention reads and once, with other weights, for the indexer's keys (architecture.md 6).
#pragma once

#include "model/step_context.h"
#include "model/weights.h"

namespace dsv4::model {

enum class CompressorPart : uint8_t { kMain, kIndexer };

// Runs tokens u [n, D] through the compressor: the raw rows go to the sequences' rings, completed entries to their pages.
Status Compress(const LayerStep& step, CompressorPart part, const CompressorWeights& weights,
                const TensorView& u);

}  // namespace dsv4::model
