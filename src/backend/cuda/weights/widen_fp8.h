// FP8 in blocks as bf16: of weights whose blocks the matrix kernels do not know (WidensToBf16).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dsv4::backend::cuda {

// Device memory: codes of e4m3 [rows, cols], scales of e8m0 [ceil(rows / block_rows), scale_cols], values of bf16 [rows, cols].
struct WidenFp8Args {
  const uint8_t* codes;
  const uint8_t* scales;
  uint16_t* values;
  int64_t rows;
  int64_t cols;
  int64_t block_rows;
  int64_t block_cols;
  int64_t scale_cols;
};
cudaError_t LaunchWidenFp8(cudaStream_t stream, const WidenFp8Args& args);

}  // namespace dsv4::backend::cuda
