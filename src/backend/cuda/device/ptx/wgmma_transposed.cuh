// Steps of wgmma with A in registers, whose B has the steps as rows.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"

namespace dsv4::backend::cuda {

#define DSV4_EIGHT(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// d += A B, or d = A B where `adds` is 0, of bf16: A as MatrixStep has it, B's descriptor is
// TransposedDescriptor's.
template <int kColumns>
struct TransposedMatrixStep;

template <>
struct TransposedMatrixStep<64> {
  static __device__ __forceinline__ void Add(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
};

template <>
struct TransposedMatrixStep<128> {
  static __device__ __forceinline__ void Add(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32), DSV4_EIGHT(40),
          DSV4_EIGHT(48), DSV4_EIGHT(56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
  }
};

#undef DSV4_EIGHT

}  // namespace dsv4::backend::cuda
