// Work of attention and indexer_select, as they record it and as kernels are told it.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/device/sync/fault.h"
#include "backend/cuda/lowering/work/attention_params.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

// attention by kernels/attention/decode_cluster.cu.
struct AttentionWork {
  SequenceTable table;
  AttentionParams params;
  int64_t max_keys;  // The most that any query sees.
};

// The op rope on what attention gives; no frequencies: not asked for.
struct OutputRotation {
  const float* frequencies;
  const int32_t* positions;
  Fault* fault;
  int num_frequencies;
  bool inverse;
};

// rope of x, [tokens, heads, width].
struct RopeWork {
  const void* x;
  DType dtype;
  Shape shape;
  OutputRotation rotation;
};

}  // namespace dsv4::backend::cuda
