// Final steps for many sums of a thread: what Unpack's Finish (gemm_mma.cuh) does with one, without its
// division.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_mma.cuh"

namespace dsv4::backend::cuda {

// Computes 1 / x to 2^-52, without a call. A quotient of two floats is that far from all halves between
// floats. So a product with this that is rounded to fp32 is the rounded quotient.
__device__ __forceinline__ double ReciprocalOfFloat(double x) {
  double approximation;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(approximation) : "d"(x));
  double y = approximation;
#pragma unroll
  for (int i = 0; i < 3; ++i) y = fma(y, fma(-x, y, 1.0), y);
  // For 0 and for infinity, which is what a matrix of zeros may divide by, the approximation is exact, and
  // the steps are NaN.
  return isnan(y) ? approximation : y;
}
// NVFP4: the exact product of two floats, rounded once, by way of double or not.
template <MatmulKind kKind, int kCount>
__device__ __forceinline__ void FinishSums(bool global_scale_divides, float global_scale,
                                           float (&sums)[kCount]) {
  if constexpr (kKind == MatmulKind::kMmaNvFp4) {
    const float factor = global_scale * 0x1p26F;
    if (!global_scale_divides && isfinite(factor)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = sums[i] * factor;
      return;
    }
    const auto global = static_cast<double>(global_scale);
    const double wide = (global_scale_divides ? ReciprocalOfFloat(global) : global) * 0x1p26;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i] = static_cast<float>(static_cast<double>(sums[i]) * wide);
      // One after the other: doubles of all would not fit in registers.
      asm volatile("" : "+f"(sums[i])::"memory");
    }
  }
}

}  // namespace dsv4::backend::cuda
