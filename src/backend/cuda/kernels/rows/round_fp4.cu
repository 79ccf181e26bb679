// hadamard_fp4 without a rotation, of many rows in bf16: eight columns a thread, two or four threads a group of 16 or 32.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/round_fp4.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 8;  // Of a thread.

// A group's threads are neighbours in a warp.
template <int kGroup>
__global__ void __launch_bounds__(kThreads) RoundFp4Kernel(uint16_t* x, int64_t count, CacheScale kind) {
  BeginKernel();
  const int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kColumns;
  auto* const at = reinterpret_cast<uint4*>(x + i);
  const uint4 read = i < count ? *at : make_uint4(0, 0, 0, 0);
  const uint32_t words[kColumns / 2] = {read.x, read.y, read.z, read.w};
  float values[kColumns];
  float max = 0.0F;
  int has_nan = 0;
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    values[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xFFFF0000U);
    max = fmaxf(max, fabsf(values[k]));
    has_nan |= isnan(values[k]) ? 1 : 0;
  }
#pragma unroll
  for (int offset = kGroup / kColumns / 2; offset > 0; offset /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    has_nan |= __shfl_xor_sync(kWholeWarp, has_nan, offset);
  }
  if (i >= count) return;
  const float scale = Fp4GroupScale(max, kind);
  uint32_t rounded[kColumns / 2];
#pragma unroll
  for (int k = 0; k < kColumns; k += 2)
    rounded[k / 2] = Bf16Pair(RoundToFp4Grid(values[k], scale, has_nan != 0),
                              RoundToFp4Grid(values[k + 1], scale, has_nan != 0));
  *at = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
}

}  // namespace

void LaunchRoundFp4(CudaContext& context, const ops::HadamardFp4Args& args) {
  const int64_t count = args.x.num_elements();
  const auto blocks = static_cast<unsigned>(CeilDiv(count, int64_t{kThreads} * kColumns));
  context.Launch(args.group == kRegisterHalfGroup ? RoundFp4Kernel<kRegisterHalfGroup>
                                                  : RoundFp4Kernel<kRegisterWarpGroup>,
                 blocks, kThreads, 0, args.x.as<uint16_t>(), count, args.scale);
}

}  // namespace dsv4::backend::cuda
