// GEMM of FP4 and FP8 weights by Blackwell's block-scaled tensor cores (tcgen05), with activations rounded to
// match.
#include <cuda_fp4.h>

#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/sm100/block_scaled.cuh"
#include "backend/cuda/kernels/sm100/block_scaled.h"
#include "backend/cuda/lowering/select/linear.h"

namespace dsv4::backend::cuda {
namespace {

// --- Activations -----------------------------------------------------------------------------------------------------

constexpr int kRoundWarps = 4;

// One warp a group of 128 columns of a row, four columns a lane. A group has one scale, which is written for
// every 32 columns.
template <typename T>
__global__ void __launch_bounds__(32 * kRoundWarps)
    BlockScaledRoundToFp8Kernel(const T* x, int64_t stride, int64_t num_rows, int64_t cols, uint32_t* codes,
                                uint32_t* scales) {
  BeginKernel();
  constexpr int kGroup = static_cast<int>(kActivationBlock);
  const int64_t groups = cols / kGroup;
  const int64_t index = blockIdx.x * int64_t{kRoundWarps} + threadIdx.x / 32;
  if (index >= num_rows * groups) return;
  const int64_t row = index / groups;
  const int64_t group = index % groups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* const from = x + row * stride + group * kGroup + lane * 4;
  float values[4];
  float max = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = ToFloat(from[i]);
    max = fmaxf(max, fabsf(values[i]));
  }
  // A power of two, or infinity, whose exponent is e8m0's NaN.
  const float scale = Fp8GroupScale(WarpMax(max));
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(__nv_cvt_float_to_fp8(values[i] / scale, __NV_SATFINITE, __NV_E4M3))
            << (8 * i);
  }
  codes[(row * cols + group * kGroup) / 4 + lane] = word;
  if (lane == 0) scales[index] = (__float_as_uint(scale) >> 23) * 0x01010101U;
}

constexpr int kNvFp4Threads = 256;

// One block a row. Per 16 columns: scale = e4m3(max / (6 factor)), codes = e2m1(x / (scale factor)); factor =
// max of the row / 2688.
template <typename T>
__global__ void __launch_bounds__(kNvFp4Threads)
    BlockScaledRoundToNvFp4Kernel(const T* x, int64_t stride, int64_t cols, uint64_t* codes, uint8_t* scales,
                                  float* factors) {
  BeginKernel();
  __shared__ float warp_max[kNvFp4Threads / 32];
  constexpr int kBlock = static_cast<int>(kNvFp4Block);
  const int64_t row = blockIdx.x;
  const T* const from = x + row * stride;
  float max = 0.0F;
  bool finite = true;
  for (int64_t col = threadIdx.x; col < cols; col += kNvFp4Threads) {
    const float value = ToFloat(from[col]);
    finite = finite && isfinite(value);
    max = fmaxf(max, fabsf(value));
  }
  max = WarpMax(max);
  if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = max;
  const bool poisoned = __syncthreads_or(finite ? 0 : 1) != 0;
  for (const float other : warp_max) max = fmaxf(max, other);
  // NvFp4GlobalScale of formats/quantize.h.
  const float factor = max == 0.0F ? 1.0F : fmaxf(max / (6.0F * 448.0F), 0x1p-126F);
  if (threadIdx.x == 0) factors[row] = poisoned ? __int_as_float(0x7FC00000) : factor;
  for (int64_t block = threadIdx.x; block < cols / kBlock; block += kNvFp4Threads) {
    float values[kBlock];
    float block_max = 0.0F;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      values[i] = poisoned ? 0.0F : ToFloat(from[block * kBlock + i]);
      block_max = fmaxf(block_max, fabsf(values[i]));
    }
    const __nv_fp8_storage_t scale =
        __nv_cvt_float_to_fp8(block_max / (6.0F * factor), __NV_SATFINITE, __NV_E4M3);
    const float divisor = FromE4m3(scale) * factor;
    uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < kBlock; i += 2) {
      const float2 pair = divisor == 0.0F ? make_float2(0.0F, 0.0F)
                                          : make_float2(values[i] / divisor, values[i + 1] / divisor);
      word |= static_cast<uint64_t>(__nv_cvt_float2_to_fp4x2(pair, __NV_E2M1, cudaRoundNearest)) << (4 * i);
    }
    codes[row * (cols / kBlock) + block] = word;
    scales[row * (cols / kBlock) + block] = scale;
  }
}

// --- Products --------------------------------------------------------------------------------------------------------

// Grid: tiles of activations, tiles of rows, groups. Blocks that share weights run side by side.
template <BlockScaledStep kStep>
__global__ void __launch_bounds__(kBlockScaledThreads, 2)
    BlockScaledProductKernel(const __grid_constant__ BlockScaledProduct p) {
  BeginKernel();
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<BlockScaledMemory<kStep>*>(raw_memory);
  const int group = static_cast<int>(blockIdx.z);
  const int first_row = static_cast<int>(blockIdx.y) * kBlockScaledRows;
  const int thread = static_cast<int>(threadIdx.x);
  BlockScaledTile tile;
  float global_scale = p.weight.global_scale;
  if (p.experts != nullptr) {
    const ExpertTile of = p.tiles[blockIdx.x];
    if (of.count == 0) return;
    const DeviceWeight& weight = p.experts[of.expert * 3 + p.first_matrix + group];
    global_scale = weight.global_scale;
    tile = {weight.data, static_cast<const uint8_t*>(weight.scale), first_row, p.rows, of.count};
    if (thread < of.count) {
      const int32_t assignment = p.order[of.begin + thread];
      memory.x_rows[thread] = assignment / p.divisor;
      memory.y_rows[thread] = assignment;
    }
  } else {
    const int first_token = static_cast<int>(blockIdx.x) * kBlockScaledTokens;
    const int begin = group * p.rows;
    tile = {p.weight.data, static_cast<const uint8_t*>(p.weight.scale), begin + first_row, begin + p.rows,
            min(kBlockScaledTokens, p.num_tokens - first_token)};
    if (thread < tile.num_columns) {
      memory.x_rows[thread] = (first_token + thread) * p.num_groups + group;
      memory.y_rows[thread] = first_token + thread;
    }
  }
  __syncthreads();
  const int64_t y_begin = group * p.y_group_stride - (tile.first_row - first_row);
  MultiplyBlockScaledTile<kStep>(
      memory, p.weight, tile, p.x.codes, p.x.scales, [&](int column, int row, float sum) {
        float value = sum;
        if constexpr (kStep == BlockScaledStep::kE2m1ByE2m1) {
          const double scaled =
              static_cast<double>(sum) * static_cast<double>(p.x.factors[memory.x_rows[column]]);
          const double global = static_cast<double>(global_scale);
          value = static_cast<float>(p.weight.global_scale_divides ? scaled / global : scaled * global);
        }
        const int64_t place = y_begin + memory.y_rows[column] * p.y_stride + row;
        if (p.y_is_bf16) {
          static_cast<uint16_t*>(p.y)[place] = Bf16FromFloat(value);
        } else {
          static_cast<float*>(p.y)[place] = value;
        }
      });
}

template <BlockScaledStep kStep>
void LaunchProduct(LaunchContext& context, const BlockScaledProduct& product) {
  const int token_tiles = product.experts != nullptr
                              ? product.num_tiles
                              : static_cast<int>(CeilDiv(product.num_tokens, kBlockScaledTokens));
  const dim3 grid(static_cast<unsigned>(token_tiles),
                  static_cast<unsigned>(CeilDiv(product.rows, kBlockScaledRows)),
                  static_cast<unsigned>(product.num_groups));
  context.Launch(BlockScaledProductKernel<kStep>, grid, kBlockScaledThreads, sizeof(BlockScaledMemory<kStep>),
                 product);
}

}  // namespace

bool WantsNvFp4AsStored(BlockScaledMode mode, const Weight& weight) {
  return weight.format == WeightFormat::kNvFp4 &&
         TakesNvFp4(mode, weight.cols, weight.activation != ActivationQuant::kNone);
}

Result<BlockScaledRows> RoundBlockScaled(LaunchContext& context, const DeviceWeight& weight, const void* x,
                                         DType dtype, int64_t stride, int64_t num_rows) {
  const int64_t cols = weight.cols;
  BlockScaledRows rows;
  if (weight.format != WeightFormat::kNvFp4) {
    DSV4_ASSIGN_OR_RETURN(uint32_t* const codes, context.Scratch<uint32_t>(num_rows * cols / 4));
    DSV4_ASSIGN_OR_RETURN(uint32_t* const scales,
                          context.Scratch<uint32_t>(num_rows * cols / kActivationBlock));
    const int64_t groups = num_rows * (cols / kActivationBlock);
    WithElement(dtype, [&]<typename T>(T*) {
      context.Launch(BlockScaledRoundToFp8Kernel<T>, static_cast<unsigned>(CeilDiv(groups, kRoundWarps)),
                     32 * kRoundWarps, 0, static_cast<const T*>(x), stride, num_rows, cols, codes, scales);
    });
    rows.codes = reinterpret_cast<const uint8_t*>(codes);
    rows.scales = reinterpret_cast<const uint8_t*>(scales);
    return rows;
  }
  DSV4_ASSIGN_OR_RETURN(uint64_t* const codes, context.Scratch<uint64_t>(num_rows * cols / kNvFp4Block));
  DSV4_ASSIGN_OR_RETURN(uint8_t* const scales, context.Scratch<uint8_t>(num_rows * cols / kNvFp4Block));
  DSV4_ASSIGN_OR_RETURN(float* const factors, context.Scratch<float>(num_rows));
  WithElement(dtype, [&]<typename T>(T*) {
    context.Launch(BlockScaledRoundToNvFp4Kernel<T>, static_cast<unsigned>(num_rows), kNvFp4Threads, 0,
                   static_cast<const T*>(x), stride, cols, codes, scales, factors);
  });
  rows.codes = reinterpret_cast<const uint8_t*>(codes);
  rows.scales = scales;
  rows.factors = factors;
  return rows;
}

void MultiplyBlockScaled(LaunchContext& context, const BlockScaledProduct& product) {
  if (product.weight.format == WeightFormat::kNvFp4)
    return LaunchProduct<BlockScaledStep::kE2m1ByE2m1>(context, product);
  if (product.weight.format == WeightFormat::kMxFp4)
    return LaunchProduct<BlockScaledStep::kE2m1ByE4m3>(context, product);
  LaunchProduct<BlockScaledStep::kE4m3ByE4m3>(context, product);
}

}  // namespace dsv4::backend::cuda
