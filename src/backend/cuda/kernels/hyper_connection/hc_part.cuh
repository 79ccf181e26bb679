// A part of hc_pre's dot products (HcParts), as every kernel sums it, so that all give the same bits. Lane l
// has columns 4 (l % 8) to 4 (l % 8) + 3 of stream l / 8 of each of the part's runs. It adds their products
// one by one, in fp32 with one rounding each. The lanes' sums are then added as WarpSum adds them.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/lowering/select/hyper_connection.h"

namespace dsv4::backend::cuda {

inline constexpr int kLaneColumns = 4;

// A lane's columns of a run, as they are read, and as numbers.
template <typename T>
struct LaneColumns;
template <>
struct LaneColumns<float> {
  float4 raw;
  LaneColumns() = default;
  __device__ __forceinline__ explicit LaneColumns(const float* data)
      : raw(*reinterpret_cast<const float4*>(data)) {}
  __device__ __forceinline__ void Widen(float (&values)[kLaneColumns]) const {
    values[0] = raw.x;
    values[1] = raw.y;
    values[2] = raw.z;
    values[3] = raw.w;
  }
};
template <>
struct LaneColumns<Bf16> {
  uint2 raw;
  LaneColumns() = default;
  __device__ __forceinline__ explicit LaneColumns(const Bf16* data)
      : raw(*reinterpret_cast<const uint2*>(data)) {}
  __device__ __forceinline__ void Widen(float (&values)[kLaneColumns]) const {
    values[0] = __uint_as_float(raw.x << 16);
    values[1] = __uint_as_float(raw.x & 0xFFFF0000U);
    values[2] = __uint_as_float(raw.y << 16);
    values[3] = __uint_as_float(raw.y & 0xFFFF0000U);
  }
};

// Place of a lane's first column, from the start of a token's streams or a row of the matrix.
__device__ __forceinline__ int64_t LanePlace(int lane, int part, int64_t dim) {
  return lane / 8 * dim + part * kHcRunColumns + lane % 8 * kLaneColumns;
}

__device__ __forceinline__ void AddProducts(float& sum, const float (&a)[kLaneColumns],
                                            const float (&b)[kLaneColumns]) {
#pragma unroll
  for (int j = 0; j < kLaneColumns; ++j) sum = fmaf(a[j], b[j], sum);
}

// WarpSum of kCount sums at once, a power of two up to 32: lanes exchange what the other keeps. Lane i ends
// with sum i / (32 / kCount), in sums[0].
template <int kOffset = 16, int kCount>
__device__ __forceinline__ void SumOverLanes(float (&sums)[kCount]) {
  constexpr int kLeft = kCount * kOffset / 16;  // Sums of a lane by now.
  if constexpr (kLeft > 1) {
    const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
    for (int i = 0; i < kLeft / 2; ++i) {
      const float sent = upper ? sums[i] : sums[i + kLeft / 2];
      const float kept = upper ? sums[i + kLeft / 2] : sums[i];
      sums[i] = kept + __shfl_xor_sync(kWholeWarp, sent, kOffset);
    }
  } else {
    sums[0] += __shfl_xor_sync(kWholeWarp, sums[0], kOffset);
  }
  if constexpr (kOffset > 1) SumOverLanes<kOffset / 2>(sums);
}

// The part's columns of kRows rows to shared memory, [run][row][lane]. A lane's columns of a row are 16
// bytes, and a warp's lie side by side.
template <int kRows, int kThreads>
__device__ __forceinline__ void CopyMatrixOfPart(float4* matrix, const float* fn, int part, int num_parts,
                                                 int runs, int64_t dim) {
  for (int i = static_cast<int>(threadIdx.x); i < runs * kRows * 32; i += kThreads) {
    const int row = i / 32 % kRows;
    const int run = i / 32 / kRows;
    CopyAsync(matrix + i, fn + row * (kHcMult * dim) + LanePlace(i % 32, part, dim) +
                              int64_t{run} * num_parts * kHcRunColumns);
  }
  CommitCopies();
}
constexpr size_t MatrixOfPartBytes(int rows, int runs) {
  return static_cast<size_t>(rows) * static_cast<size_t>(runs) * 32 * sizeof(float4);
}

}  // namespace dsv4::backend::cuda
