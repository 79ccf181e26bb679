// Table of all fusion rules, with the predicates on shapes and operands that each row names.
#include "backend/cuda/lowering/launch/fusion_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "backend/cuda/lowering/gemv_shape.h"
#include "backend/cuda/lowering/launch/fusion_over_ranks.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/lowering/splitk_shape.h"

namespace dsv4::backend::cuda {
namespace {

// Whether the next op gets in no way of any op of the group.
bool IsApart(const OpGroup& group, const RecordedOp& next) {
  return std::ranges::all_of(
      group.ops, [&](const RecordedOp& op) { return MayShareLaunch(op.accesses, next.accesses); });
}

// --- Linears ---------------------------------------------------------------------------------------------------------

// One more matrix of the same activations, by the same kernel or by either of two.
bool ShareActivations(const OpGroup& group, const RecordedOp& next, LinearPath path) {
  if (group.first().kind != OpKind::kLinear) return false;
  const auto& first = group.As<LinearWork>(0);
  const auto& linear = std::get<LinearWork>(next.work);
  const auto takes = [&](const LinearWork& work) {
    return work.path == path || (work.either && path == LinearPath::kGemmSplitK);
  };
  return takes(first) && takes(linear) && first.either == linear.either &&
         std::ssize(group.ops) < kMaxFusedMatrices && linear.x == first.x &&
         linear.num_tokens == first.num_tokens && linear.weight.cols == first.weight.cols &&
         (first.num_tokens == 1 || linear.x_stride == first.x_stride) && IsApart(group, next);
}

// One kernel has one kind of weights, or a release's own mixture.
bool HaveOneKernel(const OpGroup& group, const LinearWork& linear) {
  const StreamKind first = StreamKindOf(group.As<LinearWork>(0).weight);
  bool alike = true;
  bool fp8_or_bf16 = true;
  bool mxfp8_or_bf16 = true;
  const auto add = [&](const LinearWork& work) {
    const StreamKind kind = StreamKindOf(work.weight);
    alike = alike && kind == first;
    fp8_or_bf16 = fp8_or_bf16 && (kind == StreamKind::kFp8 || kind == StreamKind::kBf16);
    mxfp8_or_bf16 = mxfp8_or_bf16 && (kind == StreamKind::kMxFp8 || kind == StreamKind::kBf16);
  };
  for (size_t i = 0; i < group.ops.size(); ++i) add(group.As<LinearWork>(i));
  add(linear);
  return alike || fp8_or_bf16 || mxfp8_or_bf16;
}

bool FitsLinearsGemv(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room) {
  if (!ShareActivations(group, next, LinearPath::kGemvStream)) return false;
  const auto& linear = std::get<LinearWork>(next.work);
  StreamForms forms;
  for (size_t i = 0; i < group.ops.size(); ++i) forms.Add(FormOf(group.As<LinearWork>(i).weight));
  forms.Add(FormOf(linear.weight));
  const size_t bytes = StreamRowsBytes(linear.weight.cols, linear.num_tokens);
  return HaveOneKernel(group, linear) &&
         static_cast<size_t>(forms.count) * bytes <= MaxStreamFormsBytes(room.shared_bytes());
}

bool FitsLinearsSplitK(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  if (!ShareActivations(group, next, LinearPath::kGemmSplitK)) return false;
  const auto& linear = std::get<LinearWork>(next.work);
  const Slices slices = SlicesOf(ShapeOf(linear.weight), linear.num_tokens);
  if (slices != SlicesOf(ShapeOf(group.As<LinearWork>(0).weight), linear.num_tokens)) return false;
  // Slices of a tile count each other.
  int64_t tiles = SplitKTiles(linear.rows_per_group);
  for (size_t i = 0; i < group.ops.size(); ++i) tiles += SplitKTiles(group.As<LinearWork>(i).rows_per_group);
  const bool can_count =
      slices.count == 1 || tiles * SplitKTokenTiles(slices, linear.num_tokens) <= kMaxSplitKArrivals;
  return can_count && HaveOneKernel(group, linear);
}

// Whether gemv_pair takes it. Alone, many columns of many tokens leave gemv_stream too little room for
// weights, and split-K has them.
bool StreamsInPair(const LinearWork& linear) {
  return linear.path == LinearPath::kGemvStream ||
         (linear.path == LinearPath::kGemmSplitK && linear.num_tokens <= kMaxGemvTokens &&
          CanStreamWeight(linear.weight, linear.rows_per_group) && linear.weight.cols % 8 == 0 &&
          IsAligned(linear.x, 16) && (linear.num_tokens == 1 || linear.x_stride % 8 == 0));
}

// The linear of what a grouped one gives, behind a barrier of all blocks. Blocks that are through with the
// second write while others still read its activations; those of the first they have all read.
bool FitsPair(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room) {
  const auto& groups = group.Last<LinearWork>();
  const auto& linear = std::get<LinearWork>(next.work);
  return groups.path == LinearPath::kGemvStream && StreamsInPair(linear) &&
         linear.num_tokens == groups.num_tokens && linear.x == groups.y && groups.y_is_bf16 &&
         groups.y_group_stride == groups.rows_per_group &&
         groups.num_groups * groups.rows_per_group == linear.weight.cols &&
         (linear.num_tokens == 1 || linear.x_stride == groups.y_stride) &&
         !WritesWhatItReads(next.accesses) && room.HoldsPair(groups, linear);
}

// The linear in front has packed just these, and has left them and their packed form as they were.
bool FitsPackedTokens(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  return group.launched && !WritesWhatItReads(group.last().accesses) &&
         group.Last<PackedTokensWork>() == std::get<PackedTokensWork>(next.work);
}

// This rank's part of a sum, which the pair's blocks send when they have it.
bool FitsPairSend(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  if (group.first().kind != OpKind::kGroupedLinear) return false;
  const auto& linear = group.Last<LinearWork>();
  const auto& sum = std::get<RankSumWork>(next.work);
  return linear.y == sum.routed && sum.added == nullptr && !linear.y_is_bf16 &&
         (linear.num_tokens == 1 || linear.y_stride == linear.rows_per_group) &&
         sum.count == linear.num_tokens * linear.rows_per_group;
}
void SendFromPair(OpGroup& group, RecordedOp& next) {
  auto& sum = std::get<RankSumWork>(next.work);
  group.links = sum.links;
  sum.links.pushed = 1;
}

// --- Experts ---------------------------------------------------------------------------------------------------------

// The shared expert's down, which has nothing to do with the experts. All of the launch runs at once.
bool FitsExpertsAndLinear(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room) {
  if (group.ops.size() > 1) return false;
  const auto& experts = group.As<JointExpertsWork>(0);
  const auto& linear = std::get<LinearWork>(next.work);
  const StreamKind kind = StreamKindOf(linear.weight);
  return experts.num_tokens <= kMaxFusedExpertsLinearTokens && linear.path == LinearPath::kGemvStream &&
         linear.num_tokens == experts.num_tokens &&
         (linear.num_tokens == 1 || linear.x_stride == linear.weight.cols) &&
         (kind == StreamKindOf(experts.w1) || kind == StreamKind::kFp8 || kind == StreamKind::kMxFp8) &&
         IsBulkAligned(linear.weight) && IsApart(group, next) && room.HoldsExpertsAndLinear(experts, linear);
}

// The two do not depend on each other.
bool FitsSwigluRouter(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  return std::get<RouterWork>(next.work).num_tokens <= kMaxRouterAndSwigluTokens && IsApart(group, next);
}

// --- Attention -------------------------------------------------------------------------------------------------------

// All of what attention gives is rotated, by the blocks that give it.
bool FitsAttentionRope(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const AttentionParams& attention = group.Last<AttentionWork>().params;
  const auto& rope = std::get<RopeWork>(next.work);
  return rope.x == attention.o && rope.dtype == DType::kBF16 &&
         rope.shape == Shape{attention.num_tokens, attention.num_heads, attention.head_dim} &&
         rope.rotation.num_frequencies <= kMaxDecodeClusterFrequencies && IsApart(group, next);
}

// --- Between two sub-layers ------------------------------------------------------------------------------------------

const RankSumWork* SumOf(const OpGroup& group) {
  for (const RecordedOp& op : group.ops) {
    if (const auto* const sum = std::get_if<RankSumWork>(&op.work)) return sum;
  }
  return nullptr;
}

// The sum over ranks of what moe_combine gives in fp32,
bool FitsCombineSum(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& combine = group.Last<CombineWork>();
  const auto& sum = std::get<RankSumWork>(next.work);
  return group.ops.size() == 1 && combine.y == sum.routed && sum.added == nullptr &&
         combine.count == sum.count && combine.dtype == DType::kF32 && IsApart(group, next);
}
// and moe_combine that rounds it.
bool FitsSumRounded(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& sum = group.Last<RankSumWork>();
  const auto& combine = std::get<CombineWork>(next.work);
  return sum.sum == combine.routed && sum.count == combine.count && combine.shared == nullptr &&
         combine.dtype == DType::kBF16 && IsApart(group, next);
}

// Element by element. Eight columns a thread, so what moe_combine reads is read by 16 bytes.
bool FitsCombinePost(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& combine = group.Last<CombineWork>();
  const auto& post = std::get<HcPostWork>(next.work);
  const RankSumWork* const sum = SumOf(group);
  const bool aligned =
      sum == nullptr ? IsAligned(combine.routed, 16) && IsAligned(combine.shared, 16)
                     : IsAligned(sum->routed, 16) && IsAligned(sum->added, 16) && IsAligned(sum->sum, 16);
  return combine.y == post.y && combine.count == post.num_tokens * post.dim && combine.dtype == post.dtype &&
         aligned && (sum == nullptr || post.dtype == DType::kBF16) && IsApart(group, next);
}

// A block writes columns that only itself reads, and post and comb when all have read them.
bool FitsPostPre(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room) {
  const auto& post = group.Last<HcPostWork>();
  const auto& pre = std::get<HcPreWork>(next.work);
  const bool over_ranks = SumOf(group) != nullptr;
  return post.dtype == DType::kBF16 && post.out == pre.streams && post.num_tokens == pre.num_tokens &&
         post.dim == pre.params.dim && !WritesWhatItReads(group.last().accesses) && IsApart(group, next) &&
         (pre.path == HcPrePath::kCluster ? room.HoldsHcCluster(pre.params.dim, over_ranks) : !over_ranks);
}

bool FitsPreNorm(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& pre = group.Last<HcPreWork>();
  const auto& norm = std::get<NormWork>(next.work);
  return norm.x == pre.u && norm.dtype == DType::kBF16 &&
         norm.shape == Shape{pre.num_tokens, pre.params.dim} && IsApart(group, next);
}

// post and comb are wanted at the sub-layer's end only.
bool FitsCombIntoLinear(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  const auto& linear = std::get<LinearWork>(next.work);
  if (linear.path == LinearPath::kGemmWgmma && !linear.either) return false;
  return !group.leaves_mix && (linear.path != LinearPath::kGemvStream || linear.num_groups == 1);
}
void HandOverMix(OpGroup& group, RecordedOp& next) {
  const auto& pre = group.As<HcPreWork>(group.ops.size() - 2);
  group.leaves_mix = true;
  std::get<LinearWork>(next.work).mix = {pre.params, pre.num_tokens};
}

// --- Rows ------------------------------------------------------------------------------------------------------------

bool FitsRowSteps(const OpGroup& group, const RecordedOp& next, const DeviceRoom& /*room*/) {
  return group.rows->Fits(std::get<RowsWork>(next.work));
}

// --- The table -------------------------------------------------------------------------------------------------------

using namespace over_ranks_rules;  // NOLINT: the table reads as a table.
using enum OpKind;
using enum Effect;

constexpr std::array kRows = {
    FusionRow{FusionRule::kLinearsGemv,
              "linears",
              "linears of the same activations",
              "gemm/gemv_stream",
              "8 tokens, 8 matrices",
              {{{kLinear, kLinear, kJoin, FitsLinearsGemv}}}},
    FusionRow{FusionRule::kLinearsSplitK,
              "linears split-K",
              "linears of the same activations",
              "gemm/gemm_splitk_wgmma; gemm/gemm_wgmma from 65 tokens",
              "8 matrices that it takes",
              {{{kLinear, kLinear, kJoin, FitsLinearsSplitK}}}},
    FusionRow{FusionRule::kGroupedLinearPair,
              "grouped_linear, linear",
              "grouped_linear, then the linear of its result",
              "gemm/gemv_pair",
              "8 tokens",
              {{{kGroupedLinear, kLinear, kJoin, FitsPair}}}},
    FusionRow{FusionRule::kExpertsAndLinear,
              "experts, linear",
              "routed_experts (gate, up, SwiGLU, down and sum of FP4), then the shared expert's down",
              "moe/gemv_joint",
              "8 tokens",
              {{{kExperts, kLinear, kJoin, FitsExpertsAndLinear}}}},
    FusionRow{FusionRule::kSwigluRouter,
              "swiglu, router",
              "swiglu, then router",
              "moe/router",
              "8 tokens",
              {{{kSwiglu, kRouter, kJoin, FitsSwigluRouter}}}},
    FusionRow{FusionRule::kAttentionRope,
              "attention, rope",
              "attention, then rope of its output",
              "attention/decode_cluster",
              "8 tokens, 2048 keys",
              {{{kAttention, kRope, kJoin, FitsAttentionRope}}}},
    FusionRow{FusionRule::kRowSteps,
              "row steps",
              "norm, rope, rounding, scaling, Hadamard, stores, short compressor entries",
              "rows/row_tracks; rows/head_rows from 1024 rows of heads; rows/many_rows from 257 rows",
              "5 steps a track, 8 tracks",
              {{{kRowStep, kRowStep, kJoin, FitsRowSteps}}}},
    FusionRow{FusionRule::kCombinePost,
              "moe_combine, hc_post",
              "moe_combine, then hc_post",
              "hyper_connection/hc_post",
              "any",
              {{{kCombine, kHcPost, kJoin, FitsCombinePost}}}},
    FusionRow{FusionRule::kPostPre,
              "hc_post, hc_pre",
              "[moe_combine,] hc_post, then hc_pre",
              "hyper_connection/hc_cluster; hyper_connection/hc_token_tiles in two launches",
              "8 tokens; 256 tokens",
              {{{kHcPost, kHcPre, kJoin, FitsPostPre}}}},
    FusionRow{FusionRule::kPreNorm,
              "hc_pre, norm",
              "hc_pre, then rms_norm of its result",
              "hyper_connection/hc_cluster; hyper_connection/hc_token_tiles",
              "8 tokens; 256 tokens",
              {{{kHcPre, kNorm, kJoin, FitsPreNorm}}}},
    FusionRow{FusionRule::kCombIntoLinear,
              "post and comb, linear",
              "hc_pre's post and comb, with the linear behind",
              "gemm/gemv_stream; gemm/gemm_splitk_wgmma",
              "8 tokens; 256 tokens",
              {{{kNorm, kLinear, kHandOver, FitsCombIntoLinear, HandOverMix},
                {kNorm, kGroupedLinear, kHandOver, FitsCombIntoLinear, HandOverMix}}}},
    FusionRow{FusionRule::kPackedTokens,
              "linears of packed tokens",
              "a linear of tokens that the linear in front packed",
              "no packing launch",
              "from 65 tokens",
              {{{kPackedLinear, kTokensToPack, kOwnLaunch, FitsPackedTokens}}}},
    FusionRow{FusionRule::kSumOverRanks,
              "sum over ranks, hc_post",
              "over ranks: moe_combine, the sum over ranks, then hc_post and what follows",
              "hyper_connection/hc_cluster",
              "8 tokens",
              {{{kCombine, kRankSum, kJoin, FitsCombineSum}, {kRankSum, kCombine, kJoin, FitsSumRounded}}}},
    FusionRow{FusionRule::kPairSend,
              "pair, send",
              "over ranks: the pair of linears, then the send of its sum",
              "gemm/gemv_pair",
              "8 tokens",
              {{{kLinear, kRankSum, kHandOver, FitsPairSend, SendFromPair}}}},
    FusionRow{FusionRule::kCandidatesOverRanks,
              "candidates over ranks",
              "over ranks: indexer_candidates, all-gather, merge_candidates, list of local rows",
              "indexer/indexer_over_ranks",
              "8 tokens, 1024 candidates a rank",
              {{{kCandidates, kGather, kJoin, FitsGatherOfCandidates},
                {kGather, kMergeCandidates, kJoin, FitsMergeCandidates},
                {kMergeCandidates, kGather, kHandOver, FitsAnyGather, HandOverChosen},
                {kMergeCandidates, kRowsHere, kOwnLaunch, FitsRowsHere},
                {kGather, kRowsHere, kOwnLaunch, FitsRowsHereBehindGather}}}},
    FusionRow{FusionRule::kAttentionOverRanks,
              "attention over ranks",
              "over ranks: all-gather of queries, attention_part, all-to-all, merge_attention, rope",
              "attention/attention_over_ranks",
              "8 tokens",
              {{{kGather, kAttentionPart, kJoin, FitsPart},
                {kAttentionPart, kAllToAll, kJoin, FitsExchangeOfParts},
                {kAllToAll, kMergeAttention, kJoin, FitsMergeAttention},
                {kMergeAttention, kRope, kJoin, FitsRopeOfMerged}}}},
};

}  // namespace

std::span<const FusionRow> FusionRows() { return kRows; }

const FusionRow& RowOf(FusionRule rule) { return kRows[static_cast<size_t>(rule)]; }

std::optional<Fusion> FindFusion(const OpGroup& group, const RecordedOp& next, const DeviceRoom& room) {
  if (group.ops.empty()) return std::nullopt;
  for (const FusionRow& row : kRows) {
    for (const FusionPattern& pattern : row.patterns) {
      if (pattern.fits != nullptr && pattern.first == group.last().kind && pattern.next == next.kind &&
          pattern.fits(group, next, room)) {
        return Fusion{row.rule, &pattern};
      }
    }
  }
  return std::nullopt;
}

std::string FusionTableMarkdown() {
  std::string text = "| Ops | One launch | Up to |\n|---|---|---|\n";
  for (const FusionRow& row : kRows)
    text += fmt::format("| {} | {} | {} |\n", row.ops, row.launch, row.up_to);
  return text;
}

}  // namespace dsv4::backend::cuda
