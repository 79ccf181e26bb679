// Which products go to Blackwell's block-scaled tensor cores (kernels/sm100/block_scaled.h).
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

enum class BlockScaledMode : uint8_t {
  kOff,
  kFp8,  // Weights in FP8 and MXFP4, whose activations are rounded to FP8 anyway.
  kFp4,  // The same, and NVFP4 weights, whose activations are then rounded to NVFP4: other numerics than W4A16.
};

}  // namespace dsv4::backend::cuda
