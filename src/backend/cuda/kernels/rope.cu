#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;

// A block takes kThreads pairs of a token, after the angles of its position. Grid: tokens, pieces.
template <typename T>
__global__ void RopeKernel(T* x, const int32_t* positions, const float* frequencies, int64_t num_heads,
                           int64_t width, int64_t num_frequencies, bool inverse, Fault* fault) {
  BeginKernel();
  extern __shared__ double cosines[];
  double* const sines = cosines + num_frequencies;
  const int64_t token = blockIdx.x;
  const int32_t position = positions[token];
  if (position < 0) {
    if (threadIdx.x == 0 && blockIdx.y == 0) ReportFault(fault, FaultKind::kPosition, token, 0, position, 0);
    return;
  }
  for (int64_t i = threadIdx.x; i < num_frequencies; i += blockDim.x) {
    // The angle is one fp32 product; its cosine and sine are as exact as double makes them.
    const float angle = static_cast<float>(position) * frequencies[i];
    double sine = 0.0;
    sincos(static_cast<double>(angle), &sine, &cosines[i]);
    sines[i] = inverse ? -sine : sine;
  }
  __syncthreads();
  const int64_t pair = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (pair < num_heads * num_frequencies) {
    const int64_t head = pair / num_frequencies;
    const int64_t i = pair % num_frequencies;
    T* const rotary = x + (token * num_heads + head + 1) * width - 2 * num_frequencies;
    const double even = Load(rotary, 2 * i);
    const double odd = Load(rotary, 2 * i + 1);
    Store(rotary, 2 * i, even * cosines[i] - odd * sines[i]);
    Store(rotary, 2 * i + 1, even * sines[i] + odd * cosines[i]);
  }
}

}  // namespace

Status Rope(CudaContext& context, const ops::RopeArgs& args) {
  if (args.x.num_elements() == 0 || args.frequencies.shape[0] == 0) return {};
  const int64_t num_frequencies = args.frequencies.shape[0];
  const auto shared_bytes = static_cast<size_t>(2 * num_frequencies) * sizeof(double);
  constexpr size_t kMaxSharedBytes = 48 * 1024;
  if (shared_bytes > kMaxSharedBytes) {
    return Unimplemented("op rope: frequencies: " + args.frequencies.shape.ToString() +
                         ", this backend takes up to 3072");
  }
  const dim3 grid(static_cast<unsigned>(args.x.shape[0]),
                  static_cast<unsigned>(CeilDiv(args.x.shape[1] * num_frequencies, kThreads)));
  WithElement(args.x.dtype, [&]<typename T>(T*) {
    context.Launch(RopeKernel<T>, grid, kThreads, shared_bytes, args.x.as<T>(),
                   args.positions.as<const int32_t>(), args.frequencies.as<const float>(), args.x.shape[1],
                   args.x.shape[2], num_frequencies, args.inverse, context.fault());
  });
  return {};
}

}  // namespace dsv4::backend::cuda
