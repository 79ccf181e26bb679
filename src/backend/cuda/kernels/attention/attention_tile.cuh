// A tile of 64 keys and 16 heads by a block of four warps, on tensor cores: logits, weights, values. Keys are
// the values too. What is computed, in which order, is the same for every kernel that uses it.
#pragma once

#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

inline constexpr int kAttentionHeads = 16;
inline constexpr int kAttentionKeys = 64;
inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;
inline constexpr int kAttentionPad = 8;  // Elements behind a row, so that eight rows lie in different banks.

template <int kDim>
using AttentionQueries = uint16_t[kAttentionHeads][kDim + kAttentionPad];

template <int kDim>
struct AttentionTile {
  uint16_t keys[kAttentionKeys][kDim + kAttentionPad];
  AttentionQueries<kDim> q;
  uint16_t weights[kAttentionHeads][kAttentionKeys + kAttentionPad];
  const uint16_t* rows[kAttentionKeys];
};
using AttentionLogits = float[kAttentionHeads][kAttentionKeys + 4];

// Memory of a block that takes one tile.
template <int kDim>
struct TileMemory {
  AttentionTile<kDim> tile;
  AttentionLogits logits;
};

// Results of every tile of some tokens, before they are joined.
struct PartialResults {
  float* values;  // [tokens, num_heads, max_tiles, head_dim]
  float* maxima;  // [tokens, num_heads, max_tiles], of a tile's logits
  float* sums;    // [tokens, num_heads, max_tiles], of its weights
  int64_t first_token;
  int max_tiles;
};

// As many tokens of `num_tokens` at a time as keep partial results of max_keys keys in bounds: run(partial,
// count) for those that begin at partial.first_token.
template <int kDim, typename Run>
Status RunTiles(LaunchContext& context, int num_heads, int64_t num_tokens, int64_t max_keys, Run&& run) {
  const int64_t max_tiles = InSteps(CeilDiv(max_keys, kAttentionKeys));
  constexpr int64_t kMaxPartialBytes = int64_t{256} << 20;
  const int64_t token_bytes = num_heads * max_tiles * (kDim + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t tokens_at_once = std::clamp<int64_t>(kMaxPartialBytes / token_bytes, 1, num_tokens);
  const int64_t num_tiles = tokens_at_once * num_heads * max_tiles;
  PartialResults partial = {.values = nullptr,
                            .maxima = nullptr,
                            .sums = nullptr,
                            .first_token = 0,
                            .max_tiles = static_cast<int>(max_tiles)};
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.values, context.Scratch<float>(num_tiles * kDim));
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.maxima, context.Scratch<float>(num_tiles));
  DSV4_ASSIGN_OR_RETURN_STATUS(partial.sums, context.Scratch<float>(num_tiles));
  for (int64_t begin = 0; begin < num_tokens; begin += tokens_at_once) {
    partial.first_token = begin;
    run(partial, static_cast<unsigned>(std::min(tokens_at_once, num_tokens - begin)));
  }
  return {};
}

__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// Asks for the queries of num_heads heads, one behind the other at `q`; the others are zero. They are there
// after LoadKeys.
template <int kDim>
__device__ __forceinline__ void LoadQueries(AttentionQueries<kDim>& to, const uint16_t* q, int num_heads) {
  constexpr int kPieces = kDim / 8;  // Pieces of 16 bytes in a row.
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionHeads * kPieces; i += kAttentionThreads) {
    const int head = i / kPieces;
    const int piece = i % kPieces * 8;
    if (head < num_heads) {
      CopyAsync(&to[head][piece], q + head * kDim + piece);
    } else {
      *reinterpret_cast<uint4*>(&to[head][piece]) = make_uint4(0, 0, 0, 0);
    }
  }
}

// A warp's quarter of a tile's keys, of kReleaseRow. A packed row comes to the end of its slot. Columns
// without codes then lie where they belong, scales behind them, and codes widen from there to the beginning.
// A lane looks up a row. All lanes know all addresses before anything is asked for, since compilers do not
// move that across copies.
__device__ __forceinline__ void LoadReleaseKeys(AttentionTile<kReleaseRowWidth>& m, const KeyRows& keys,
                                                int64_t first_key, int num_keys) {
  constexpr int kKeysOfWarp = kAttentionKeys / kAttentionWarps;
  constexpr int kPieces = kReleaseRowBytes / 16;
  constexpr int kBegin = kReleaseRowCoded;  // A packed row's, in bytes.
  static_assert(kBegin + kReleaseRowBytes == static_cast<int>(sizeof(m.keys[0])));
  constexpr int kScales = kBegin + kReleaseRowScales;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * kKeysOfWarp;
  const auto bytes_of = [&](int key) { return reinterpret_cast<unsigned char*>(m.keys[first + key]); };
  const unsigned char* const mine = lane < kKeysOfWarp && first + lane < num_keys
                                        ? keys.template Row<unsigned char>(first_key + first + lane)
                                        : nullptr;
  const auto row_of = [&](int key) {
    return reinterpret_cast<const unsigned char*>(
        __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(mine), key));
  };
  const auto copy = [&](int key, const unsigned char* row, int piece) {
    unsigned char* const to = bytes_of(key) + kBegin + piece * 16;
    if (row != nullptr) {
      CopyAsync(to, row + piece * 16);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);  // Codes and scales of zeros.
    }
  };
  constexpr int kRowsAtOnce = 8;
#pragma unroll
  for (int begin = 0; begin < kKeysOfWarp; begin += kRowsAtOnce) {
    const unsigned char* rows[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = row_of(begin + i);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) copy(begin + i, rows[i], lane);
  }
  constexpr int kRest = kPieces - 32;  // A row's.
  constexpr int kRestOfLane = (kKeysOfWarp * kRest + 31) / 32;
  const unsigned char* rows[kRestOfLane];
#pragma unroll
  for (int i = 0; i < kRestOfLane; ++i) rows[i] = row_of((lane + i * 32) / kRest % kKeysOfWarp);
#pragma unroll
  for (int i = 0; i < kRestOfLane; ++i) {
    const int place = lane + i * 32;
    if (place < kKeysOfWarp * kRest) copy(place / kRest, rows[i], 32 + place % kRest);
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncwarp();
  // A lane has eight codes in front and eight behind the first 256.
  constexpr int kSecond = 256;
  const bool has_second = kSecond + 8 * lane < kReleaseRowCoded;
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int begin = 0; begin < kKeysOfWarp; begin += kAtOnce) {
    uint2 codes[2 * kAtOnce] = {};
    uint32_t scales[2 * kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      if (i % 2 == 1 && !has_second) continue;
      const unsigned char* const row = bytes_of(begin + i / 2);
      const int column = i % 2 * kSecond + 8 * lane;
      codes[i] = *reinterpret_cast<const uint2*>(row + kBegin + column);
      scales[i] = row[kScales + column / kReleaseRowGroup];
    }
    __syncwarp();
    WidenE4m3(codes, scales, [&](int i, const uint4& wide) {
      if (i % 2 == 0 || has_second)
        *reinterpret_cast<uint4*>(bytes_of(begin + i / 2) + 2 * (i % 2 * kSecond + 8 * lane)) = wide;
    });
  }
}

// The same of V4.1's rows: a row by a warp at a time, of which several are asked for together.
__device__ __forceinline__ void LoadV41Keys(AttentionTile<kV41RowWidth>& m, const KeyRows& keys,
                                            int64_t first_key, int num_keys) {
  constexpr int kKeysOfWarp = kAttentionKeys / kAttentionWarps;
  constexpr int kRowsAtOnce = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * kKeysOfWarp;
  const unsigned char* const mine = lane < kKeysOfWarp && first + lane < num_keys
                                        ? keys.template Row<unsigned char>(first_key + first + lane)
                                        : nullptr;
  const auto num_window =
      static_cast<int>(max(int64_t{0}, min(keys.num_window - first_key - first, int64_t{kKeysOfWarp})));
#pragma unroll 1
  for (int begin = 0; begin < kKeysOfWarp; begin += kRowsAtOnce) {
    SixteenColumns columns[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const auto* const row = reinterpret_cast<const unsigned char*>(
          __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(mine), begin + i));
      if (row != nullptr) columns[i].Load(row, begin + i < num_window, lane);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      uint4 wide[2];
      columns[i].Widen(begin + i < num_window, wide);
      auto* const to = reinterpret_cast<uint4*>(&m.keys[first + begin + i][16 * lane]);
      to[0] = wide[0];
      to[1] = wide[1];
    }
  }
}

// The same of rows in any form, element by element.
template <int kDim>
__device__ __forceinline__ void LoadAnyKeys(AttentionTile<kDim>& m, const KeyRows& keys, int64_t first_key,
                                            int num_keys) {
  for (int key = static_cast<int>(threadIdx.x) / 32; key < kAttentionKeys; key += kAttentionWarps) {
    for (int d = static_cast<int>(threadIdx.x) % 32; d < kDim; d += 32) {
      m.keys[key][d] =
          key < num_keys
              ? Bf16FromFloat(StoredElement<Bf16>(keys.FormatOf(first_key + key), m.rows[key], kDim, d))
              : uint16_t{0};
    }
  }
}

// Keys [first_key, first_key + num_keys) of the query; rows past them are zero. No warp may be reading the
// tile's keys.
template <int kDim>
__device__ __forceinline__ void LoadKeys(AttentionTile<kDim>& m, const KeyRows& keys, int64_t first_key,
                                         int num_keys) {
  constexpr int kPieces = kDim / 8;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kDim == kReleaseRowWidth) {
    if (keys.table.form == StoredForm::kRelease) {
      LoadReleaseKeys(m, keys, first_key, num_keys);
      __syncthreads();
      return;
    }
    if (keys.table.form == StoredForm::kV41) {
      LoadV41Keys(m, keys, first_key, num_keys);
      CommitCopies();  // Queries are asked for too.
      WaitForCopies<0>();
      __syncthreads();
      return;
    }
  }
  if (thread < num_keys) m.rows[thread] = keys.template Row<uint16_t>(first_key + thread);
  __syncthreads();
  if (keys.table.form != StoredForm::kWide) {
    LoadAnyKeys(m, keys, first_key, num_keys);
    CommitCopies();  // Queries'.
    WaitForCopies<0>();
    __syncthreads();
    return;
  }
  for (int i = thread; i < kAttentionKeys * kPieces; i += kAttentionThreads) {
    const int key = i / kPieces;
    const int piece = i % kPieces * 8;
    if (key < num_keys) {
      CopyAsync(&m.keys[key][piece], m.rows[key] + piece);
    } else {
      *reinterpret_cast<uint4*>(&m.keys[key][piece]) = make_uint4(0, 0, 0, 0);
    }
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
}

template <int kDim>
__device__ __forceinline__ void LoadQueries(AttentionTile<kDim>& m, const uint16_t* q, int num_heads) {
  LoadQueries<kDim>(m.q, q, num_heads);
}

// -inf for keys that are not. Ends with a barrier.
template <int kDim>
__device__ __forceinline__ void ComputeLogits(const AttentionTile<kDim>& m, const AttentionQueries<kDim>& q,
                                              AttentionLogits& logits, int num_keys, float scale) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;
  const int place = lane % 4;
  // 16 keys a warp.
  float sums[2][4] = {};
  const int matrix = lane / 8;
  const uint16_t* const q_row = q[lane % 8 + matrix % 2 * 8] + matrix / 2 * 8;
  const uint16_t* const key_row = m.keys[warp * 16 + lane % 8 + matrix / 2 * 8] + matrix % 2 * 8;
#pragma unroll 4
  for (int d = 0; d < kDim; d += 16) {
    uint32_t a[4];
    uint32_t b[4];
    LoadMatrices(a, q_row + d);
    LoadMatrices(b, key_row + d);
    Mma(sums[0], a, b[0], b[1]);
    Mma(sums[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = warp * 16 + tile * 8 + place * 2 + i % 2;
      logits[group + i / 2 * 8][key] = key < num_keys ? sums[tile][i] * scale : -INFINITY;
    }
  }
  __syncthreads();
}

template <int kDim>
__device__ __forceinline__ void ComputeLogits(const AttentionTile<kDim>& m, AttentionLogits& logits,
                                              int num_keys, float scale) {
  ComputeLogits<kDim>(m, m.q, logits, num_keys, scale);
}

// The largest logit of head thread / 8, for all eight threads of a head.
__device__ __forceinline__ float LargestLogit(const AttentionLogits& logits) {
  const int head = static_cast<int>(threadIdx.x) / 8;
  const int first = static_cast<int>(threadIdx.x) % 8 * 8;
  float max = -INFINITY;
  for (int i = 0; i < 8; ++i) max = fmaxf(max, logits[head][first + i]);
  for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
  return max;
}

// Eight threads a head, thread / 8, and eight keys a thread: the tile's weights relative to `max`, rounded
// for the value product only. Their sum comes back to all eight threads.
template <int kDim>
__device__ __forceinline__ float WeighKeys(AttentionTile<kDim>& m, const AttentionLogits& logits, float max) {
  const int head = static_cast<int>(threadIdx.x) / 8;
  const int first = static_cast<int>(threadIdx.x) % 8 * 8;
  float sum = 0.0F;
  for (int i = 0; i < 8; ++i) {
    const float weight = expf(logits[head][first + i] - max);
    sum += weight;
    m.weights[head][first + i] = Bf16FromFloat(weight);
  }
  for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, offset);
  return sum;
}

// store(head, column, first, second): the weighted sums of two columns of values. A quarter of the columns a
// warp.
template <int kDim, typename Store>
__device__ __forceinline__ void SumValues(const AttentionTile<kDim>& m, Store&& store) {
  constexpr int kColumns = kDim / kAttentionWarps;
  constexpr int kTiles = kColumns / 8;
  static_assert(kTiles % 2 == 0);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix = lane / 8;
  const int row = lane % 8 + matrix % 2 * 8;
  const uint16_t* const weight_row = m.weights[row] + matrix / 2 * 8;
  float o[kTiles][4] = {};
#pragma unroll
  for (int key = 0; key < kAttentionKeys; key += 16) {
    uint32_t a[4];
    LoadMatrices(a, weight_row + key);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(b, m.keys[key + row] + warp * kColumns + tile * 8 + matrix / 2 * 8);
      Mma(o[tile], a, b[0], b[1]);
      Mma(o[tile + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      store(lane / 4 + half * 8, warp * kColumns + tile * 8 + lane % 4 * 2, o[tile][half * 2],
            o[tile][half * 2 + 1]);
    }
  }
}

}  // namespace dsv4::backend::cuda
