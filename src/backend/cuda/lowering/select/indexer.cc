#include "backend/cuda/lowering/select/indexer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace dsv4::backend::cuda {
namespace {

bool FitsMma(const IndexerShape& s, const DeviceLimits&) {
  return ScoresOnTensorCores(s.dtype, s.keys, s.num_heads, s.width);
}

bool FitsCluster(const IndexerShape& s, const DeviceLimits& d) {
  return FitsMma(s, d) && s.max_visible > s.top_k && s.max_visible <= kIndexerClusterEntries && s.clusters &&
         s.num_tokens <= s.clusters();
}

// Four tokens a block are mostly of one sequence; fewer, or with fewer entries, are too few blocks to pay for fetching four queries.
bool FitsWgmma(const IndexerShape& s, const DeviceLimits& d) {
  return d.has_wgmma() && ScoresOnTensorCores(s.dtype, s.keys, s.num_heads, s.width) &&
         s.num_heads == kScoreMaxHeads && s.num_tokens >= kMinTokensOfSequence * s.num_sequences &&
         s.num_tokens * s.max_visible >= kMinWgmmaScores;
}

bool FitsAll(const IndexerShape&, const DeviceLimits&) { return true; }

constexpr std::array<Rule<IndexerPath, IndexerShape>, 4> kRules = {{
    {IndexerPath::kCluster, "indexer/indexer_cluster",
     "up to 4096 entries, as long as all clusters are resident", FitsCluster},
    {IndexerPath::kWgmma, "indexer/indexer_wgmma",
     "64 heads of 128, 8 tokens a sequence, 2^17 scores; then indexer/top_k", FitsWgmma},
    {IndexerPath::kMma, "indexer/indexer_select",
     "bf16, heads by 16 up to 64, of width 128; then indexer/top_k", FitsMma},
    {IndexerPath::kAny, "indexer/indexer_select", "the rest, in fp32; then indexer/top_k", FitsAll,
     RuleKind::kAny},
}};

}  // namespace

std::span<const Rule<IndexerPath, IndexerShape>> IndexerRules() { return kRules; }

Plan<IndexerPath> ChooseScores(const IndexerShape& shape, const DeviceLimits& device) {
  return FirstFit(IndexerRules().subspan(1), shape, device);
}

TopKPath ChooseTopK(bool has_scores, int64_t max_visible) {
  return has_scores && max_visible >= kMinClusterTopK ? TopKPath::kCluster : TopKPath::kBlock;
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
