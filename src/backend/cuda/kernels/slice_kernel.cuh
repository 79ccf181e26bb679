// The kernel of linear_slices.h, and what it is told.
//
// A slice is one of the segments of columns in which products are summed (matmul_mma.cuh), or all columns where they are few. A block
// rounds and keeps its slice of up to 64 tokens, wgmma's B operand, and takes a run of row tiles, of 64 rows a warpgroup: every thread
// copies the weights that it will itself widen into wgmma's A operand, some stages ahead. Sums of a segment that is not all go to
// device memory, where the warpgroup that comes last to a row tile adds them up in order.
//
// Steps, segments and the order of all sums are those of matmul_mma.cuh; so are the bits.
#pragma once

#include <cstddef>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/copy_async.cuh"
#include "backend/cuda/kernels/grid_barrier.h"
#include "backend/cuda/kernels/hc_mixes.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/linear_output.cuh"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/shared_address.cuh"
#include "backend/cuda/kernels/stream_params.h"
#include "backend/cuda/kernels/stream_rows.cuh"
#include "backend/cuda/kernels/stream_units.cuh"

namespace dsv4::backend::cuda::slice_kernel {

inline constexpr int kRows = 64;   // Of a tile.
inline constexpr int kGroups = 2;  // Warpgroups of a block.
inline constexpr int kGroupThreads = 128;
inline constexpr int kThreads = kGroups * kGroupThreads;
inline constexpr int kChunk = 64;  // Columns that are multiplied at a time: four steps of 16.
inline constexpr int kChunkWords = kChunk / 2;
inline constexpr int kMaxColumns = 1024;  // Of a slice of 64 tokens.
inline constexpr int kMaxMatrices = 8;    // Of a launch.

// What the threads of a block have under way: stages of two chunks of columns.
template <StreamKind kKind>
struct Format {
  static constexpr int kPieces =
      kKind == StreamKind::kBf16 ? 2 : 1;  // Of 16 bytes, of a chunk and row of a thread.
  static constexpr int kStages = kKind == StreamKind::kBf16 ? 3 : 5;
};
template <StreamKind kKind>
using Ring = uint4[Format<kKind>::kStages][2][2][Format<kKind>::kPieces][kThreads];  // By chunk, row, piece.

struct Matrix {
  StreamShape shape;
  const uint8_t* data;
  const void* scale;
  LinearOutput y;
  int rows_per_group;
  int row_tiles;   // Of a group.
  int first_tile;  // Of the launch's row tiles.
  int first_block;
  int blocks_per_slice;
};

struct Params {
  const uint16_t* x;
  int64_t x_stride;        // Between tokens,
  int64_t x_group_stride;  // between groups.
  float4* sums;        // Of a row tile: by slice, then as threads hold them; where there are several slices.
  uint32_t* arrivals;  // Of a row tile: how many slices are there. Zero before and after.
  int num_matrices;
  int num_groups;
  int slices;
  int slice_chunks;  // The last may have fewer.
  int num_chunks;
  int num_tokens;
  int token_tiles;
  int tiles_per_block;
  int mix_blocks;  // In front of all others: they do `mix`.
  int mix_tokens;
  HcPreParams mix;
  Matrix matrices
      [kMaxMatrices];  // Last (LaunchList::AddArgument). Those behind num_matrices are zero: equal launches are equal bytes.
};
static_assert(offsetof(Params, matrices) + sizeof(Params::matrices) == sizeof(Params));

// What a block works on.
struct Block {
  const Matrix* matrix;
  int group;
  int slice;
  int token_tile;
  int first_tile;  // Of the group's.
  int num_tiles;
  int first_chunk;
  int num_chunks;

  __device__ explicit Block(const Params& p) {
    const int block = static_cast<int>(blockIdx.x) - p.mix_blocks;
    int m = 0;
    while (m + 1 < p.num_matrices && block >= p.matrices[m + 1].first_block) ++m;
    matrix = &p.matrices[m];
    int i = block - matrix->first_block;
    const int run = i % matrix->blocks_per_slice;
    i /= matrix->blocks_per_slice;
    token_tile = i % p.token_tiles;
    i /= p.token_tiles;
    slice = i % p.slices;
    group = i / p.slices;
    first_tile = run * p.tiles_per_block;
    num_tiles = min(p.tiles_per_block, matrix->row_tiles - first_tile);
    first_chunk = slice * p.slice_chunks;
    num_chunks = min(p.slice_chunks, p.num_chunks - first_chunk);
  }
  __device__ __forceinline__ int first_row() const { return group * matrix->rows_per_group; }
};

// Where word `word` (two columns) of a chunk lies in a token's 128 bytes, as wgmma's steps want the columns that a thread widens.
template <StreamKind kKind>
__device__ __forceinline__ int PlaceOfWord(int word, int token) {
  const int piece = kKind == StreamKind::kBf16 ? word / 16 * 4 + word % 4 : word % 8;
  const int of_lane = kKind == StreamKind::kBf16 ? word % 16 / 4 : word / 8;
  return (piece ^ token % 8) * 4 + of_lane;
}

// Sixteen lanes hold 128 columns of a token, eight each; `max` is that of the magnitudes of all.
__device__ __forceinline__ float LargestOfGroup(uint4 x) {
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
  for (int offset = 8; offset > 0; offset /= 2) max = larger(max, __shfl_xor_sync(half, max, offset));
  return fmaxf(__uint_as_float(max << 16), __uint_as_float(max & 0xFFFF0000U));
}

// The slice of the block's tokens into shared memory, [chunks][kTokens][64] as wgmma wants it; of FP8 rounded, with scales
// [groups of 128 columns][kTokens] beside it. Tokens that do not exist are zeros. A half-warp takes 128 columns of a token.
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
        const float scale = Fp8GroupScale(LargestOfGroup(value));
        const float reciprocal = ReciprocalOfPower(scale);
        uint32_t* const words = &value.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __half2 rounded = RoundPairToFp8(words[i], reciprocal);
          words[i] = *reinterpret_cast<const uint32_t*>(&rounded);
        }
        if (lane == 0) x_scales[group * kTokens + token + k * kHalfWarps] = scale;
      } else if constexpr (kKind == StreamKind::kFp8Plain) {
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

// A thread's copies, stage by stage through the row tiles of its warpgroup.
template <StreamKind kKind>
class Weights {
 public:
  static constexpr int kStages = Format<kKind>::kStages;
  static constexpr int kPieces = Format<kKind>::kPieces;

  __device__ Weights(Ring<kKind>& ring, const Block& block) : ring_(ring), block_(block) {
    tile_ = static_cast<int>(threadIdx.x) / kGroupThreads - kGroups;
    chunk_ = block.num_chunks;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) CopyNext();
  }

  // Of the thread's two rows, which are neighbours, the first; of the group's rows.
  static __device__ __forceinline__ int Row(int tile) {
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    return tile * kRows + thread / 32 * 16 + thread % 32 / 4 * 2;
  }

  __device__ __forceinline__ bool done() const { return tile_ >= block_.num_tiles; }

  // The next stage is there; asks for the one that takes the place of the one before.
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

  // What Load gave as wgmma's A.
  static __device__ __forceinline__ void Widen(const uint4 (&raw)[2][kPieces], uint32_t (&a)[4][4]) {
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
  }

  Ring<kKind>& ring_;
  const Block& block_;
  int tile_;   // Of the block's, to be asked for.
  int chunk_;  // Of the tile.
  int to_ = 0;
  int from_ = kStages - 1;
  const uint8_t* rows_[2];
  bool exists_[2];
};

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

// Where the slices of a row tile of a block are kept, this thread's part of the first; and the tile's number.
template <int kTokens>
struct Parts {
  static constexpr int kFours = kTokens / 8;  // Of a thread.
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
  // Of all slices in order.
  __device__ __forceinline__ void Add(int slices, float (&sums)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      float4 parts[kSegments];
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        if (s < slices) parts[s] = __ldcg(Of(s) + i * kGroupThreads);
      }
      float4 sum = parts[0];
#pragma unroll
      for (int s = 1; s < kSegments; ++s) {
        if (s >= slices) continue;
        sum.x += parts[s].x;
        sum.y += parts[s].y;
        sum.z += parts[s].z;
        sum.w += parts[s].w;
      }
      sums[4 * i] = sum.x;
      sums[4 * i + 1] = sum.y;
      sums[4 * i + 2] = sum.z;
      sums[4 * i + 3] = sum.w;
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
  __device__ __forceinline__ explicit NextChunks(Weights<kKind>& weights) {
    weights.NextStage();
    weights.Load(0, raw[0]);
    weights.Load(1, raw[1]);
  }
};

// A row tile's columns of the block's slice times the tokens, from the two chunks `a` on, which leaves those that follow. kWhole: all
// columns, in segments of two chunks; else a segment.
template <StreamKind kKind, int kTokens, bool kWhole>
__device__ __forceinline__ void MultiplyTile(Weights<kKind>& weights, TwoChunks& a, int num_chunks,
                                             uint32_t x, const float* scales, const float* token_scales,
                                             float (&total)[kTokens / 2]) {
  constexpr bool kScaled = kKind != StreamKind::kBf16;  // Sums of a chunk, that is.
  constexpr int kSums = kTokens / 2;
  constexpr int kSecond = kScaled ? 1 : 0;
  float sums[kSums];
  float chunk_sums[kSecond + 1][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    total[i] = -0.0F;  // Which adds nothing to whatever comes.
    sums[i] = 0.0F;
  }
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; chunk += 2) {
    FenceRegisters(chunk_sums[0]);
    FenceRegisters(chunk_sums[kSecond]);
    BeginMatrixSteps();
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const uint64_t of_x =
          MatrixDescriptor(x + static_cast<uint32_t>((chunk + b) * kTokens * kChunkWords * 4));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if constexpr (kKind == StreamKind::kFp8) {
          MatrixStep<kTokens, true>::Add(chunk_sums[b], a[b][step], of_x + 2 * step, step > 0 ? 1 : 0);
        } else if constexpr (kScaled) {
          MatrixStep<kTokens>::Add(chunk_sums[b], a[b][step], of_x + 2 * step, step > 0 ? 1 : 0);
        } else {
          MatrixStep<kTokens>::Add(chunk_sums[0], a[b][step], of_x + 2 * step,
                                   b + step > 0 || (!kWhole && chunk > 0) ? 1 : 0);
        }
      }
      CommitMatrixSteps();
    }
    // While they run. Both chunks lie in one block of scales.
    float2 factors[kTokens / 8];
    if constexpr (kScaled) {
      const float scale = scales[chunk];
#pragma unroll
      for (int i = 0; i < kTokens / 8; ++i) {
        factors[i] = make_float2(scale, scale);
        if constexpr (kKind == StreamKind::kFp8) {
          const float2 of_tokens =
              *reinterpret_cast<const float2*>(token_scales + chunk / 2 * kTokens + i * 8);
          factors[i] = make_float2(scale * of_tokens.x, scale * of_tokens.y);
        }
      }
    }
    const NextChunks<kKind> next(weights);
    const auto add = [&](const float(&of)[kSums]) {
      if constexpr (kScaled) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
          sums[i] = fmaf(of[i], i % 2 == 0 ? factors[i / 4].x : factors[i / 4].y, sums[i]);
      }
    };
    WaitForMatrixSteps<1>();
    if constexpr (kScaled) FenceRegisters(chunk_sums[0]);
    FenceRegisters(a[0]);
    add(chunk_sums[0]);
    Weights<kKind>::Widen(next.raw[0], a[0]);
    WaitForMatrixSteps<0>();
    FenceRegisters(chunk_sums[kSecond]);
    FenceRegisters(a[1]);
    add(chunk_sums[kSecond]);
    Weights<kKind>::Widen(next.raw[1], a[1]);
    if constexpr (kWhole) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        total[i] += kScaled ? sums[i] : chunk_sums[0][i];
        sums[i] = 0.0F;
      }
    }
  }
  if constexpr (!kWhole) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) total[i] = kScaled ? sums[i] : chunk_sums[0][i];
  }
}

// Shared memory of a block, in bytes: activations, the ring, and scales of tokens and of weights.
template <StreamKind kKind>
__host__ __device__ constexpr size_t SharedBytes(int slice_chunks, int tokens, int tiles_per_block) {
  const auto chunks = static_cast<size_t>(slice_chunks);
  return chunks * static_cast<size_t>(tokens) * kChunk * sizeof(uint16_t) + sizeof(Ring<kKind>) +
         (kKind == StreamKind::kFp8 ? chunks / 2 * static_cast<size_t>(tokens) * sizeof(float) : 0) +
         (kKind != StreamKind::kBf16 ? static_cast<size_t>(tiles_per_block) * chunks * sizeof(float) : 0);
}

template <StreamKind kKind, int kTokens, bool kWhole>
__device__ __forceinline__ void MultiplyBlock(const Params& p, const Block& block, unsigned char* shared,
                                              bool* is_last) {
  const Matrix& matrix = *block.matrix;
  auto* const x = reinterpret_cast<uint32_t*>(shared);
  unsigned char* const behind_x =
      shared + p.slice_chunks * kTokens * kChunkWords * static_cast<int>(sizeof(uint32_t));
  auto& ring = *reinterpret_cast<Ring<kKind>*>(behind_x);
  auto* const x_scales = reinterpret_cast<float*>(behind_x + sizeof(ring));
  float* const scales = x_scales + (kKind == StreamKind::kFp8 ? p.slice_chunks / 2 * kTokens : 0);
  Weights<kKind> weights(ring, block);
  if constexpr (kKind != StreamKind::kBf16) {
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
    Weights<kKind>::Widen(next.raw[0], a[0]);
    Weights<kKind>::Widen(next.raw[1], a[1]);
  }
  WaitForKernelsBefore();
  LoadSlice<kKind, kTokens>(p, block, x, x_scales);
  PublishToMatrixSteps();
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const float* const token_scales = x_scales + threadIdx.x % 4 * 2;  // Of the thread's sums.
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
  // What all threads of the group have stored is seen by who comes last to a tile.
  MeetInGroup();
#pragma unroll 1
  for (int tile = group; tile < block.num_tiles; tile += kGroups) {
    const Parts<kTokens> parts(p, block, block.first_tile + tile);
    if (threadIdx.x % kGroupThreads == 0) is_last[group] = IsLastSlice(p, parts.tile);
    MeetInGroup();
    const bool last = is_last[group];
    MeetInGroup();
    if (!last) continue;
    parts.Add(p.slices, total);
    store(block.first_tile + tile, total);
  }
}

// Weights of kinds kKinds. Grid: blocks of the mix, then matrices, groups, slices, token tiles, runs of row tiles.
template <int kTokens, bool kWhole, StreamKind... kKinds>
__global__ void __launch_bounds__(kThreads, 1) SliceKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ bool is_last[kGroups];
  if (static_cast<int>(blockIdx.x) < p.mix_blocks) {
    LetNextKernelStart();
    WaitForKernelsBefore();
    return HcMixesOfBlock<kThreads>(p.mix, static_cast<int>(blockIdx.x), p.mix_tokens,
                                    *reinterpret_cast<MixesMemory*>(shared));
  }
  const Block block(p);
  WithStreamKind<kKinds...>(block.matrix->shape.kind, [&]<StreamKind kKind>() {
    MultiplyBlock<kKind, kTokens, kWhole>(p, block, shared, is_last);
  });
}

}  // namespace dsv4::backend::cuda::slice_kernel
