// Hopper's tensor cores (wgmma) in FP8, twice the rate of bf16. A product is exact. A step's 32 products and
// the old sum are shifted to the largest of them and cut off some 13 bits below it. So sums are taken out to
// fp32 after few steps.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"

namespace dsv4::backend::cuda {

// Columns of one row that lie together in shared memory (128 bytes, as MatrixDescriptor wants them), and are
// added up in the unit.
inline constexpr int kE4m3Cols = 128;
inline constexpr int kE4m3Steps = kE4m3Cols / 32;

#define DSV4_EIGHT(i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// One step of 32 columns: d += A B^T, or d = A B^T where `adds` is 0; 64 rows of A, kColumns of B, both in
// shared memory, a step 32 bytes behind the one before. d as MatrixStep has it.
template <int kColumns>
struct E4m3Step;

template <>
struct E4m3Step<32> {
  static __device__ __forceinline__ void Add(float (&d)[16], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8)
        : "l"(a), "l"(b), "r"(adds));
  }
};

template <>
struct E4m3Step<64> {
  static __device__ __forceinline__ void Add(float (&d)[32], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24)
        : "l"(a), "l"(b), "r"(adds));
  }
};

template <>
struct E4m3Step<96> {
  static __device__ __forceinline__ void Add(float (&d)[48], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "%48, %49, p, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32), DSV4_EIGHT(40)
        : "l"(a), "l"(b), "r"(adds));
  }
};

template <>
struct E4m3Step<112> {
  static __device__ __forceinline__ void Add(float (&d)[56], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55}, "
        "%56, %57, p, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32), DSV4_EIGHT(40),
          DSV4_EIGHT(48)
        : "l"(a), "l"(b), "r"(adds));
  }
};

template <>
struct E4m3Step<128> {
  static __device__ __forceinline__ void Add(float (&d)[64], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1;\n}"
        : DSV4_EIGHT(0), DSV4_EIGHT(8), DSV4_EIGHT(16), DSV4_EIGHT(24), DSV4_EIGHT(32), DSV4_EIGHT(40),
          DSV4_EIGHT(48), DSV4_EIGHT(56)
        : "l"(a), "l"(b), "r"(adds));
  }
};

#undef DSV4_EIGHT

// A block of kE4m3Cols columns: d = A B^T. In two groups of steps, so that one can wait for the first.
template <int kColumns>
__device__ __forceinline__ void MultiplyE4m3Block(float (&d)[kColumns / 2], uint64_t a, uint64_t b) {
  FenceRegisters(d);
  BeginMatrixSteps();
#pragma unroll
  for (int step = 0; step < kE4m3Steps; ++step) {
    E4m3Step<kColumns>::Add(d, a + 2 * step, b + 2 * step, step > 0 ? 1 : 0);
    if (step == kE4m3Steps / 2 - 1) CommitMatrixSteps();
  }
  CommitMatrixSteps();
}

}  // namespace dsv4::backend::cuda
