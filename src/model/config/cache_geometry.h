// The cache a configuration asks for, as kv lays it out. Needs no weights, so `inspect` can plan memory from headers.
#pragma once

#include <cstdint>

#include "kv/cache_layout.h"
#include "model/config/config.h"
#include "model/config/numerics.h"
#include "model/placement/placement.h"

namespace dsv4::model {

// Of some layers of the configuration. Rows are BF16 with release numerics and F32 with plain ones. model_fingerprint is left 0:
// it depends on weights.
kv::CacheLayout CacheGeometry(const ModelConfig& config, const Range& layers, Numerics numerics,
                              int64_t max_chunk_tokens, int64_t max_rewind_tokens);

}  // namespace dsv4::model
