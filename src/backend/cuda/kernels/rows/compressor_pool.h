// compressor_pool by a launch of its own.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/work/rows.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

class LaunchContext;

struct CompressorPoolParams {
  const float* values;
  const float* scores;
  const float* ape;
  int64_t width;  // Width of a row of values: channels * pooled width.
  int pooled_width;
  int ratio;
  bool overlap;
};
void LaunchCompressorPool(LaunchContext& context, const DeviceArray<CompressorHistory>& sequences,
                          const CompressorPoolParams& params, int64_t num_entries, const TensorView& pooled);

}  // namespace dsv4::backend::cuda
