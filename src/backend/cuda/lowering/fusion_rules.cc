#include "backend/cuda/lowering/fusion_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dsv4::backend::cuda {
namespace {

constexpr std::array kRows = {
    FusionRow{FusionRule::kLinearsGemv, "linears", "linears of the same activations", "gemm/gemv_stream",
              "8 tokens, 8 matrices"},
    FusionRow{FusionRule::kLinearsSplitK, "linears split-K", "linears of the same activations",
              "gemm/gemm_splitk_wgmma", "64 tokens, 8 matrices"},
    FusionRow{FusionRule::kGroupedLinearPair, "grouped_linear, linear",
              "grouped_linear, then the linear of its result", "gemm/gemv_pair", "8 tokens"},
    FusionRow{FusionRule::kExpertsAndLinear, "experts, linear",
              "routed_experts (gate, up, SwiGLU, down and sum of FP4), then the shared expert's down",
              "moe/gemv_joint", "1 token"},
    FusionRow{FusionRule::kSwigluRouter, "swiglu, router", "swiglu, then router", "moe/router", "8 tokens"},
    FusionRow{FusionRule::kAttentionRope, "attention, rope", "attention, then rope of its output",
              "attention/decode_cluster", "8 tokens, 2048 keys"},
    FusionRow{FusionRule::kRowSteps, "row steps",
              "norm, rope, rounding, scaling, Hadamard, stores, short compressor entries",
              "rows/row_tracks; rows/head_rows from 1024 rows of heads; rows/many_rows from 257 rows",
              "5 steps a track, 8 tracks"},
    FusionRow{FusionRule::kCombinePost, "moe_combine, hc_post", "moe_combine, then hc_post",
              "hyper_connection/hc_post", "any"},
    FusionRow{FusionRule::kPostPre, "hc_post, hc_pre", "[moe_combine,] hc_post, then hc_pre",
              "hyper_connection/hc_cluster; hyper_connection/hc_eights in two launches",
              "8 tokens; 256 tokens"},
    FusionRow{FusionRule::kPreNorm, "hc_pre, norm", "hc_pre, then rms_norm of its result",
              "hyper_connection/hc_cluster; hyper_connection/hc_eights", "8 tokens; 256 tokens"},
    FusionRow{FusionRule::kCombIntoLinear, "post and comb, linear",
              "hc_pre's post and comb, with the linear behind", "gemm/gemv_stream; gemm/gemm_splitk_wgmma",
              "8 tokens; 64 tokens"},
    FusionRow{FusionRule::kIndexerList, "indexer_select, attention",
              "indexer_select, then attention: its list is in order", "no sorting launch", "any"},
    FusionRow{FusionRule::kPackedTokens, "linears of packed tokens",
              "a linear of tokens that the linear in front packed", "no packing launch", "from 65 tokens"},
    FusionRow{FusionRule::kSumOverRanks, "sum over ranks, hc_post",
              "over ranks: moe_combine, the sum over ranks, then hc_post and what follows",
              "hyper_connection/hc_cluster", "8 tokens"},
    FusionRow{FusionRule::kPairSend, "pair, send",
              "over ranks: the pair of linears, then the send of its sum", "gemm/gemv_pair", "8 tokens"},
    FusionRow{FusionRule::kCandidatesOverRanks, "candidates over ranks",
              "over ranks: indexer_candidates, all-gather, merge_candidates, list of local rows",
              "indexer/indexer_over_ranks", "1 token, 1024 candidates a rank"},
    FusionRow{FusionRule::kAttentionOverRanks, "attention over ranks",
              "over ranks: all-gather of queries, attention_part, all-to-all, merge_attention, rope",
              "attention/attention_over_ranks", "1 token"},
};

}  // namespace

std::span<const FusionRow> FusionRows() { return kRows; }

const FusionRow& RowOf(FusionRule rule) { return kRows[static_cast<size_t>(rule)]; }

std::string FusionTableMarkdown() {
  std::string text = "| Ops | One launch | Up to |\n|---|---|---|\n";
  for (const FusionRow& row : kRows)
    text += fmt::format("| {} | {} | {} |\n", row.ops, row.launch, row.up_to);
  return text;
}

bool MayRunTogether(const Accesses& first, const Accesses& second) {
  const auto meet = [](std::span<const MemoryRange> a, std::span<const MemoryRange> b) {
    return std::ranges::any_of(a, [&](const MemoryRange& x) {
      return std::ranges::any_of(b, [&](const MemoryRange& y) { return Overlap(x, y); });
    });
  };
  return !meet(first.writes, second.reads) && !meet(first.writes, second.writes) &&
         !meet(first.reads, second.writes);
}

}  // namespace dsv4::backend::cuda
