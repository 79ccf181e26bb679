// Which kernels choose entries: indexer_select, and the scores of indexer_candidates.
#pragma once

#include <functional>
#include <span>

#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/lowering/rule.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

struct IndexerShape {
  DType dtype = DType::kBF16;
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t num_heads = 0;
  int64_t width = 0;
  int64_t max_visible = 0;  // Entries that a token may see, at most.
  int64_t top_k = 0;
  StoredForm keys = StoredForm::kWide;
  // Clusters of indexer_cluster that the device has room for.
  std::function<int64_t()> clusters;
};

// One launch that scores and chooses, or scores by one of three kernels and top_k behind them.
enum class IndexerPath : uint8_t { kCluster, kWgmma, kMma, kAny };
std::span<const Rule<IndexerPath, IndexerShape>> IndexerRules();
inline Plan<IndexerPath> ChooseIndexer(const IndexerShape& shape, const DeviceLimits& device) {
  return FirstFit(IndexerRules(), shape, device);
}
// The same for scores alone.
Plan<IndexerPath> ChooseScores(const IndexerShape& shape, const DeviceLimits& device);

enum class TopKPath : uint8_t { kBlock, kCluster };
TopKPath ChooseTopK(bool has_scores, int64_t max_visible);

// What of a step's positions launches may depend on: how many entries a token sees at most, top_k if that is no more, then in steps, so
// that the launches of a sequence's steps stay the same.
int64_t EntriesInSteps(int64_t count, int64_t top_k);
// The same for entries that so many ranks divide: in steps of whole tiles of each rank's rows, which all thresholds of rows are.
int64_t SharedEntriesInSteps(int64_t count, int64_t top_k, int64_t num_ranks);

// Tensor cores take so many heads of this width.
inline constexpr int kScoreWidth = 128;
inline constexpr int kScoreMaxHeads = 64;
inline constexpr int64_t kIndexerClusterEntries = 4096;  // More want more than a cluster to score them.
inline constexpr int64_t kMaxOverRanksRows = 16384;  // Of a rank, where they are scored by a launch in front.
inline constexpr int64_t kMaxOverRanksTopK = 1024;
inline constexpr int64_t kMinWgmmaScores = int64_t{1} << 17;
inline constexpr int64_t kMinTokensOfSequence = 8;
inline constexpr int64_t kMinClusterTopK = 4096;

inline bool ScoresOnTensorCores(DType dtype, StoredForm keys, int64_t num_heads, int64_t width) {
  return dtype == DType::kBF16 && keys != StoredForm::kAny && width == kScoreWidth && num_heads % 16 == 0 &&
         num_heads <= kScoreMaxHeads;
}

}  // namespace dsv4::backend::cuda
