// FP8 to bf16 as weights are loaded: one thread a column of some rows. The product of a code and a power of two is exact.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/weights/widen_fp8.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 65535;

__global__ void WidenFp8Kernel(const WidenFp8Args args) {
  const int64_t col = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (col >= args.cols) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float scale =
        FloatFromE8m0(args.scales[row / args.block_rows * args.scale_cols + col / args.block_cols]);
    args.values[row * args.cols + col] = Bf16FromFloat(FromE4m3(args.codes[row * args.cols + col]) * scale);
  }
}

}  // namespace

cudaError_t LaunchWidenFp8(cudaStream_t stream, const WidenFp8Args& args) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.cols, kThreads)),
                  static_cast<unsigned>(std::min(args.rows, kMostBlocks)));
  WidenFp8Kernel<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace dsv4::backend::cuda
