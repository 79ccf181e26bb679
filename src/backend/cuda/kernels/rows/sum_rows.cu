// sum_rows: one thread a column of a target; the rows of a target are listed on the host.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/sum_rows.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

// Rows order[begins[t]] .. order[begins[t + 1] - 1] belong to target t.
__global__ void SumRowsKernel(const float* rows, const DeviceArray<int32_t> begins,
                              const DeviceArray<int32_t> order, float* out, int64_t dim) {
  BeginKernel();
  const int64_t target = blockIdx.x;
  const int64_t column = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (column >= dim) return;
  float sum = 0.0F;
  for (int32_t i = begins[target]; i < begins[target + 1]; ++i) sum += rows[order[i] * dim + column];
  out[target * dim + column] = sum;
}

}  // namespace

void LaunchSumRows(LaunchContext& context, const DeviceArray<int32_t>& begins,
                   const DeviceArray<int32_t>& order, const TensorView& rows, const TensorView& out) {
  const int64_t dim = out.shape[1];
  const dim3 grid(static_cast<unsigned>(out.shape[0]), static_cast<unsigned>(CeilDiv(dim, kThreads)));
  context.Launch(SumRowsKernel, grid, kThreads, 0, rows.as<const float>(), begins, order, out.as<float>(),
                 dim);
}

}  // namespace dsv4::backend::cuda
