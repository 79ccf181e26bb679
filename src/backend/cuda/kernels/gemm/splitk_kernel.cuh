// The kernel of gemm_splitk_wgmma.h.
//
// A slice is one of the segments of columns in which products are summed (gemm_mma.cuh), or all columns where
// they are few. A block rounds and keeps its slice of up to 128 tokens, wgmma's B operand. It takes a run of
// row tiles, of 64 rows a warpgroup. Every thread copies the weights that it will itself widen into wgmma's A
// operand, some stages ahead. Sums of a segment that is not all go to device memory. The warpgroup that comes
// last to a row tile adds them up in order.
//
// Steps, segments and the order of all sums are those of gemm_mma.cuh; so are the bits.
#pragma once

#include <cstddef>

#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/grid_barrier.h"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/gemm/splitk_operands.cuh"
#include "backend/cuda/kernels/gemm/splitk_params.cuh"
#include "backend/cuda/kernels/gemm/store_tile.cuh"
#include "backend/cuda/kernels/hyper_connection/hc_mixes.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda::slice_kernel {

// Adds one, behind what this thread has seen written and in front of what it reads.
__device__ __forceinline__ uint32_t AtomicAddAcqRel(uint32_t* place) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(place) : "memory");
  return before;
}

__device__ __forceinline__ void MeetInGroup() {
  asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(threadIdx.x) / kGroupThreads + 1), "n"(kGroupThreads)
               : "memory");
}

// Store for the slices of a row tile of a block, this thread's part of the first; and the tile's number.
template <int kTokens>
struct Parts {
  static constexpr int kFours = kTokens / 8;  // A thread's.
  int tile;
  float4* all;

  __device__ Parts(const Params& p, const Block& block, int tile_of_group)
      : tile((block.matrix->first_tile + block.group * block.matrix->row_tiles + tile_of_group) *
                 p.token_tiles +
             block.token_tile),
        all(p.sums + static_cast<int64_t>(tile) * p.slices * (kFours * kGroupThreads) +
            threadIdx.x % kGroupThreads) {}

  __device__ __forceinline__ float4* Of(int slice) const { return all + slice * (kFours * kGroupThreads); }
  __device__ __forceinline__ void Store(int slice, const float (&sums)[kTokens / 2]) const {
    float4* const own = Of(slice);
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      own[i * kGroupThreads] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
  }
  // Sum of all slices in order. As much as registers hold is asked for at once: what is waited for is
  // memory's latency.
  __device__ __forceinline__ void Add(int slices, float (&sums)[kTokens / 2]) const {
    constexpr int kAtOnce = kTokens == 128 ? 2 : kFours % 4 == 0 ? 4 : kFours % 5 == 0 ? 5 : 3;
    static_assert(kFours % kAtOnce == 0);
#pragma unroll
    for (int first = 0; first < kFours; first += kAtOnce) {
      float4 parts[kAtOnce][kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (s < slices) parts[i][s] = __ldcg(Of(s) + (first + i) * kGroupThreads);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float4 sum = parts[i][0];
#pragma unroll
        for (int s = 1; s < kSegments; ++s) {
          if (s >= slices) continue;
          sum.x += parts[i][s].x;
          sum.y += parts[i][s].y;
          sum.z += parts[i][s].z;
          sum.w += parts[i][s].w;
        }
        float* const to = sums + 4 * (first + i);
        to[0] = sum.x;
        to[1] = sum.y;
        to[2] = sum.z;
        to[3] = sum.w;
      }
    }
  }
};

// One slice more of a row tile is there, with all that this thread has seen written: whether it is the last.
__device__ __forceinline__ bool IsLastSlice(const Params& p, int tile) {
  uint32_t* const arrivals = p.arrivals +
                             tile / kArrivalsOfBarrier * (sizeof(GridBarrier) / sizeof(uint32_t)) +
                             tile % kArrivalsOfBarrier;
  const bool last = AtomicAddAcqRel(arrivals) + 1 == static_cast<uint32_t>(p.slices);
  if (last) *arrivals = 0;
  return last;
}

// Two chunks of a row tile, as wgmma wants them.
using TwoChunks = uint32_t[2][4][4];

// The next two chunks, of which the copies of this thread are waited for.
template <StreamKind kKind>
struct NextChunks {
  uint4 raw[2][2][Format<kKind>::kPieces];
  uint32_t codes;
  __device__ __forceinline__ explicit NextChunks(Weights<kKind>& weights) {
    weights.NextStage();
    codes = weights.Codes();
    weights.Load(0, raw[0]);
    weights.Load(1, raw[1]);
  }
};

// A row tile's columns of the block's slice times the tokens, from the two chunks `a` on, which becomes the
// chunks that follow. With kWhole it is all columns, in segments of two chunks; else a segment. More than 64
// tokens are multiplied by halves by the same widened chunks.
template <StreamKind kKind, int kTokens, bool kWhole>
__device__ __forceinline__ void MultiplyTile(Weights<kKind>& weights, TwoChunks& a, int num_chunks,
                                             uint32_t x, const float* scales, const float* token_scales,
                                             float (&total)[kTokens / 2]) {
  constexpr bool kScaled = HasScaledSums(kKind);  // Sums of a chunk, that is.
  constexpr int kParts = kTokens > 64 ? 2 : 1;
  constexpr int kPart = kTokens / kParts;  // Tokens at a time.
  constexpr int kSums = kPart / 2;
  float sums[kTokens / 2];
  // Two chunks'; of BF16 the sums of every part.
  float chunk_sums[kScaled ? 2 : kParts][kSums];
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    total[i] = -0.0F;  // Which adds nothing to whatever comes.
    sums[i] = 0.0F;
  }
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; chunk += 2) {
    [[maybe_unused]] float scale = 1.0F;  // Both chunks lie in one block of scales.
    if constexpr (kScaled) scale = scales[chunk];
    const auto multiply = [&](int part) {
      FenceRegisters(chunk_sums[kScaled ? 0 : part]);
      if constexpr (kScaled) FenceRegisters(chunk_sums[1]);
      BeginMatrixSteps();
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint64_t of_x = MatrixDescriptor(
            x + static_cast<uint32_t>(((chunk + b) * kTokens + part * kPart) * kChunkWords * 4));
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          if constexpr (kKind == StreamKind::kFp8) {
            MatrixStep<kPart, true>::Add(chunk_sums[b], a[b][step], of_x + 2 * step, step > 0 ? 1 : 0);
          } else if constexpr (kScaled) {
            MatrixStep<kPart>::Add(chunk_sums[b], a[b][step], of_x + 2 * step, step > 0 ? 1 : 0);
          } else {
            MatrixStep<kPart>::Add(chunk_sums[part], a[b][step], of_x + 2 * step,
                                   b + step > 0 || (!kWhole && chunk > 0) ? 1 : 0);
          }
        }
        CommitMatrixSteps();
      }
    };
    float2 factors[kPart / 8];
    const auto take_factors = [&](int part) {
      if constexpr (kScaled) {
#pragma unroll
        for (int i = 0; i < kPart / 8; ++i) {
          factors[i] = make_float2(scale, scale);
          if constexpr (kKind == StreamKind::kFp8) {
            const float2 of_tokens =
                *reinterpret_cast<const float2*>(token_scales + chunk / 2 * kTokens + part * kPart + i * 8);
            factors[i] = make_float2(scale * of_tokens.x, scale * of_tokens.y);
          }
        }
      }
    };
    const auto add = [&](int part, int b) {
      if constexpr (kScaled) {
        FenceRegisters(chunk_sums[b]);
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          float& sum = sums[part * kSums + i];
          sum = fmaf(chunk_sums[b][i], i % 2 == 0 ? factors[i / 4].x : factors[i / 4].y, sum);
        }
      } else if (b == 1) {
        FenceRegisters(chunk_sums[part]);
      }
    };
    if constexpr (kParts == 2) {
      multiply(0);
      take_factors(0);
      WaitForMatrixSteps<1>();
      add(0, 0);
      WaitForMatrixSteps<0>();
      add(0, 1);
    }
    multiply(kParts - 1);
    // While they run.
    take_factors(kParts - 1);
    const NextChunks<kKind> next(weights);
    WaitForMatrixSteps<1>();
    FenceRegisters(a[0]);
    add(kParts - 1, 0);
    Weights<kKind>::Widen(next.raw[0], next.codes, 0, a[0]);
    WaitForMatrixSteps<0>();
    FenceRegisters(a[1]);
    add(kParts - 1, 1);
    Weights<kKind>::Widen(next.raw[1], next.codes, 1, a[1]);
    if constexpr (kWhole) {
      static_assert(kParts == 1);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        total[i] += kScaled ? sums[i] : chunk_sums[0][i];
        sums[i] = 0.0F;
      }
    }
  }
  if constexpr (!kWhole) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      total[i] = kScaled ? sums[i] : chunk_sums[kScaled ? 0 : i / kSums][i % kSums];
  }
}

// Shared memory of a block, in bytes: activations, the ring, and scales of tokens and of weights.
template <StreamKind kKind>
__host__ __device__ constexpr size_t SharedBytes(int slice_chunks, int tokens, int tiles_per_block) {
  const auto chunks = static_cast<size_t>(slice_chunks);
  return chunks * static_cast<size_t>(tokens) * kChunk * sizeof(uint16_t) + sizeof(Ring<kKind>) +
         (kKind == StreamKind::kMxFp8 ? sizeof(CodeRing<kKind>) : 0) +
         (kKind == StreamKind::kFp8 ? chunks / 2 * static_cast<size_t>(tokens) * sizeof(float) : 0) +
         (HasScaledSums(kKind) ? static_cast<size_t>(tiles_per_block) * chunks * sizeof(float) : 0);
}

template <StreamKind kKind, int kTokens, bool kWhole>
__device__ __forceinline__ void MultiplyBlock(const Params& p, const Block& block, unsigned char* shared,
                                              unsigned* last_tiles) {
  const Matrix& matrix = *block.matrix;
  auto* const x = reinterpret_cast<uint32_t*>(shared);
  unsigned char* const behind_x =
      shared + p.slice_chunks * kTokens * kChunkWords * static_cast<int>(sizeof(uint32_t));
  auto& ring = *reinterpret_cast<Ring<kKind>*>(behind_x);
  // A ring of kMxFp8 alone.
  auto& codes = *reinterpret_cast<CodeRing<kKind>*>(behind_x + sizeof(ring));
  auto* const x_scales = reinterpret_cast<float*>(behind_x + sizeof(ring));
  float* const scales = x_scales + (kKind == StreamKind::kFp8 ? p.slice_chunks / 2 * kTokens : 0);
  Weights<kKind> weights(ring, codes, block);
  if constexpr (HasScaledSums(kKind)) {
    for (int i = static_cast<int>(threadIdx.x); i < block.num_tiles * block.num_chunks; i += kThreads) {
      const int row = block.first_row() + (block.first_tile + i / block.num_chunks) * kRows;
      const int chunk = i % block.num_chunks;
      scales[i / block.num_chunks * p.slice_chunks + chunk] =
          LoadScale(matrix.scale, matrix.shape.scale_dtype,
                    static_cast<int64_t>(row >> matrix.shape.block_rows_log2) * matrix.shape.scale_cols +
                        ((block.first_chunk + chunk) >> matrix.shape.block_units_log2));
    }
  }
  TwoChunks a;
  {
    const NextChunks<kKind> next(weights);
    Weights<kKind>::Widen(next.raw[0], next.codes, 0, a[0]);
    Weights<kKind>::Widen(next.raw[1], next.codes, 1, a[1]);
  }
  WaitForKernelsBefore();
  LoadSlice<kKind, kTokens>(p, block, x, x_scales);
  PublishToMatrixSteps();
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const float* const token_scales = x_scales + threadIdx.x % 4 * 2;  // Scales of the thread's sums.
  const int first_token = block.token_tile * kTokens;
  const auto store = [&](int tile, const float(&total)[kTokens / 2]) {
    StoreSums<kTokens>(matrix.y, block.first_row() + Weights<kKind>::Row(tile),
                       block.first_row() + matrix.rows_per_group, first_token,
                       min(kTokens, p.num_tokens - first_token), total);
  };
  float total[kTokens / 2];
  bool let_next = false;
#pragma unroll 1
  for (int tile = group; tile < block.num_tiles; tile += kGroups) {
    MultiplyTile<kKind, kTokens, kWhole>(weights, a, block.num_chunks, SharedAddress(x),
                                         scales + tile * p.slice_chunks, token_scales, total);
    if (!let_next && weights.done()) {
      let_next = true;
      LetNextKernelStart();
    }
    if constexpr (kWhole) {
      store(block.first_tile + tile, total);
    } else {
      Parts<kTokens>(p, block, block.first_tile + tile).Store(block.slice, total);
    }
  }
  if constexpr (kWhole) return;
  // Stores of all threads of the group are seen by the group that comes last to a tile. A warp counts for 32
  // tiles at once.
  MeetInGroup();
#pragma unroll 1
  for (int first = group; first < block.num_tiles; first += 32 * kGroups) {
    if (threadIdx.x % kGroupThreads < 32) {
      const int tile = first + static_cast<int>(threadIdx.x % 32) * kGroups;
      const bool last =
          tile < block.num_tiles && IsLastSlice(p, Parts<kTokens>(p, block, block.first_tile + tile).tile);
      const unsigned all = __ballot_sync(kWholeWarp, last);
      if (threadIdx.x % 32 == 0) last_tiles[group] = all;
    }
    MeetInGroup();
    unsigned left = last_tiles[group];
    MeetInGroup();
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int tile = first + (__ffs(static_cast<int>(left)) - 1) * kGroups;
      Parts<kTokens>(p, block, block.first_tile + tile).Add(p.slices, total);
      store(block.first_tile + tile, total);
    }
  }
}

// Weights of kinds kKinds. Grid: blocks of the mix, then matrices, groups, slices, token tiles, runs of row
// tiles.
template <int kTokens, bool kWhole, StreamKind... kKinds>
__global__ void __launch_bounds__(kThreads, 1) SplitkKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ unsigned last_tiles[kGroups];
  if (static_cast<int>(blockIdx.x) < p.mix_blocks) {
    LetNextKernelStart();
    WaitForKernelsBefore();
    return HcMixesOfBlock<kThreads>(p.mix, static_cast<int>(blockIdx.x), p.mix_tokens,
                                    *reinterpret_cast<MixesMemory*>(shared));
  }
  const Block block(p);
  WithStreamKind<kKinds...>(block.matrix->shape.kind, [&]<StreamKind kKind>() {
    MultiplyBlock<kKind, kTokens, kWhole>(p, block, shared, last_tiles);
  });
}

}  // namespace dsv4::backend::cuda::slice_kernel
