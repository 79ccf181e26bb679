#include <cooperative_groups.h>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/cluster_barrier.cuh"
#include "backend/cuda/kernels/copy_async.cuh"
#include "backend/cuda/kernels/indexer_cluster.h"
#include "backend/cuda/kernels/indexer_keys.cuh"
#include "backend/cuda/kernels/top_k.cuh"
#include "backend/cuda/kernels/top_k.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 16;  // Of a cluster.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxEntries = 4096;  // More want more than a cluster to score them.
constexpr int kMaxPiece = kMaxEntries / kBlocks;

using Key = uint16_t;  // The high bits of an ordered score, which is a bf16 number.

struct ClusterMemory {
  union {
    uint16_t keys[kMaxPiece][kScoreRow];
    int histograms[kTopKHistograms]
                  [kTopKBuckets + 1];  // One more, so that equal buckets lie in different banks.
  };
  uint16_t q[kScoreMaxHeads][kScoreRow];
  uint32_t head_weights[kScoreMaxHeads];  // Each twice, for two keys.
  Key mine[kMaxPiece];
  Key all[kMaxEntries];  // Written by all blocks.
  int histogram[kTopKBuckets];
  Threshold threshold;
};

// Copies whole rows of shared memory at `to` from rows(i), 16 bytes a thread at a time.
template <typename RowAt>
__device__ __forceinline__ void LoadRows(uint16_t (*to)[kScoreRow], int num_rows, RowAt row_at) {
  constexpr int kPieces = kScoreWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces * 8;
    CopyAsync(&to[row][piece], row_at(row) + piece);
  }
}

// The k-th highest of keys [0, count), by all threads of a block.
__device__ __forceinline__ Threshold FindThreshold(ClusterMemory& m, int count, int top_k) {
  const int t = static_cast<int>(threadIdx.x);
  Threshold threshold{.prefix = 0, .left = top_k};
  for (int shift = kTopKBits; shift >= 0; shift -= kTopKBits) {
    for (int i = t; i < kTopKHistograms * kTopKBuckets; i += kThreads)
      m.histograms[i / kTopKBuckets][i % kTopKBuckets] = 0;
    __syncthreads();
    int* const histogram = m.histograms[t % kTopKHistograms];
#pragma unroll 4
    for (int j = t; j < count; j += kThreads) {
      const uint32_t key = m.all[j];
      if (shift == kTopKBits || key >> kTopKBits == threshold.prefix >> kTopKBits)
        atomicAdd(&histogram[key >> shift & (kTopKBuckets - 1)], 1);
    }
    __syncthreads();
    static_assert(kThreads == kTopKBuckets);
    int sum = 0;
    for (int i = 0; i < kTopKHistograms; ++i) sum += m.histograms[i][t];
    m.histogram[t] = sum;
    __syncthreads();
    if (t < 32) NextThreshold(m.histogram, shift, threshold, &m.threshold);
    __syncthreads();
    threshold = m.threshold;
  }
  return threshold;
}

// Grid: blocks of a cluster, tokens.
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads)
    IndexerClusterKernel(const __grid_constant__ SequenceTable table, const ScoreParams p,
                         int32_t* const all_selected) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<ClusterMemory*>(raw);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t token = p.first_token + blockIdx.y;
  const SequenceRows& sequence = table.Of(token);
  const int visible = static_cast<int>(NumVisible(sequence, token, p.ratio));
  const int top_k = static_cast<int>(p.top_k);
  int32_t* const selected = all_selected + token * p.top_k;
  if (visible <= top_k) {
    if (rank == 0) WriteAll(visible, top_k, kThreads, selected);
    return;
  }
  ArriveAtClusterRelaxed();  // Others may write here when all have begun.

  // Whole groups of 16, which are a warp's.
  const int piece = (visible + 16 * kBlocks - 1) / (16 * kBlocks) * 16;
  const int first = min(visible, rank * piece);
  const int num_keys = min(visible - first, piece);
  const int t = static_cast<int>(threadIdx.x);
  const auto rows_per_page = static_cast<uint32_t>(table.rows_per_page);
  const void* const* const pages = &table.pages[sequence.page_begin];
  LoadRows(m.keys, num_keys, [&](int row) {
    const auto key = static_cast<uint32_t>(first + row);
    return static_cast<const uint16_t*>(pages[key / rows_per_page]) + key % rows_per_page * kScoreWidth;
  });
  const auto* const q = static_cast<const uint16_t*>(p.q) + token * p.num_heads * kScoreWidth;
  LoadRows(m.q, p.num_heads, [&](int row) { return q + row * kScoreWidth; });
  if (t < p.num_heads)
    m.head_weights[t] = Both(static_cast<const uint16_t*>(p.weights)[token * p.num_heads + t]);
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  for (int begin = t / 32 * 16; begin < num_keys; begin += kWarps * 16) {
    ScoreSixteenKeys(m.keys[begin], m.q[0], m.head_weights, p.num_heads, [&](int key, float score) {
      if (begin + key < num_keys) m.mine[begin + key] = static_cast<Key>(OrderedKey(score) >> 16);
    });
  }
  __syncthreads();

  // Two keys at a time; behind an odd number stands one that nobody looks at.
  WaitForCluster();
  const auto* const words = reinterpret_cast<const uint32_t*>(m.mine);
  const int num_words = (num_keys + 1) / 2;
  for (int i = t; i < kBlocks * kMaxPiece / 2; i += kThreads) {
    const int word = i % (kMaxPiece / 2);
    if (word < num_words) {
      reinterpret_cast<uint32_t*>(cluster.map_shared_rank(&m.all[0], i / (kMaxPiece / 2)))[first / 2 + word] =
          words[word];
    }
  }
  cluster.sync();

  // Everybody finds the threshold, and writes what is chosen of its piece.
  const Threshold threshold = FindThreshold(m, visible, top_k);
  const auto key_at = [&](int j) { return uint32_t{m.all[j]}; };
  const int2 before_mine = WarpShare<kWarps>(first);
  const Counts before =
      SumOverWarps<kWarps>(Count(key_at, before_mine.x, before_mine.y, threshold.prefix)).block;
  __syncthreads();
  const auto my_key_at = [&](int j) { return uint32_t{m.all[first + j]}; };
  const int2 share = WarpShare<kWarps>(num_keys);
  const Before of_mine = SumOverWarps<kWarps>(Count(my_key_at, share.x, share.y, threshold.prefix));
  WriteChosen(my_key_at, share.x, share.y, first, threshold, before + of_mine.warps, selected);
}

}  // namespace

bool HasIndexerCluster(CudaContext& context, const ScoreParams& params, DType dtype, int64_t num_tokens) {
  if (!ScoresOnTensorCores(dtype, params.num_heads, params.width) || params.max_visible <= params.top_k ||
      params.max_visible > kMaxEntries) {
    return false;
  }
  return num_tokens <= context.queue().MostClusters(reinterpret_cast<const void*>(IndexerClusterKernel),
                                                    kBlocks, kThreads, sizeof(ClusterMemory));
}

uint64_t SelectInCluster(CudaContext& context, const SequenceTable& table, const ScoreParams& params,
                         int32_t* selected, int64_t num_tokens) {
  return context.queue().Launch(IndexerClusterKernel, dim3(kBlocks, static_cast<unsigned>(num_tokens)),
                                kThreads, sizeof(ClusterMemory), table, params, selected);
}

}  // namespace dsv4::backend::cuda
