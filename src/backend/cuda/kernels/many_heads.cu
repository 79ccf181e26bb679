#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/many_heads.h"
#include "backend/cuda/kernels/row_steps.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kMinTokens = 257;
constexpr int64_t kMinHeads = 8;

__device__ __forceinline__ float FromBits(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ __forceinline__ uint16_t ToBits(float rounded) {
  return static_cast<uint16_t>(__float_as_uint(rounded) >> 16);
}

// HeadRmsNormRow of a block of kNarrowRowThreads threads by a warp, which is each of the block's warps in turn: a lane has column
// lane + 32 j of the row, j % 4 being the warp. Squares of bf16 and products with a factor of bf16 are exact in double, so that fp32
// rounds them as it does. Grid: rows by kWarps.
constexpr int kRowWarps = kNarrowRowThreads / 32;
template <int kWidth>
__global__ void __launch_bounds__(32 * kWarps)
    HeadRmsNormKernel(const uint16_t* x, uint16_t* y, int64_t num_rows, float eps) {
  constexpr int kColumns = kWidth / 32;
  static_assert(kColumns % kRowWarps == 0);
  BeginKernel();
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (row >= num_rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint16_t* const from = x + row * kWidth + lane;
  float values[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) values[j] = FromBits(from[32 * j]);
  double sum = 0.0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) {
    double of_warp = 0.0;
#pragma unroll
    for (int j = w; j < kColumns; j += kRowWarps)
      of_warp += static_cast<double>(RoundToBf16(values[j] * values[j]));
    of_warp = WarpSum(of_warp);
    sum = w == 0 ? of_warp : sum + of_warp;
  }
  const double mean = HeldIn(MeanOf(sum, kWidth), true);
  const double shifted = HeldIn(mean + static_cast<double>(eps), true);
  const auto factor = static_cast<float>(HeldIn(1.0 / sqrt(shifted), true));
  uint16_t* const to = y + row * kWidth + lane;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) to[32 * j] = ToBits(RoundToBf16(values[j] * factor));
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
__global__ void __launch_bounds__(32 * kWarps) RopeKernel(const RopeParams p) {
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

}  // namespace

bool HasManyHeads(const ops::HeadRmsNormArgs& args) {
  return args.x.dtype == DType::kBF16 && args.y.dtype == DType::kBF16 && args.x.shape[0] >= kMinTokens &&
         args.x.shape[1] >= kMinHeads && (args.x.shape[2] == 512 || args.x.shape[2] == 128);
}
Status HeadRmsNormOfMany(CudaContext& context, const ops::HeadRmsNormArgs& args) {
  const int64_t num_rows = args.x.shape[0] * args.x.shape[1];
  const auto blocks = static_cast<unsigned>(CeilDiv(num_rows, kWarps));
  const auto kernel = args.x.shape[2] == 512 ? HeadRmsNormKernel<512> : HeadRmsNormKernel<128>;
  context.Launch(kernel, blocks, 32 * kWarps, 0, args.x.as<const uint16_t>(), args.y.as<uint16_t>(), num_rows,
                 args.eps);
  return {};
}

bool HasManyHeads(const ops::RopeArgs& args) {
  return args.x.dtype == DType::kBF16 && args.x.shape[0] >= kMinTokens && args.x.shape[1] >= kMinHeads &&
         args.x.shape[2] % 2 == 0 && reinterpret_cast<uintptr_t>(args.x.data) % 4 == 0;
}
Status RopeOfMany(CudaContext& context, const ops::RopeArgs& args) {
  const RopeParams params = {.x = args.x.as<uint16_t>(),
                             .positions = args.positions.as<const int32_t>(),
                             .frequencies = args.frequencies.as<const float>(),
                             .heads = static_cast<int>(args.x.shape[1]),
                             .width = static_cast<int>(args.x.shape[2]),
                             .num_frequencies = static_cast<int>(args.frequencies.shape[0]),
                             .inverse = args.inverse,
                             .fault = context.fault()};
  context.Launch(RopeKernel, static_cast<unsigned>(args.x.shape[0]), 32 * kWarps, 0, params);
  return {};
}

}  // namespace dsv4::backend::cuda
