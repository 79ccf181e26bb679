// simulate_fp8 and hadamard_fp4: rounding to the grids of the caches, in place.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"

namespace dsv4::backend::cuda {
namespace {

// One warp a group.
template <typename T>
__global__ void SimulateFp8Kernel(T* x, int64_t stride, int64_t num_rows, int64_t groups_per_row,
                                  int64_t group) {
  BeginKernel();
  const int64_t index = blockIdx.x * int64_t{blockDim.x / 32} + threadIdx.x / 32;
  if (index >= num_rows * groups_per_row) return;
  T* const values = x + index / groups_per_row * stride + index % groups_per_row * group;
  float max = 0.0F;
  for (int64_t i = threadIdx.x % 32; i < group; i += 32) max = fmaxf(max, fabsf(ToFloat(values[i])));
  const float scale = Fp8GroupScale(WarpMax(max));
  for (int64_t i = threadIdx.x % 32; i < group; i += 32) {
    values[i] = FromFloat<T>(RoundToFp8Grid(ToFloat(values[i]), scale));
  }
}

// One block a row, which lies in shared memory while it is rotated.
template <typename T>
__global__ void HadamardFp4Kernel(T* x, int width, double factor) {
  BeginKernel();
  extern __shared__ double row[];
  T* const values = x + blockIdx.x * int64_t{width};
  for (int i = threadIdx.x; i < width; i += blockDim.x) row[i] = Load(values, i);
  for (int half = 1; half < width; half *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < width / 2; i += blockDim.x) {
      const int low = i / half * 2 * half + i % half;
      const double a = row[low];
      const double b = row[low + half];
      row[low] = a + b;
      row[low + half] = a - b;
    }
  }
  __syncthreads();
  // Groups of 32 are warps: blockDim is a multiple of 32 and so is the width.
  constexpr float kFloor = 6 * 0x1p-126F;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const float rotated = static_cast<float>(Held<T>(row[i] * factor));
    const bool has_nan = __any_sync(kWholeWarp, isnan(rotated));
    const float max = fmaxf(WarpMax(fabsf(rotated)), kFloor);
    const float scale = PowerOfTwoScale(max, __uint_as_float(0x3E2AAAABU));
    values[i] = FromFloat<T>(has_nan ? __uint_as_float(0x7FC00000U) : RoundToE2m1(rotated / scale) * scale);
  }
}

}  // namespace

Status SimulateFp8(CudaContext& context, const ops::SimulateFp8Args& args) {
  const int64_t num_rows = args.x.shape[0];
  if (num_rows == 0 || args.num_columns == 0) return {};
  const int64_t groups = args.num_columns / args.group;
  constexpr int kWarps = 4;
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(SimulateFp8Kernel<T>, static_cast<unsigned>(CeilDiv(num_rows * groups, kWarps)),
                   32 * kWarps, 0, args.x.as<T>(), args.x.strides[0], num_rows, groups, args.group);
  });
  return {};
}

Status HadamardFp4(CudaContext& context, const ops::HadamardFp4Args& args) {
  const int64_t width = args.x.shape[1];
  if (args.x.num_elements() == 0) return {};
  constexpr int64_t kMaxWidth = 4096;  // 32 KB of shared memory.
  if (width > kMaxWidth) {
    return Unimplemented("op hadamard_fp4: x: " + args.x.shape.ToString() +
                         ", this backend takes rows of up to 4096");
  }
  const double factor = 1.0 / std::sqrt(static_cast<double>(width));
  const auto threads = static_cast<unsigned>(std::min<int64_t>(width, 256));
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(HadamardFp4Kernel<T>, static_cast<unsigned>(args.x.shape[0]), threads,
                   static_cast<size_t>(width) * sizeof(double), args.x.as<T>(), static_cast<int>(width),
                   factor);
  });
  return {};
}

}  // namespace dsv4::backend::cuda
