// Steps of a cluster of blocks that chooses among a few thousand entries of one token. It scores them, a
// piece a block, and sends every block the scores. Then every block finds the k-th highest of all by itself.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/sync/cluster_barrier.cuh"
#include "backend/cuda/kernels/indexer/indexer_keys.cuh"
#include "backend/cuda/kernels/indexer/top_k.cuh"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/lowering/work/score_params.h"

namespace dsv4::backend::cuda {

inline constexpr int kIndexerBlocks = 16;  // A cluster's.
inline constexpr int kIndexerThreads = 256;
inline constexpr int kIndexerWarps = kIndexerThreads / 32;
inline constexpr int kIndexerMaxEntries = static_cast<int>(kIndexerClusterEntries);
inline constexpr int kIndexerMaxPiece = kIndexerMaxEntries / kIndexerBlocks;

using IndexerKey = uint16_t;  // The high bits of an ordered score, which is a bf16 number.

struct IndexerScoring {
  uint16_t keys[kIndexerMaxPiece][kScoreRow];
  uint16_t q[kScoreMaxHeads][kScoreRow];
  uint32_t head_weights[kScoreMaxHeads];  // Each twice, for two keys.
  IndexerKey mine[kIndexerMaxPiece];
};

// A block's entries [first, first + count) of those that are visible: whole groups of 16, which are a warp's.
struct IndexerPiece {
  int first;
  int count;
  __device__ IndexerPiece(int visible, int block) {
    const int piece = (visible + 16 * kIndexerBlocks - 1) / (16 * kIndexerBlocks) * 16;
    first = min(visible, block * piece);
    count = min(visible - first, piece);
  }
};

// Copies whole rows of shared memory at `to` from rows(i), 16 bytes a thread at a time.
template <typename RowAt>
__device__ __forceinline__ void LoadScoreRows(uint16_t (*to)[kScoreRow], int num_rows, RowAt row_at) {
  constexpr int kPieces = kScoreWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * kPieces; i += kIndexerThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces * 8;
    CopyAsync(&to[row][piece], row_at(row) + piece);
  }
}

// Sends the keys of a token's entries [0, visible) to `all` of every block, at the same index of each. All
// threads of the cluster's blocks call it, and meet at its end. `all` has room for kIndexerMaxEntries and is
// not in `m`.
__device__ __forceinline__ void ScoreInCluster(IndexerScoring& m, IndexerKey* all, const SequenceTable& table,
                                               const SequenceRows& sequence, const ScoreParams& p,
                                               int64_t token, int visible) {
  ArriveAtClusterRelaxed();  // Others may write here when all have begun.
  const auto cluster = cooperative_groups::this_cluster();
  const IndexerPiece piece(visible, static_cast<int>(cluster.block_rank()));
  const int t = static_cast<int>(threadIdx.x);
  const auto rows_per_page = static_cast<uint32_t>(table.rows_per_page);
  const void* const* const pages = &table.pages[sequence.page_begin];
  const auto key_at = [&](int row) {
    const auto key = static_cast<uint32_t>(piece.first + row);
    return static_cast<const char*>(pages[key / rows_per_page]) +
           key % rows_per_page * static_cast<uint32_t>(table.paged.row_bytes);
  };
  const bool packed = table.form == StoredForm::kRelease;
  if (packed) {
    for (int i = t; i < 2 * piece.count; i += kIndexerThreads)
      CopyPackedKey(m.keys[i / 2], key_at(i / 2), i % 2);
  } else {
    LoadScoreRows(m.keys, piece.count,
                  [&](int row) { return reinterpret_cast<const uint16_t*>(key_at(row)); });
  }
  const auto* const q = static_cast<const uint16_t*>(p.q) + token * p.num_heads * kScoreWidth;
  LoadScoreRows(m.q, p.num_heads, [&](int row) { return q + row * kScoreWidth; });
  if (t < p.num_heads)
    m.head_weights[t] = Both(static_cast<const uint16_t*>(p.weights)[token * p.num_heads + t]);
  CommitCopies();
  WaitForCopies<0>();
  if (packed) {
    // Whole warps go around together.
    for (int i = t; i - t % 32 < 2 * piece.count; i += kIndexerThreads) {
      __syncwarp();
      WidenPackedKey(m.keys[min(i / 2, kIndexerMaxPiece - 1)], i % 2);
    }
  }
  __syncthreads();
  for (int begin = t / 32 * 16; begin < piece.count; begin += kIndexerWarps * 16) {
    ScoreSixteenKeys(m.keys[begin], m.q[0], m.head_weights, p.num_heads, [&](int key, float score) {
      if (begin + key < piece.count) m.mine[begin + key] = static_cast<IndexerKey>(OrderedKey(score) >> 16);
    });
  }
  __syncthreads();

  // Two keys at a time; behind an odd number stands one that no thread reads.
  WaitForCluster();
  const auto* const words = reinterpret_cast<const uint32_t*>(m.mine);
  const int num_words = (piece.count + 1) / 2;
  for (int i = t; i < kIndexerBlocks * kIndexerMaxPiece / 2; i += kIndexerThreads) {
    const int word = i % (kIndexerMaxPiece / 2);
    if (word < num_words) {
      IndexerKey* const there = cluster.map_shared_rank(all, i / (kIndexerMaxPiece / 2));
      reinterpret_cast<uint32_t*>(there)[piece.first / 2 + word] = words[word];
    }
  }
  cluster.sync();
}

struct KeyHistograms {
  int of_lanes[kTopKHistograms][kTopKBuckets + 1];  // One more, so that equal buckets lie in different banks.
  int all[kTopKBuckets];
  Threshold threshold;
};

// The k-th highest of keys [0, count), of which there are so many, by all threads of a block, which have met
// before.
template <typename KeyAt>
__device__ __forceinline__ Threshold FindThreshold(KeyHistograms& m, KeyAt key_at, int count, int top_k) {
  const int t = static_cast<int>(threadIdx.x);
  Threshold threshold{.prefix = 0, .left = top_k};
  for (int shift = kTopKBits; shift >= 0; shift -= kTopKBits) {
    for (int i = t; i < kTopKHistograms * kTopKBuckets; i += kIndexerThreads)
      m.of_lanes[i / kTopKBuckets][i % kTopKBuckets] = 0;
    __syncthreads();
    int* const histogram = m.of_lanes[t % kTopKHistograms];
#pragma unroll 4
    for (int j = t; j < count; j += kIndexerThreads) {
      const uint32_t key = key_at(j);
      if (shift == kTopKBits || key >> kTopKBits == threshold.prefix >> kTopKBits)
        atomicAdd(&histogram[key >> shift & (kTopKBuckets - 1)], 1);
    }
    __syncthreads();
    static_assert(kIndexerThreads == kTopKBuckets);
    int sum = 0;
    for (int i = 0; i < kTopKHistograms; ++i) sum += m.of_lanes[i][t];
    m.all[t] = sum;
    __syncthreads();
    if (t < 32) NextThreshold(m.all, shift, threshold, &m.threshold);
    __syncthreads();
    threshold = m.threshold;
  }
  return threshold;
}

}  // namespace dsv4::backend::cuda
