// sum_rows: one thread a column of a target; the rows of a target are listed on the host.
#include <numeric>
#include <vector>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/runtime/cuda_ops.h"

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

Status SumRows(CudaContext& context, const ops::SumRowsArgs& args) {
  if (args.out.num_elements() == 0) return {};
  const auto num_targets = static_cast<size_t>(args.out.shape[0]);
  const int64_t dim = args.out.shape[1];
  std::vector<int32_t> begins(num_targets + 1, 0);
  for (const int32_t target : args.targets) ++begins[static_cast<size_t>(target) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int32_t> order(args.targets.size());
  std::vector<int32_t> next(begins.begin(), begins.end() - 1);
  for (size_t i = 0; i < args.targets.size(); ++i)
    order[static_cast<size_t>(next[static_cast<size_t>(args.targets[i])]++)] = static_cast<int32_t>(i);
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<int32_t> device_begins,
                               context.Stage(std::span<const int32_t>(begins)));
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<int32_t> device_order,
                               context.Stage(std::span<const int32_t>(order)));
  const dim3 grid(static_cast<unsigned>(num_targets), static_cast<unsigned>(CeilDiv(dim, kThreads)));
  context.Launch(SumRowsKernel, grid, kThreads, 0, args.rows.as<const float>(), device_begins, device_order,
                 args.out.as<float>(), dim);
  return {};
}

}  // namespace dsv4::backend::cuda
