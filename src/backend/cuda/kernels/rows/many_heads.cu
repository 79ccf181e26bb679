// head_rms_norm and rope for many tokens of many heads, several rows a block.
#include "backend/cuda/device/numeric/four_sums.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/many_heads.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ uint16_t ToBits(float rounded) {
  return static_cast<uint16_t>(__float_as_uint(rounded) >> 16);
}

// HeadRmsNormRow of a block of kNarrowRowThreads threads, by warps of four rows each: one sum's tree, mean
// and factor are for all of them. Squares of bf16 and products with a factor of bf16 are exact in double, so
// that fp32 rounds them as it does. In place: a warp has read its rows before it writes them.
constexpr int kRowsOfWarp = 4;
template <int kWidth>
__global__ void __launch_bounds__(32 * kWarps)
    ManyHeadsRmsNormKernel(const uint16_t* x, uint16_t* y, int64_t num_rows, float eps) {
  constexpr int kPieces = kWidth / kNarrowRowThreads;
  static_assert(kNarrowRowThreads == 128 && kWidth % kNarrowRowThreads == 0);
  BeginKernel();
  const int64_t first = (blockIdx.x * int64_t{kWarps} + threadIdx.x / 32) * kRowsOfWarp;
  if (first >= num_rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint2 words[kRowsOfWarp][kPieces];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const auto* const from = reinterpret_cast<const uint2*>(x + min(first + r, num_rows - 1) * kWidth) + lane;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) words[r][j] = from[32 * j];
  }
  double sums[kRowsOfWarp][4] = {};
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float low = FourColumn(words[r][j], e);
        const float high = FourColumn(words[r][j], e + 1);
        const uint32_t squares = Bf16Pair(low * low, high * high);
        sums[r][e] += static_cast<double>(__uint_as_float(squares << 16));
        sums[r][e + 1] += static_cast<double>(__uint_as_float(squares & 0xFFFF0000U));
      }
    }
  }
  const double sum = SumOfFourWarps(SumOfFourGroups(sums, lane), lane);
  const double mean = HeldIn(MeanOf(sum, kWidth), true);
  const double shifted = HeldIn(mean + static_cast<double>(eps), true);
  const auto factors = static_cast<float>(HeldIn(1.0 / sqrt(shifted), true));
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const float factor = __shfl_sync(kWholeWarp, factors, 2 * r);
    auto* const to = reinterpret_cast<uint2*>(y + (first + r) * kWidth) + lane;
    if (first + r >= num_rows) break;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const uint2 from = words[r][j];
      to[32 * j] = make_uint2(Bf16Pair(FourColumn(from, 0) * factor, FourColumn(from, 1) * factor),
                              Bf16Pair(FourColumn(from, 2) * factor, FourColumn(from, 3) * factor));
    }
  }
}

// One block a token: its warps take heads in turn, its lanes frequencies.
struct RopeParams {
  uint16_t* x;
  const int32_t* positions;
  const float* frequencies;
  int heads;
  int width;
  int num_frequencies;
  bool inverse;
  Fault* fault;
};
__global__ void __launch_bounds__(32 * kWarps) ManyHeadsRopeKernel(const RopeParams p) {
  BeginKernel();
  const int64_t token = blockIdx.x;
  const int32_t position = p.positions[token];
  if (position < 0) {
    if (threadIdx.x == 0) ReportFault(p.fault, FaultKind::kPosition, token, 0, position, 0);
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = lane; i < p.num_frequencies; i += 32) {
    const double2 rotation = Rotation(position, p.frequencies[i], p.inverse);
    auto* const pairs =
        reinterpret_cast<uint32_t*>(p.x + (token * p.heads + 1) * p.width) - p.num_frequencies + i;
    constexpr int kAtOnce = 8;
    for (int first = static_cast<int>(threadIdx.x) / 32; first < p.heads; first += kAtOnce * kWarps) {
      uint32_t values[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t head = first + k * kWarps;
        if (head < p.heads) values[k] = pairs[head * p.width / 2];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64_t head = first + k * kWarps;
        if (head >= p.heads) break;
        const float2 rotated = Rotated(__uint_as_float(values[k] << 16),
                                       __uint_as_float(values[k] & 0xFFFF0000U), rotation, true);
        pairs[head * p.width / 2] = ToBits(rotated.x) | static_cast<uint32_t>(ToBits(rotated.y)) << 16;
      }
    }
  }
}

// hadamard_fp4 without a rotation: eight columns a thread, two or four threads a group of 16 or 32.
constexpr int kRoundThreads = 256;
constexpr int kRoundColumns = 8;

// A group's threads are neighbours in a warp.
template <int kGroup>
__global__ void __launch_bounds__(kRoundThreads)
    ManyHeadsRoundFp4Kernel(uint16_t* x, int64_t count, CacheScale kind) {
  BeginKernel();
  const int64_t i = (blockIdx.x * int64_t{kRoundThreads} + threadIdx.x) * kRoundColumns;
  auto* const at = reinterpret_cast<uint4*>(x + i);
  const uint4 read = i < count ? *at : make_uint4(0, 0, 0, 0);
  const uint32_t words[kRoundColumns / 2] = {read.x, read.y, read.z, read.w};
  float values[kRoundColumns];
  float max = 0.0F;
  int has_nan = 0;
#pragma unroll
  for (int k = 0; k < kRoundColumns; ++k) {
    values[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000U);
    max = fmaxf(max, fabsf(values[k]));
    has_nan |= isnan(values[k]) ? 1 : 0;
  }
#pragma unroll
  for (int offset = kGroup / kRoundColumns / 2; offset > 0; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    has_nan |= __shfl_xor_sync(kWholeWarp, has_nan, offset);
  }
  if (i >= count) return;
  const float scale = Fp4GroupScale(max, kind);
  uint32_t rounded[kRoundColumns / 2];
#pragma unroll
  for (int k = 0; k < kRoundColumns; k += 2)
    rounded[k / 2] = Bf16Pair(RoundToFp4Grid(values[k], scale, has_nan != 0),
                              RoundToFp4Grid(values[k + 1], scale, has_nan != 0));
  *at = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
}

}  // namespace

Status HeadRmsNormOfMany(LaunchContext& context, const ops::HeadRmsNormArgs& args) {
  const int64_t num_rows = args.x.shape[0] * args.x.shape[1];
  const auto blocks = static_cast<unsigned>(CeilDiv(num_rows, kWarps * kRowsOfWarp));
  const auto kernel = args.x.shape[2] == 512 ? ManyHeadsRmsNormKernel<512> : ManyHeadsRmsNormKernel<128>;
  context.Launch(kernel, blocks, 32 * kWarps, 0, args.x.as<const uint16_t>(), args.y.as<uint16_t>(), num_rows,
                 args.eps);
  return {};
}

Status RopeOfMany(LaunchContext& context, const ops::RopeArgs& args) {
  const RopeParams params = {.x = args.x.as<uint16_t>(),
                             .positions = args.positions.as<const int32_t>(),
                             .frequencies = args.frequencies.as<const float>(),
                             .heads = static_cast<int>(args.x.shape[1]),
                             .width = static_cast<int>(args.x.shape[2]),
                             .num_frequencies = static_cast<int>(args.frequencies.shape[0]),
                             .inverse = args.inverse,
                             .fault = context.fault()};
  context.Launch(ManyHeadsRopeKernel, static_cast<unsigned>(args.x.shape[0]), 32 * kWarps, 0, params);
  return {};
}

Status RoundFp4OfMany(LaunchContext& context, const ops::HadamardFp4Args& args) {
  const int64_t count = args.x.num_elements();
  const auto blocks = static_cast<unsigned>(CeilDiv(count, int64_t{kRoundThreads} * kRoundColumns));
  const auto kernel = args.group == kRegisterHalfGroup ? ManyHeadsRoundFp4Kernel<kRegisterHalfGroup>
                                                       : ManyHeadsRoundFp4Kernel<kRegisterWarpGroup>;
  context.Launch(kernel, blocks, kRoundThreads, 0, args.x.as<uint16_t>(), count, args.scale);
  return {};
}

}  // namespace dsv4::backend::cuda
