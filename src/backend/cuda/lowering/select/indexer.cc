// Rules that choose the kernels of the indexer's scores and of top-k, and the shared memory they take.
#include "backend/cuda/lowering/select/indexer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dsv4::backend::cuda {
namespace {

// Memory of lists in a block's shared memory: the kernels have some of their own, and the device keeps some.
size_t RoomOfLists(const DeviceLimits& device) {
  constexpr size_t kOfKernels = size_t{27} * 1024;
  return device.shared_bytes - std::min(device.shared_bytes, kOfKernels);
}

bool FitsIndexerMma(const IndexerShape& s, const DeviceLimits&) {
  return ScoresOnTensorCores(s.dtype, s.keys, s.num_heads, s.width);
}

bool FitsIndexerCluster(const IndexerShape& s, const DeviceLimits& d) {
  return d.has_clusters() && !s.blocks && FitsIndexerMma(s, d) && s.max_visible > s.top_k &&
         s.max_visible <= kIndexerClusterEntries && s.clusters && s.num_tokens <= s.clusters();
}

// Four tokens a block are mostly of one sequence; fewer, or with fewer entries, are too few blocks to pay for
// fetching four queries.
bool FitsIndexerWgmma(const IndexerShape& s, const DeviceLimits& d) {
  return d.has_wgmma() && ScoresOnTensorCores(s.dtype, s.keys, s.num_heads, s.width) &&
         s.num_heads == kScoreMaxHeads && s.num_tokens >= kMinTokensOfSequence * s.num_sequences &&
         s.num_tokens * s.max_visible >= kMinWgmmaScores;
}

// Remaining shapes: queries that share no keys. Of wide keys bytes are what bounds it, and the kernel for all
// of them will do.
bool FitsDecode(const IndexerShape& s, const DeviceLimits& d) {
  return d.has_wgmma() && ScoresOnTensorCores(s.dtype, s.keys, s.num_heads, s.width) &&
         s.num_heads == kScoreMaxHeads && s.keys == StoredForm::kRelease &&
         s.rows_per_page % kIndexerDecodePage == 0;
}

constexpr std::array<Rule<IndexerPath, IndexerShape>, 5> kIndexerRules = {{
    {IndexerPath::kCluster, "indexer/indexer_cluster",
     "up to 4096 entries, as long as all clusters are resident; without candidate blocks",
     FitsIndexerCluster},
    {IndexerPath::kWgmma, "indexer/indexer_wgmma",
     "64 heads of 128, 8 tokens a sequence, 2^17 scores; then indexer/top_k", FitsIndexerWgmma},
    {IndexerPath::kDecode, "indexer/indexer_decode",
     "64 heads of 128, packed keys in pages by 16; then indexer/top_k", FitsDecode},
    {IndexerPath::kMma, "indexer/indexer_select",
     "bf16, heads by 16 up to 64, of width 128; then indexer/top_k", FitsIndexerMma},
    {IndexerPath::kAny, "indexer/indexer_select", "the rest, in fp32; then indexer/top_k", FitsAll,
     RuleKind::kAny},
}};

constexpr std::array<Rule<TopKPath, TopKShape>, 2> kTopKRules = {{
    {TopKPath::kCluster, "indexer/top_k",
     "from 4096 scores a token: a cluster of 16, eight, four or two blocks",
     [](const TopKShape& s, const DeviceLimits& d) {
       return d.has_clusters() && s.has_scores && s.max_visible >= kMinClusterTopK;
     }},
    {TopKPath::kBlock, "indexer/top_k", "the rest: a block a token",
     [](const TopKShape&, const DeviceLimits&) { return true; }},
}};

}  // namespace

std::span<const Rule<IndexerPath, IndexerShape>> IndexerRules() { return kIndexerRules; }

Plan<IndexerPath> ChooseScores(const IndexerShape& shape, const DeviceLimits& device) {
  return FirstFit(IndexerRules().subspan(1), shape, device);
}

bool CanScore(const DeviceLimits& device, int64_t num_heads, int64_t width, int64_t max_visible) {
  constexpr int64_t kMaxVisible = int64_t{65535} * kScoreKeys;  // The grid's second dimension.
  return ScoreSharedBytes(num_heads, width) <= device.shared_bytes && max_visible <= kMaxVisible;
}

size_t ScoreSharedBytes(int64_t num_heads, int64_t width) {
  return static_cast<size_t>(num_heads * width + kScoreKeys * (width + 1) + 1) * sizeof(float) +
         size_t{kScoreKeys} * kScoreHeadGroups * sizeof(double);
}

int64_t TokensScoredAtOnce(int64_t num_tokens, int64_t max_visible) {
  return std::clamp<int64_t>(kMaxScores / max_visible, 1, num_tokens);
}

int ScoreTilesOfBlock(IndexerPath kernel, int64_t num_tokens, int64_t max_visible,
                      const DeviceLimits& device) {
  if (kernel == IndexerPath::kWgmma) {
    constexpr int64_t kBlocksOfSm = 2 * 8;
    const int64_t num_fours = CeilOf(num_tokens, kWgmmaScoreTokens);
    const int64_t num_tiles = CeilOf(max_visible, kWgmmaScoreKeys);
    const int64_t tiles = std::clamp<int64_t>(CeilOf(num_fours * num_tiles, kBlocksOfSm * device.num_sms),
                                              2 * kWgmmaScoreGroups, 32 * kWgmmaScoreGroups);
    return static_cast<int>(CeilOf(tiles, kWgmmaScoreGroups) * kWgmmaScoreGroups);
  }
  constexpr int64_t kBlocksOfSm = 4;
  constexpr int64_t kMostTiles = 16;
  const int64_t num_tiles = CeilOf(max_visible, kScoreMmaKeys);
  return static_cast<int>(
      std::clamp<int64_t>(CeilOf(num_tokens * num_tiles, kBlocksOfSm * device.num_sms), 1, kMostTiles));
}

std::span<const Rule<TopKPath, TopKShape>> TopKRules() { return kTopKRules; }

bool HoldsCandidates(const DeviceLimits& device, int64_t top_k) {
  return CandidatesSharedBytes(top_k) <= RoomOfLists(device);
}
bool HoldsMerge(const DeviceLimits& device, int64_t num_candidates, int64_t top_k) {
  return MergeSharedBytes(num_candidates, top_k) <= RoomOfLists(device);
}
size_t CandidatesSharedBytes(int64_t top_k) {
  return static_cast<size_t>(top_k + top_k % 2) * sizeof(uint64_t);
}
size_t MergeSharedBytes(int64_t num_candidates, int64_t top_k) {
  return static_cast<size_t>(num_candidates) * sizeof(uint64_t) +
         static_cast<size_t>(kMergeWords + top_k) * sizeof(uint32_t);
}

int64_t TopKClusterBlocks(int64_t num_tokens, int64_t max_visible, const DeviceLimits& device,
                          const RoomFor& room) {
  if (max_visible >= kMinSixteenTopK && num_tokens * 16 <= kTopKBlocksOfSm * device.num_sms &&
      num_tokens <= room(16)) {
    return 16;
  }
  int64_t blocks = 8;
  // Blocks of short pieces only wait for each other where tokens fill the device.
  const auto too_many = [&] {
    return num_tokens * blocks > kTopKBlocksOfSm * device.num_sms ||
           (num_tokens * blocks > device.num_sms && max_visible < kTopKMinPiece * blocks);
  };
  while (blocks > 2 && too_many() && max_visible <= kTopKMaxPiece * (blocks / 2)) blocks /= 2;
  return blocks;
}

int64_t DecodeScoreBlocks(int64_t num_tokens, int64_t max_visible, const DeviceLimits& device) {
  constexpr int64_t kKeys = int64_t{kDecodeScoreKeys} * kDecodeScoreGroups;
  const int64_t resident = int64_t{device.num_sms} * kDecodeScoreBlocksOfSm;
  return std::clamp<int64_t>(resident / num_tokens, 1, (max_visible + kKeys - 1) / kKeys);
}

int64_t EntriesInSteps(int64_t count, int64_t top_k) {
  constexpr int64_t kFirstStep = 1024;
  if (count <= top_k) return top_k;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(count, kFirstStep))));
}

int64_t SharedEntriesInSteps(int64_t count, int64_t top_k, int64_t num_ranks) {
  constexpr int64_t kRows = 256;
  if (count <= top_k) return top_k;
  const int64_t step = kRows * num_ranks;
  return (count + step - 1) / step * step;
}

}  // namespace dsv4::backend::cuda
