// Activations as the matrix kernels read them. They are rounded to FP8 where the weight asks for it. For
// tensor cores they are bf16 with rows of whole tiles, padded with zeros.
#pragma once

#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// Rows of a matrix kernel's x: bf16, or fp32 for MatmulKind::kGeneral without rounding.
struct ActivationRows {
  const void* data = nullptr;
  int64_t stride = 0;  // Elements between rows.
  DType dtype = DType::kBF16;
};

// Columns that a matrix kernel may read of a row: its tile width.
inline constexpr int64_t kActivationPadding = 128;

// `x`: [num_rows, cols] of bf16 or f32 with `stride` elements between rows. `group`: columns that share a
// scale, 128 or 32; 0: they are not rounded. The result is x itself where it will do, else
// scratch of the op that runs.
Result<ActivationRows> PrepareActivations(LaunchContext& context, const void* x, DType dtype, int64_t stride,
                                          int64_t num_rows, int64_t cols, int group, MatmulKind kind);

}  // namespace dsv4::backend::cuda
