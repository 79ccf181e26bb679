// Norm, rotation and rounding of many heads' rows, which a warp keeps in registers.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/head_rows.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 4;

// Lane l has columns 64 j + 2 l and the next of its row, piece j by piece.
template <int kPieces>
using Row = float[kPieces][2];

// Sum that RowSum of kNarrowRowThreads threads gives, each with the columns that are congruent to it. Lane l
// holds the sum of thread 64 i + 2 l + e in sums[i][e]. The threads' sums are added in the order of WarpSum,
// then those of the four warps.
__device__ double SumOfThreads(const double (&sums)[2][2], int lane) {
  static_assert(kNarrowRowThreads == 128);
  const auto exchange = [](double value, int with) { return __shfl_xor_sync(kWholeWarp, value, with); };
  // Half the lanes go on with one half of the numbers, half with the other.
  const bool i = (lane & 8) != 0;
  double pair[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    pair[e] = i ? sums[1][e] : sums[0][e];
    pair[e] += exchange(i ? sums[0][e] : sums[1][e], 8);
  }
  const bool odd = (lane & 4) != 0;
  double sum = odd ? pair[1] : pair[0];
  sum += exchange(odd ? pair[0] : pair[1], 4);
  sum += exchange(sum, 2);
  sum += exchange(sum, 1);
  sum += exchange(sum, 4);
  double total = __shfl_sync(kWholeWarp, sum, 0);
  total += __shfl_sync(kWholeWarp, sum, 16);
  total += __shfl_sync(kWholeWarp, sum, 8);
  return total + __shfl_sync(kWholeWarp, sum, 24);
}

// Products of two bf16 are exact in fp32.
template <int kPieces>
__device__ void Norm(Row<kPieces>& row, float eps, int lane) {
  double sums[2][2] = {};
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) sums[j % 2][e] += static_cast<double>(RoundToBf16(row[j][e] * row[j][e]));
  }
  const double mean = HeldIn(MeanOf(SumOfThreads(sums, lane), kPieces * 64), true);
  const double shifted = HeldIn(mean + static_cast<double>(eps), true);
  const auto factor = static_cast<float>(HeldIn(1.0 / sqrt(shifted), true));
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) row[j][e] = RoundToBf16(row[j][e] * factor);
  }
}

// As HadamardFp4Row.
__device__ void HadamardFp4(Row<2>& row, int lane) {
  constexpr int kWidth = 128;
  double wide[2][2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    wide[j][0] = static_cast<double>(row[j][0]) + static_cast<double>(row[j][1]);
    wide[j][1] = static_cast<double>(row[j][0]) - static_cast<double>(row[j][1]);
  }
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
    const bool high = (lane & half) != 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const double other = __shfl_xor_sync(kWholeWarp, wide[j][e], half);
        wide[j][e] = high ? other - wide[j][e] : wide[j][e] + other;
      }
    }
  }
  const double factor = 1.0 / sqrt(static_cast<double>(kWidth));
  constexpr float kFloor = 6 * 0x1p-126F;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const double low = wide[0][e] + wide[1][e];
    wide[1][e] = wide[0][e] - wide[1][e];
    wide[0][e] = low;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    // Groups of 32 columns are halves of the warp.
    float rotated[2];
    float max = kFloor;
    bool is_nan = false;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      rotated[e] = static_cast<float>(HeldIn(wide[j][e] * factor, true));
      max = fmaxf(max, fabsf(rotated[e]));
      is_nan = is_nan || isnan(rotated[e]);
    }
    for (int offset = 8; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    const unsigned nans = __ballot_sync(kWholeWarp, is_nan);
    const bool has_nan = (nans >> (lane & 16) & 0xFFFFU) != 0;
    const float scale = PowerOfTwoScale(max, __uint_as_float(0x3E2AAAABU));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      row[j][e] =
          RoundToBf16(has_nan ? __uint_as_float(0x7FC00000U) : RoundToE2m1(rotated[e] / scale) * scale);
    }
  }
}

// A warp a few rows, which share a position.
template <int kPieces>
__global__ void __launch_bounds__(32 * kWarps) HeadRowsKernel(const __grid_constant__ HeadRows p) {
  LetNextKernelStart();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = (blockIdx.x * int64_t{kWarps} + threadIdx.x / 32) * kHeadRowsOfWarp;
  if (first >= p.num_rows) return;
  // Positions and frequencies come from the host, and no kernel in flight writes them.
  int32_t position = 0;
  double2 rotation = {};
  if (p.has_rope) {
    position = p.positions[first / p.group];
    if (position >= 0) rotation = Rotation(position, p.frequencies[lane], p.inverse);
  }
  WaitForKernelsBefore();
  if (p.has_rope && position < 0 && lane == 0 && first % p.group == 0)
    ReportFault(p.fault, FaultKind::kPosition, first / p.group, 0, position, 0);
  // Rotation alone leaves the other columns as they are.
  const int begin = p.has_norm || p.has_hadamard || p.in != p.out ? 0 : kPieces - 1;
  const int count = static_cast<int>(min(int64_t{kHeadRowsOfWarp}, p.num_rows - first));
  uint32_t words[kHeadRowsOfWarp][kPieces];
#pragma unroll
  for (int r = 0; r < kHeadRowsOfWarp; ++r) {
    const auto* const in =
        reinterpret_cast<const uint32_t*>(p.in + (first + min(r, count - 1)) * p.in_stride) + lane;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) words[r][j] = j >= begin ? in[j * 32] : 0;
  }
#pragma unroll
  for (int r = 0; r < kHeadRowsOfWarp; ++r) {
    Row<kPieces> row;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      row[j][0] = __uint_as_float(words[r][j] << 16);
      row[j][1] = __uint_as_float(words[r][j] & 0xFFFF0000U);
    }
    if (p.has_norm) Norm<kPieces>(row, p.eps, lane);
    if (p.has_rope && position >= 0) {
      float(&pair)[2] = row[kPieces - 1];
      const float2 rotated = Rotated(pair[0], pair[1], rotation, true);
      pair[0] = rotated.x;
      pair[1] = rotated.y;
    }
    if constexpr (kPieces == 2) {
      if (p.has_hadamard) HadamardFp4(row, lane);
    }
    if (r >= count) break;
    auto* const out = reinterpret_cast<uint32_t*>(p.out + (first + r) * p.out_stride) + lane;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (j >= begin)
        out[j * 32] = __byte_perm(__float_as_uint(row[j][0]), __float_as_uint(row[j][1]), 0x7632);
    }
  }
}

}  // namespace

void LaunchHeadRows(LaunchContext& context, const HeadRows& rows) {
  const auto blocks = static_cast<unsigned>(CeilDiv(rows.num_rows, int64_t{kWarps} * kHeadRowsOfWarp));
  context.Launch(rows.width == 128 ? HeadRowsKernel<2> : HeadRowsKernel<8>, blocks, 32 * kWarps, 0, rows);
}

}  // namespace dsv4::backend::cuda
