// Which kernels choose entries: indexer_select, and the scores of indexer_candidates.
#pragma once

#include <span>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/room_for.h"
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
  int64_t rows_per_page = 1;  // Keys'.
  bool blocks = false;        // Candidate blocks are chosen, or chosen from.
  RoomFor clusters;           // For indexer_cluster, whose clusters all have as many blocks.
};

// One launch that scores and chooses, or scores by one of four kernels and top_k behind them.
enum class IndexerPath : uint8_t { kCluster, kWgmma, kDecode, kMma, kAny };
std::span<const Rule<IndexerPath, IndexerShape>> IndexerRules();
inline Plan<IndexerPath> ChooseIndexer(const IndexerShape& shape, const DeviceLimits& device) {
  return FirstFit(IndexerRules(), shape, device);
}
// The same for scores alone.
Plan<IndexerPath> ChooseScores(const IndexerShape& shape, const DeviceLimits& device);

// Whether indexer_select has kernels for such queries and so many entries. Kernels without tensor cores hold
// a query, a tile of keys and their sums in shared memory. They have tiles of keys in a dimension of the
// grid.
bool CanScore(const DeviceLimits& device, int64_t num_heads, int64_t width, int64_t max_visible);
// Shared memory of the kernel without tensor cores.
size_t ScoreSharedBytes(int64_t num_heads, int64_t width);
// Tokens whose scores are made, and chosen from, at a time: memory must not grow with chunk times context.
int64_t TokensScoredAtOnce(int64_t num_tokens, int64_t max_visible);
// Tiles of keys that a block of the tensor-core kernels goes through. For kMma there are as many blocks as
// run at once, and tiles enough for a query to be worth fetching. For kWgmma, which has kWgmmaScoreTokens
// queries, blocks suffice for all SMs, two at a time, to end at about the same time. Each of its
// kWgmmaScoreGroups warpgroups has tiles.
int ScoreTilesOfBlock(IndexerPath kernel, int64_t num_tokens, int64_t max_visible,
                      const DeviceLimits& device);

// Path that chooses the best of the scores: one block a token, or a cluster of them. No scores: all entries
// are chosen.
enum class TopKPath : uint8_t { kBlock, kCluster };
struct TopKShape {
  bool has_scores = false;
  int64_t max_visible = 0;
};
std::span<const Rule<TopKPath, TopKShape>> TopKRules();
inline Plan<TopKPath> ChooseTopK(const TopKShape& shape, const DeviceLimits& device) {
  return FirstFit(TopKRules(), shape, device);
}

// Whether shared memory holds a list of candidates that is put in order, and all ranks' lists with what is
// chosen of them.
bool HoldsCandidates(const DeviceLimits& device, int64_t top_k);
bool HoldsMerge(const DeviceLimits& device, int64_t num_candidates, int64_t top_k);
size_t CandidatesSharedBytes(int64_t top_k);
size_t MergeSharedBytes(int64_t num_candidates, int64_t top_k);

// Blocks of kCluster that a token gets: 8, or 4 or 2 where those of all tokens would not run at once or
// have short pieces. 16 for many entries, if there is room for all such clusters: `room` says for how many.
int64_t TopKClusterBlocks(int64_t num_tokens, int64_t max_visible, const DeviceLimits& device,
                          const RoomFor& room);
// Blocks of kDecode that a token gets: so many that all run at once, if there are tiles for them.
int64_t DecodeScoreBlocks(int64_t num_tokens, int64_t max_visible, const DeviceLimits& device);

// Counts of a step's positions that launches may depend on: the most entries that a token sees. It is top_k
// if that is no more, then goes in steps, so that the launches of a sequence's steps stay the same.
int64_t EntriesInSteps(int64_t count, int64_t top_k);
// The same for entries that so many ranks divide: in steps of whole tiles of each rank's rows, which all
// thresholds of rows are.
int64_t SharedEntriesInSteps(int64_t count, int64_t top_k, int64_t num_ranks);

// Tensor cores take so many heads of this width.
inline constexpr int kScoreWidth = 128;
inline constexpr int kScoreMaxHeads = 64;
inline constexpr int64_t kIndexerClusterEntries = 4096;  // More want more than a cluster to score them.
// Rows of a rank, where they are scored by a launch in front.
inline constexpr int64_t kMaxOverRanksRows = 16384;
inline constexpr int64_t kMaxOverRanksTopK = 1024;
inline constexpr int64_t kMinWgmmaScores = int64_t{1} << 17;
inline constexpr int64_t kMinTokensOfSequence = 8;
inline constexpr int64_t kIndexerDecodePage = 16;  // Keys that a copy brings lie in one page.
inline constexpr int kDecodeScoreKeys = 64;        // Keys of a warpgroup's tile.
inline constexpr int kDecodeScoreGroups = 1;       // A block's.
inline constexpr int kDecodeScoreBlocksOfSm = 5;
inline constexpr int64_t kTopKBlocksOfSm = 2;
inline constexpr int64_t kTopKMaxPiece = 32768;  // Entries of a block: two such blocks' keys fit an SM.
inline constexpr int64_t kTopKMinPiece = 2048;   // A block's, where blocks are more than SMs.
inline constexpr int64_t kMinClusterTopK = 4096;
inline constexpr int64_t kMinSixteenTopK = 65536;
inline constexpr int kScoreKeys = 32;  // Keys of a block without tensor cores, with so many groups of heads.
inline constexpr int kScoreHeadGroups = 8;
inline constexpr int kScoreMmaKeys = 64;  // A tile's.
inline constexpr int kWgmmaScoreKeys = 64;
inline constexpr int kWgmmaScoreTokens = 4;
inline constexpr int kWgmmaScoreGroups = 2;
inline constexpr int64_t kMaxScores = int64_t{1} << 24;  // At a time: 64 MiB.
inline constexpr int kMergeWords = 8192;                 // Words of bits, one for each entry of a window.

inline bool ScoresOnTensorCores(DType dtype, StoredForm keys, int64_t num_heads, int64_t width) {
  return dtype == DType::kBF16 && keys != StoredForm::kAny && width == kScoreWidth && num_heads % 16 == 0 &&
         num_heads <= kScoreMaxHeads;
}

}  // namespace dsv4::backend::cuda
