// What attention launched last, for the op behind it (DeviceQueue::LaunchInPlaceOf).
#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/kernels/attention/sequences.h"

namespace dsv4::backend::cuda {

struct AttentionOverRanks;  // kernels/attention/attention_over_ranks.cuh

// The op rope on what attention gives; no frequencies: not asked for.
struct OutputRotation {
  const float* frequencies;
  const int32_t* positions;
  Fault* fault;
  int num_frequencies;
  bool inverse;
};

struct OpenAttention {
  uint64_t launch = 0;
  // Of decode_cluster.cu, which may fuse with a rotation of its output.
  SequenceTable table;
  AttentionParams params = {};
  int64_t num_tiles = 0;  // At most, of all keys.
  // Or of attention_over_ranks.cu.
  std::shared_ptr<AttentionOverRanks> over_ranks;
};

}  // namespace dsv4::backend::cuda
