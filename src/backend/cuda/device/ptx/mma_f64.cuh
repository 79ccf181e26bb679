// Tensor cores for doubles.
#pragma once

#include "backend/cuda/device/ptx/generation.cuh"

namespace dsv4::backend::cuda {

// d += a b of step m16n8k8, which adds the eight products of an element one by one in ascending order, with
// fma's rounding.
__device__ __forceinline__ void AddDoubleProducts(double (&d)[4], const double (&a)[4], double b0,
                                                  double b1) {
  if constexpr (kIsHopperOrLater) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
    return;
  }
  // Four steps m8n8k4: the lower and the upper eight rows, the first four products and the last.
  const double b[2] = {b0, b1};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[step % 2 * 2]), "+d"(d[step % 2 * 2 + 1])
                 : "d"(a[step]), "d"(b[step / 2]));
  }
}

}  // namespace dsv4::backend::cuda
