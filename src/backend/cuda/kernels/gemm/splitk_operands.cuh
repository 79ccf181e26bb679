// Operands of a block of splitk_kernel.cuh. It brings its slice of the activations into shared memory as
// wgmma's B operand. Every thread copies weights for itself, stages ahead, and widens them into wgmma's A
// operand.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemv_rows.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/kernels/gemm/splitk_params.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda::slice_kernel {

// Offset of word `word` (two columns) of a chunk in a token's 128 bytes, as wgmma's steps want the columns
// that a thread widens.
template <StreamKind kKind>
__device__ __forceinline__ int PlaceOfWord(int word, int token) {
  const int piece = kKind == StreamKind::kBf16 ? word / 16 * 4 + word % 4 : word % 8;
  const int of_lane = kKind == StreamKind::kBf16 ? word % 16 / 4 : word / 8;
  return (piece ^ token % 8) * 4 + of_lane;
}

// Sixteen lanes hold 128 columns of a token, eight each; the largest magnitude of all, or of the four lanes
// of 32 columns.
__device__ __forceinline__ float LargestOfGroup(uint4 x, bool fine) {
  const unsigned half = 0xFFFFU << (threadIdx.x & 16U);
  const auto larger = [](uint32_t a, uint32_t b) {
    uint32_t max;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
    return max;
  };
  constexpr uint32_t kMagnitudes = 0x7FFF7FFFU;
  uint32_t max =
      larger(larger(x.x & kMagnitudes, x.y & kMagnitudes), larger(x.z & kMagnitudes, x.w & kMagnitudes));
#pragma unroll
  for (int offset = 1; offset <= 8; offset *= 2) {
    if (offset <= 2 || !fine) max = larger(max, __shfl_xor_sync(half, max, offset));
  }
  return fmaxf(__uint_as_float(max << 16), __uint_as_float(max & 0xFFFF0000U));
}

// The slice of the block's tokens into shared memory, [chunks][kTokens][64] as wgmma wants it; of FP8
// rounded, with scales [groups of 128 columns][kTokens] beside it. Tokens that do not exist are zeros. A
// half-warp takes 128 columns of a token.
template <StreamKind kKind, int kTokens>
__device__ __forceinline__ void LoadSlice(const Params& p, const Block& block, uint32_t* x, float* x_scales) {
  constexpr int kHalfWarps = kThreads / 16;
  constexpr int kAtOnce = kTokens / kHalfWarps;  // Tokens of a half-warp.
  const int token = static_cast<int>(threadIdx.x) / 16;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int first_token = block.token_tile * kTokens;
  const int num_tokens = p.num_tokens - first_token;
  const uint16_t* const from = p.x + block.group * p.x_group_stride + (first_token + token) * p.x_stride +
                               static_cast<int64_t>(block.first_chunk) * kChunk + lane * 8;
  const int num_eights = block.num_chunks * (kChunk / 8);
  [[maybe_unused]] const int x_group = block.matrix->shape.x_group;
  const auto load = [&](int eight, uint4(&values)[kAtOnce]) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      values[k] = make_uint4(0, 0, 0, 0);
      if (eight < num_eights && token + k * kHalfWarps < num_tokens)
        values[k] =
            *reinterpret_cast<const uint4*>(from + (eight - lane) * 8 + k * (kHalfWarps * p.x_stride));
    }
  };
  // Words of this lane's eight columns in a token's 128 bytes; its tokens have the same remainder by eight.
  uint32_t* const rows = x + (lane / 8 * kTokens + token) * kChunkWords;
  int places[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) places[i] = PlaceOfWord<kKind>(lane % 8 * 4 + i, token);
  uint4 next[kAtOnce];
  load(lane, next);
#pragma unroll 1
  for (int eight = lane, group = 0; eight - lane < num_eights; eight += 16, ++group) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) values[k] = next[k];
    load(eight + 16, next);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      uint4 value = values[k];
      if constexpr (kKind == StreamKind::kFp8) {
        const float scale = Fp8GroupScale(LargestOfGroup(value, false));
        const float reciprocal = ReciprocalOfPower(scale);
        uint32_t* const words = &value.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __half2 rounded = RoundPairToFp8(words[i], reciprocal);
          words[i] = *reinterpret_cast<const uint32_t*>(&rounded);
        }
        if (lane == 0) x_scales[group * kTokens + token + k * kHalfWarps] = scale;
      } else if constexpr (kKind == StreamKind::kFp8Plain || kKind == StreamKind::kMxFp8) {
        if (x_group != 0) {
          const float scale = Fp8GroupScale(LargestOfGroup(value, x_group != kActivationBlock));
          const float reciprocal = ReciprocalOfPower(scale);
          uint32_t* const words = &value.x;
#pragma unroll
          for (int i = 0; i < 4; ++i) words[i] = TimesPower(RoundPairToFp8(words[i], reciprocal), scale);
        }
        value = InWeightOrder<MatmulKind::kMmaFp8>(value);
      }
      // Half of the lanes have nothing behind an odd number of chunks.
      if (eight < num_eights) {
        uint32_t* const row = rows + (group * 2 * kTokens + k * kHalfWarps) * kChunkWords;
        row[places[0]] = value.x;
        row[places[1]] = value.y;
        row[places[2]] = value.z;
        row[places[3]] = value.w;
      }
    }
  }
}

// Stages of a block's threads in flight: stages of two chunks of columns.
template <StreamKind kKind>
struct Format {
  static constexpr int kPieces =
      kKind == StreamKind::kBf16 ? 2 : 1;  // Words of 16 bytes, of a chunk and row of a thread.
  static constexpr int kStages = kKind == StreamKind::kBf16 ? 3 : 5;
};
template <StreamKind kKind>
using Ring = uint4[Format<kKind>::kStages][2][2][Format<kKind>::kPieces][kThreads];  // By chunk, row, piece.

// Scales of kMxFp8: of both chunks of a stage, four blocks of columns of the thread's rows.
template <StreamKind kKind>
using CodeRing = uint32_t[kKind == StreamKind::kMxFp8 ? Format<kKind>::kStages : 1][kThreads];

// A thread's copies, stage by stage through the row tiles of its warpgroup.
template <StreamKind kKind>
class Weights {
 public:
  static constexpr int kStages = Format<kKind>::kStages;
  static constexpr int kPieces = Format<kKind>::kPieces;

  __device__ Weights(Ring<kKind>& ring, CodeRing<kKind>& codes, const Block& block)
      : ring_(ring), codes_(codes), block_(block) {
    tile_ = static_cast<int>(threadIdx.x) / kGroupThreads - kGroups;
    chunk_ = block.num_chunks;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) CopyNext();
  }

  // First of the thread's two rows, which are neighbours; of the group's rows.
  static __device__ __forceinline__ int Row(int tile) {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    return tile * kRows + thread / 32 * 16 + thread % 32 / 4 * 2;
  }

  __device__ __forceinline__ bool done() const { return tile_ >= block_.num_tiles; }

  // The next stage is there; asks for the one that replaces the one before.
  __device__ __forceinline__ void NextStage() {
    WaitForCopies<kStages - 2>();
    if (++from_ == kStages) from_ = 0;
    CopyNext();
  }

  // Chunk `chunk` (0 or 1) of the stage as it is stored, of both rows.
  __device__ __forceinline__ void Load(int chunk, uint4 (&raw)[2][kPieces]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        raw[half][piece] = ring_[from_][chunk][half][piece][threadIdx.x];
    }
  }

  // Scales of the stage.
  __device__ __forceinline__ uint32_t Codes() const {
    if constexpr (kKind == StreamKind::kMxFp8) return codes_[from_][threadIdx.x];
    return 0;
  }

  // Makes wgmma's A of what Load gave, chunk `chunk` of a stage with these codes.
  static __device__ __forceinline__ void Widen(const uint4 (&raw)[2][kPieces],
                                               [[maybe_unused]] uint32_t codes, [[maybe_unused]] int chunk,
                                               uint32_t (&a)[4][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint4& of = raw[half][piece];
        const uint32_t words[4] = {of.x, of.y, of.z, of.w};
        if constexpr (kKind == StreamKind::kBf16) {
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            a[piece * 2 + step][half] = words[step * 2];
            a[piece * 2 + step][half + 2] = words[step * 2 + 1];
          }
        } else if constexpr (kKind == StreamKind::kMxFp8) {
          using Unpacked = Unpack<MatmulKind::kMmaMxFp8>;
          const int block = chunk * 2 + static_cast<int>(threadIdx.x) % 4 / 2;
          const PairScale scales = Unpacked::Expand(static_cast<uint8_t>(codes >> (8 * block)));
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            a[step][half] =
                Unpacked::Widen(words, scales, 2 * step) | (step == 0 ? Unpacked::Poison(words) : 0U);
            a[step][half + 2] = Unpacked::Widen(words, scales, 2 * step + 1);
          }
        } else if constexpr (kKind == StreamKind::kFp8Plain) {
          using Unpacked = Unpack<MatmulKind::kMmaFp8>;
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            a[step][half] = Unpacked::Widen(words, {}, 2 * step) | (step == 0 ? Unpacked::Poison(words) : 0U);
            a[step][half + 2] = Unpacked::Widen(words, {}, 2 * step + 1);
          }
        } else {
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            a[step][half] = HalvesOfE4m3(words[step], 0);
            a[step][half + 2] = HalvesOfE4m3(words[step], 1);
          }
        }
      }
    }
    FenceRegisters(a);
  }

 private:
  __device__ __forceinline__ void CopyNext() {
    if (chunk_ >= block_.num_chunks) NextTile();
    if (!done()) {
      const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        if (chunk_ + chunk >= block_.num_chunks) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            CopyAsync16(SharedAddress(&ring_[to_][chunk][half][piece][thread]),
                        rows_[half] + (chunk * kPieces + piece) * kUnitBytes, exists_[half]);
          }
        }
      }
      rows_[0] += 2 * kPieces * kUnitBytes;
      rows_[1] += 2 * kPieces * kUnitBytes;
      if constexpr (kKind == StreamKind::kMxFp8) {
        CopyAsync4(SharedAddress(&codes_[to_][thread]), code_, exists_[0]);
        code_ += sizeof(uint32_t);
      }
      chunk_ += 2;
    }
    CommitCopies();  // Also where nothing was asked for: copies are counted.
    if (++to_ == kStages) to_ = 0;
  }

  __device__ __forceinline__ void NextTile() {
    tile_ += kGroups;
    chunk_ = 0;
    if (done()) return;
    const Matrix& matrix = *block_.matrix;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(block_.first_tile + tile_) + half;
      exists_[half] = row < matrix.rows_per_group;
      rows_[half] =
          matrix.data +
          static_cast<int64_t>(block_.first_row() + (exists_[half] ? row : 0)) * matrix.shape.row_bytes +
          block_.first_chunk * kPieces * kUnitBytes + threadIdx.x % 4 * 16;
    }
    if constexpr (kKind == StreamKind::kMxFp8) {
      // The thread's rows are of 16 that share their scales.
      const int row = block_.first_row() + (exists_[0] ? Row(block_.first_tile + tile_) : 0);
      code_ = static_cast<const uint8_t*>(matrix.scale) +
              static_cast<int64_t>(row >> matrix.shape.block_rows_log2) * matrix.shape.scale_cols * 4 +
              block_.first_chunk * 2;
    }
  }

  Ring<kKind>& ring_;
  CodeRing<kKind>& codes_;
  const uint8_t* code_ = nullptr;
  const Block& block_;
  int tile_;   // Tile of the block to be asked for.
  int chunk_;  // The tile's.
  int to_ = 0;
  int from_ = kStages - 1;
  const uint8_t* rows_[2];
  bool exists_[2];
};

}  // namespace dsv4::backend::cuda::slice_kernel
