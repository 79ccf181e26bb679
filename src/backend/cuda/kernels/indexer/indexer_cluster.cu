// Scores and top-k of up to 4096 entries in one launch: each block of a cluster scores a piece, all select
// together.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/indexer/indexer_cluster.cuh"
#include "backend/cuda/kernels/indexer/indexer_cluster.h"

namespace dsv4::backend::cuda {
namespace {

struct ClusterMemory {
  union {
    IndexerScoring scoring;
    KeyHistograms histograms;
  };
  IndexerKey all[kIndexerMaxEntries];  // Written by all blocks.
};

// Grid: blocks of a cluster, tokens.
__global__ void __cluster_dims__(kIndexerBlocks) __launch_bounds__(kIndexerThreads)
    IndexerClusterKernel(const __grid_constant__ SequenceTable table, const ScoreParams p,
                         int32_t* const all_selected) {
  MarkStage(Stage::kBegin);
  LetNextKernelStart();
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<ClusterMemory*>(raw);
  const int block = static_cast<int>(cooperative_groups::this_cluster().block_rank());
  const int64_t token = p.first_token + blockIdx.y;
  const SequenceRows& sequence = table.Of(token);
  const int visible = static_cast<int>(NumVisible(sequence, token, p.ratio));
  const int top_k = static_cast<int>(p.top_k);
  int32_t* const selected = all_selected + token * p.top_k;
  if (visible <= top_k) {
    if (block == 0) WriteAll(visible, top_k, kIndexerThreads, selected);
    EndStages(StageKernel::kIndexer, 0);
    return;
  }
  ScoreInCluster(m.scoring, m.all, table, sequence, p, token, visible);
  MarkStage(Stage::kMet);

  // Every block finds the threshold, and writes what is chosen of its piece.
  const auto key_at = [&](int j) { return uint32_t{m.all[j]}; };
  const Threshold threshold = FindThreshold(m.histograms, key_at, visible, top_k);
  MarkStage(Stage::kReadySecond);
  const IndexerPiece piece(visible, block);
  const int2 before_mine = WarpShare<kIndexerWarps>(piece.first);
  const Counts before =
      SumOverWarps<kIndexerWarps>(Count(key_at, before_mine.x, before_mine.y, threshold.prefix)).block;
  __syncthreads();
  const auto my_key_at = [&](int j) { return uint32_t{m.all[piece.first + j]}; };
  const int2 share = WarpShare<kIndexerWarps>(piece.count);
  const Before of_mine = SumOverWarps<kIndexerWarps>(Count(my_key_at, share.x, share.y, threshold.prefix));
  WriteChosen(my_key_at, share.x, share.y, piece.first, threshold, before + of_mine.warps, selected);
  EndStages(StageKernel::kIndexer, 0);
}

}  // namespace

int64_t IndexerClusters(LaunchContext& context) {
  return context.MostClusters(reinterpret_cast<const void*>(IndexerClusterKernel), kIndexerBlocks,
                              kIndexerThreads, sizeof(ClusterMemory));
}

void LaunchIndexerCluster(LaunchContext& context, const SequenceTable& table, const ScoreParams& params,
                          int32_t* selected, int64_t num_tokens) {
  context.Launch(IndexerClusterKernel, dim3(kIndexerBlocks, static_cast<unsigned>(num_tokens)),
                 kIndexerThreads, sizeof(ClusterMemory), table, params, selected);
}

}  // namespace dsv4::backend::cuda
