// attention of a few tokens in one launch: a cluster of blocks takes 16 heads of a token through its tiles of keys and combines them
// through shared memory. Tiles, formula and the order of all sums are those of attention_mma.h, and so are the bits.
#pragma once

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/rope.h"

namespace dsv4::backend::cuda {

void DecodeCluster(CudaContext& context, const SequenceTable& table, const AttentionParams& params,
                   int64_t max_keys);

// Whether a rotation of attention's output has become part of its launch, which is the last.
bool RopeJoinsAttention(CudaContext& context, const ops::RopeArgs& args);

}  // namespace dsv4::backend::cuda
