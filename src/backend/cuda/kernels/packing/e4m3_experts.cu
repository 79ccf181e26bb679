// Kernel that finds a power of two for each row of MXFP4 experts under which its values are exact e4m3.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/packing/e4m3_experts.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSmallestScale =
    1 + kE4m3LargestScale;  // The largest of a row whose power of two is a normal number.

// Grid: rows by kWarps, matrices. A warp a row; `inexact` counts rows.
__global__ void __launch_bounds__(32 * kWarps)
    E4m3ExpertsLargestScalesKernel(const DeviceWeight* weights, uint8_t* largest_scales, int64_t max_rows,
                                   int* inexact) {
  BeginKernel();
  const DeviceWeight& weight = weights[blockIdx.y];
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= weight.rows) return;
  const uint8_t* const scales = static_cast<const uint8_t*>(weight.scale) + row * weight.scale_cols;
  const auto* const blocks = reinterpret_cast<const uint4*>(weight.data + row * (weight.cols / 2));
  int largest = 0;
  int smallest = kE8m0NaN;
  for (int64_t i = threadIdx.x % 32; i < weight.scale_cols; i += 32) {
    const uint4 codes = blocks[i];
    const int scale = scales[i];
    const bool is_zero = ((codes.x | codes.y | codes.z | codes.w) & 0x77777777U) == 0;
    if (is_zero && scale != kE8m0NaN) continue;
    largest = max(largest, scale);
    smallest = min(smallest, scale);
  }
  largest = __reduce_max_sync(kWholeWarp, largest);
  smallest = __reduce_min_sync(kWholeWarp, smallest);
  if (threadIdx.x % 32 != 0) return;
  const bool is_zero = largest < smallest;
  const bool exact = largest != kE8m0NaN && largest >= kSmallestScale && largest - smallest <= kE4m3ScaleSpan;
  if (!is_zero && !exact) atomicAdd(inexact, 1);
  largest_scales[blockIdx.y * max_rows + row] = static_cast<uint8_t>(is_zero ? kE8m0Bias : largest);
}

}  // namespace

void LaunchLargestScales(LaunchContext& context, const DeviceWeight* weights, int64_t num_experts,
                         int64_t max_rows, uint8_t* largest_scales, int* inexact) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(max_rows, kWarps)),
                  static_cast<unsigned>(num_experts * kE4m3Matrices));
  context.Launch(E4m3ExpertsLargestScalesKernel, grid, 32 * kWarps, 0, weights, largest_scales, max_rows,
                 inexact);
}

}  // namespace dsv4::backend::cuda
