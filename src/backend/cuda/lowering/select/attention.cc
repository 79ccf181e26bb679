// Rules that choose the kernel of attention and attention_part, and the grids and rounding of key counts.
#include "backend/cuda/lowering/select/attention.h"

#include <algorithm>
#include <array>
#include <bit>

namespace dsv4::backend::cuda {
namespace {

constexpr int64_t kHeadsOfGroup = 64;

// Queries are copied by 16 bytes, and rows are those of the release, or wide.
bool FitsHopper(const AttentionShape& s, const DeviceLimits& d) {
  return d.has_wgmma() && (s.rows == StoredForm::kWide || s.rows == StoredForm::kRelease) &&
         IsAligned(s.q, 16) && s.dtype == DType::kBF16 && s.head_dim == 512;
}

bool FitsColumns(const AttentionShape& s, const DeviceLimits& d) {
  return FitsHopper(s, d) && s.num_tokens >= kMinColumnsTokens &&
         s.max_keys <= kMaxColumnsTiles * kAttentionTileKeys && BlocksOfColumns(s) > 0;
}

bool FitsInRegisters(const AttentionShape& s, const DeviceLimits& d) {
  return FitsHopper(s, d) && s.num_tokens >= kMinInRegistersTokens &&
         s.max_keys <= kMaxInRegistersTiles * kAttentionTileKeys && IsAligned(s.o, 16);
}

bool FitsTwoPass(const AttentionShape& s, const DeviceLimits& d) {
  return FitsHopper(s, d) && s.num_tokens >= kMinTwoPassTokens;
}

bool HasMmaWidth(DType dtype, int64_t head_dim) {
  return dtype == DType::kBF16 && (head_dim == 128 || head_dim == 512);
}

bool FitsAttentionMma(const AttentionShape& s, const DeviceLimits&) {
  return HasMmaWidth(s.dtype, s.head_dim);
}

bool FitsDecodeCluster(const AttentionShape& s, const DeviceLimits& d) {
  const int64_t tiles = InSteps(CeilOf(s.max_keys, kAttentionTileKeys));
  constexpr int kFewestTiles =
      4;  // Keys that a block of the smallest cluster may have to hold (BlocksOfDecodeCluster).
  return d.has_clusters() && FitsAttentionMma(s, d) && s.num_tokens <= kMaxDecodeClusterTokens &&
         tiles <= kMaxDecodeClusterTiles &&
         DecodeClusterSharedBytes(s.head_dim, kFewestTiles) <= d.shared_bytes;
}

constexpr std::array<Rule<AttentionPath, AttentionShape>, 6> kAttentionRules = {{
    {AttentionPath::kHopperClusterColumns, "attention/hopper_cluster_columns",
     "from 9 tokens, up to 1280 keys, head width 512, as long as all clusters are resident", FitsColumns},
    {AttentionPath::kHopperInRegisters, "attention/hopper_in_registers",
     "from 65 tokens, up to 640 keys, head width 512", FitsInRegisters},
    {AttentionPath::kHopperTwoPass, "attention/hopper_two_pass", "from 40 tokens, head width 512",
     FitsTwoPass},
    {AttentionPath::kDecodeCluster, "attention/decode_cluster",
     "up to 8 tokens, up to 2048 keys, head width 128 or 512", FitsDecodeCluster},
    {AttentionPath::kMma, "attention/attention_mma", "bf16 of head width 128 or 512", FitsAttentionMma},
    {AttentionPath::kAny, "attention/attention", "the rest", FitsAll, RuleKind::kAny},
}};

constexpr std::array<Rule<AttentionPartPath, AttentionPartShape>, 2> kPartRules = {{
    {AttentionPartPath::kMma, "attention/attention_part", "bf16 of head width 128 or 512",
     [](const AttentionPartShape& s, const DeviceLimits&) { return HasMmaWidth(s.dtype, s.head_dim); }},
    {AttentionPartPath::kAny, "attention/attention_part", "the rest: one head of a token a block",
     [](const AttentionPartShape&, const DeviceLimits&) { return true; }, RuleKind::kAny},
}};

}  // namespace

std::span<const Rule<AttentionPath, AttentionShape>> AttentionRules() { return kAttentionRules; }
std::span<const Rule<AttentionPartPath, AttentionPartShape>> AttentionPartRules() { return kPartRules; }

int BlocksOfColumns(const AttentionShape& s) {
  const int64_t clusters = s.num_tokens * CeilOf(s.num_heads, kHeadsOfGroup);
  for (const int blocks : {8, 4, 2}) {
    if (s.column_clusters && clusters <= s.column_clusters(blocks)) return blocks;
  }
  return 0;
}

int BlocksOfDecodeCluster(int64_t tiles, int64_t clusters, const RoomFor& room) {
  constexpr int kFewBlocks = 8;
  const auto turns = [&](int blocks) {
    const int64_t of_block = CeilOf(tiles, blocks);
    const int64_t at_once = of_block > kMaxDecodeBlockTiles ? 0 : room(blocks);
    return at_once == 0 ? int64_t{0} : of_block * CeilOf(clusters, at_once);
  };
  int best = kFewBlocks;
  int64_t fewest = turns(best);
  for (const int blocks : {4, 16}) {
    const int64_t of_these = turns(blocks);
    if (of_these == 0 || (fewest > 0 && of_these >= fewest)) continue;
    best = blocks;
    fewest = of_these;
  }
  return best;
}

int BlocksOfAttentionOverRanks(int64_t tiles, int64_t clusters, const RoomFor& room) {
  const auto of_eight = [&](int blocks) { return blocks > 8 ? 0 : room(blocks); };
  return BlocksOfDecodeCluster(tiles, clusters, of_eight);
}

bool WidensFirst(const RowReads& reads) {
  const bool is_v41 = reads.rows == StoredForm::kV41;
  if (!is_v41 && reads.rows != StoredForm::kRelease) return false;
  return reads.num_tokens >= (is_v41 ? kMinColumnsTokens : kMinWidenedTokens) &&
         reads.num_rows <= (is_v41 ? 4 : 1) * kMaxWidenedRows &&
         reads.num_reads >= kMinReadsOfRow * reads.num_rows;
}

int64_t InSteps(int64_t count) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
  return power >= 4 && count <= power / 4 * 3 ? power / 4 * 3 : power;
}

int64_t KeysInSteps(int64_t count) {
  const int64_t tiles = CeilOf(count, kAttentionTileKeys);
  int64_t step = InSteps(tiles);
  for (const int64_t threshold : {kMaxInRegistersTiles, kMaxColumnsTiles, kMaxDecodeClusterTiles}) {
    if (tiles <= threshold) step = std::min(step, threshold);
  }
  return step * kAttentionTileKeys;
}

}  // namespace dsv4::backend::cuda
