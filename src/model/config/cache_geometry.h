// The cache a configuration asks for, as kv lays it out. Needs no weights, so `inspect` can plan memory from
// headers.
#pragma once

#include <cstdint>
#include <span>

#include "kv/cache_layout.h"
#include "model/config/config.h"
#include "model/config/layer_plan.h"
#include "model/config/numerics.h"

namespace dsv4::model {

// How rows are kept that release numerics round before they are stored: as the codes that they were rounded
// to, or widened to BF16. Either way they are the same numbers.
enum class CacheRows : uint8_t { kPacked, kWide };

// Cache of layers whose states are counted in this order; one that reads another's entries keeps none. Plain
// numerics round nothing: rows are F32. With release numerics, packed, window rows and entries are FP8 in
// groups of 64 but for the rotary columns. Indexer keys are FP4 in groups of 32.
kv::CacheLayout CacheGeometry(const ModelConfig& config, std::span<const LayerPlan> layers, Numerics numerics,
                              CacheRows rows, int64_t max_chunk_tokens, int64_t max_rewind_tokens);

// Whether every shard keeps all entries: candidate blocks are chosen among all of them, which are few bytes a
// token there.
inline bool KeepsEntriesWhole(const ModelConfig& config) { return config.candidate_topk_blocks > 0; }

// Cache of a draft block (MTP), and of a stage of a DSpark drafter, behind those layers.
kv::LayerCacheLayout DraftBlockGeometry(const ModelConfig& config);
kv::LayerCacheLayout DsparkStageGeometry(const ModelConfig& config, const DsparkConfig& dspark, bool first);

}  // namespace dsv4::model
