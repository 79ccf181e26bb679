// Kernel that finds a power of two for each row of MXFP4 experts under which its values are exact e4m3.
#include <algorithm>
#include <string>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/weights/e4m3_experts.h"
#include "base/log.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMatrices = 3;  // Matrices of an expert in its table.
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

Result<const E4m3Experts*> FindE4m3Experts(CudaContext& context, const ExpertTable& table,
                                           int64_t num_experts) {
  if (table.e4m3 != nullptr) return table.e4m3.get();
  auto found = std::make_shared<E4m3Experts>();
  found->max_rows = std::max(table.w1.rows, table.w2.rows);
  const int64_t num_scales = num_experts * kMatrices * found->max_rows;
  // The count lies behind them.
  const int64_t count_at = CeilDiv(num_scales, sizeof(int)) * static_cast<int64_t>(sizeof(int));
  DSV4_ASSIGN_OR_RETURN(found->buffer,
                        context.memory().Allocate(static_cast<size_t>(count_at) + sizeof(int)));
  auto* const scales = static_cast<uint8_t*>(found->buffer.data());
  found->largest_scales = scales;
  const dim3 grid(static_cast<unsigned>(CeilDiv(found->max_rows, kWarps)),
                  static_cast<unsigned>(num_experts * kMatrices));
  context.Launch(E4m3ExpertsLargestScalesKernel, grid, 32 * kWarps, 0, table.weights, scales, found->max_rows,
                 reinterpret_cast<int*>(scales + count_at));
  int inexact = 0;
  DSV4_TRY(context.memory().CopyToHost(&inexact, scales + count_at, sizeof(inexact), nullptr));
  found->exact = inexact == 0;
  if (!found->exact) {
    context.CountInexactExperts();
    LogWarning("backend cuda: " + std::to_string(num_experts) + " routed experts of [" +
               std::to_string(table.w1.rows) + ", " + std::to_string(table.w1.cols) + "]: the scales of " +
               std::to_string(inexact) +
               " rows lie further apart than e4m3 reaches; DSV4_CUDA_FP8_PRODUCTS leaves them in bf16");
  }
  table.e4m3 = std::move(found);
  return table.e4m3.get();
}

}  // namespace dsv4::backend::cuda
