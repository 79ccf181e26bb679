// Which kernel does the ops of a group.
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/collectives/ll_exchange.h"
#include "backend/cuda/kernels/attention/attention_over_ranks.h"
#include "backend/cuda/kernels/attention/attention_part.h"
#include "backend/cuda/kernels/attention/decode_cluster.h"
#include "backend/cuda/kernels/elementwise/elementwise.h"
#include "backend/cuda/kernels/gemm/gemm_splitk_wgmma.h"
#include "backend/cuda/kernels/gemm/gemm_wgmma.h"
#include "backend/cuda/kernels/gemm/gemv_pair.h"
#include "backend/cuda/kernels/gemm/gemv_stream.h"
#include "backend/cuda/kernels/hyper_connection/hc_cluster.h"
#include "backend/cuda/kernels/hyper_connection/hc_post.h"
#include "backend/cuda/kernels/hyper_connection/hc_token_tiles.h"
#include "backend/cuda/kernels/indexer/indexer_over_ranks.h"
#include "backend/cuda/kernels/moe/gemv_joint.h"
#include "backend/cuda/kernels/moe/router.h"
#include "backend/cuda/kernels/rows/head_rows.h"
#include "backend/cuda/kernels/rows/many_rows.h"
#include "backend/cuda/kernels/rows/row_tracks.h"
#include "backend/cuda/lowering/launch/fusion_over_ranks.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {
namespace {

// Linears that gemm_splitk_wgmma and gemm_wgmma both take.
Status LaunchLinearsOfEither(CudaContext& context, std::span<const LinearWork* const> linears) {
  std::vector<LinearShape> shapes;
  for (const LinearWork* const linear : linears) {
    shapes.push_back({.weight = linear->weight,
                      .num_tokens = linear->num_tokens,
                      .x = linear->x,
                      .x_stride = linear->x_stride});
  }
  const LinearLaunches launches = ChooseLinears(shapes, linears[0]->mix.num_tokens > 0, context.limits());
  const auto works = [&](const std::vector<size_t>& launch) {
    std::vector<const LinearWork*> some;
    for (const size_t i : launch) some.push_back(linears[i]);
    return some;
  };
  if (!launches.splitk.empty()) DSV4_RETURN_IF_ERROR(LaunchGemmSplitK(context, works(launches.splitk)));
  for (const auto& launch : launches.wgmma) DSV4_RETURN_IF_ERROR(LaunchGemmWgmma(context, works(launch)));
  return {};
}

Status LaunchLinears(CudaContext& context, const OpGroup& group) {
  std::array<const LinearWork*, kMaxFusedMatrices> linears = {};
  for (size_t i = 0; i < group.ops.size(); ++i) linears[i] = &group.As<LinearWork>(i);
  const auto all = std::span<const LinearWork* const>(linears).first(group.ops.size());
  if (linears[0]->either) return LaunchLinearsOfEither(context, all);
  if (linears[0]->path == LinearPath::kGemmSplitK) return LaunchGemmSplitK(context, all);
  LaunchGemvStream(context, all);
  return {};
}

Status LaunchGroupedLinear(CudaContext& context, const OpGroup& group) {
  if (group.ops.size() == 1) return LaunchLinears(context, group);
  return LaunchGemvPair(context, group.As<LinearWork>(0), group.As<LinearWork>(1), group.links);
}

void LaunchSwigluOrRouter(CudaContext& context, const OpGroup& group) {
  if (group.last().kind == OpKind::kSwiglu) return LaunchSwiglu(context, group.Last<SwigluWork>());
  LaunchRouter(context, group.Last<RouterWork>(), group.ops.size() > 1 ? &group.As<SwigluWork>(0) : nullptr);
}

// moe_combine, the sum over ranks, hc_post, hc_pre and its norm: from any of them to any behind it.
struct SubLayers {
  const CombineWork* combine = nullptr;
  const RankSumWork* sum = nullptr;
  const CombineWork* rounded = nullptr;  // moe_combine of the sum.
  const HcPostWork* post = nullptr;
  const HcPreWork* pre = nullptr;
  const NormWork* norm = nullptr;
};

SubLayers PartsOf(const OpGroup& group) {
  SubLayers parts;
  for (const RecordedOp& op : group.ops) {
    if (const auto* const combine = std::get_if<CombineWork>(&op.work))
      (parts.sum == nullptr ? parts.combine : parts.rounded) = combine;
    if (const auto* const sum = std::get_if<RankSumWork>(&op.work)) parts.sum = sum;
    if (const auto* const post = std::get_if<HcPostWork>(&op.work)) parts.post = post;
    if (const auto* const pre = std::get_if<HcPreWork>(&op.work)) parts.pre = pre;
    if (const auto* const norm = std::get_if<NormWork>(&op.work)) parts.norm = norm;
  }
  return parts;
}

// The sum as it is made: of what moe_combine would have added.
RankSumWork SumOf(const SubLayers& parts) {
  RankSumWork sum = *parts.sum;
  if (parts.combine != nullptr) {
    sum.routed = parts.combine->routed;
    sum.added = static_cast<const float*>(parts.combine->shared);
  }
  return sum;
}

HcPostBefore BeforeOf(const SubLayers& parts) {
  if (parts.post == nullptr) return {};
  const HcPostWork& post = *parts.post;
  HcPostBefore before = {.y = const_cast<void*>(post.y),  // Written only with what moe_combine gives.
                         .routed = nullptr,
                         .shared = nullptr,
                         .residual = post.residual,
                         .out = post.out,
                         .post = post.post,
                         .comb = post.comb,
                         .num_tokens = post.num_tokens,
                         .dim = post.dim,
                         .links = {},
                         .sum = nullptr};
  if (parts.sum != nullptr) {
    const RankSumWork sum = SumOf(parts);
    before.routed = sum.routed;
    before.shared = sum.added;
    before.links = sum.links;
    before.sum = sum.sum;
  } else if (parts.combine != nullptr) {
    before.routed = parts.combine->routed;
    before.shared = parts.combine->shared;
  }
  return before;
}

void LaunchSubLayers(CudaContext& context, const OpGroup& group) {
  const SubLayers parts = PartsOf(group);
  if (parts.pre != nullptr) {
    const auto launch = parts.pre->path == HcPrePath::kCluster ? LaunchHcCluster : LaunchHcTokenTiles;
    return launch(context, BeforeOf(parts), *parts.pre, parts.norm, !group.leaves_mix);
  }
  if (parts.post != nullptr) return LaunchHcPost(context, BeforeOf(parts), parts.post->dtype);
  if (parts.sum == nullptr) return LaunchMoeCombine(context, *parts.combine);
  const RankSumWork sum = SumOf(parts);
  LaunchLlSum(context.queue(), {.links = sum.links,
                                .routed = sum.routed,
                                .added = sum.added,
                                .sum = sum.sum,
                                .rounded = parts.rounded == nullptr ? nullptr : parts.rounded->y,
                                .count = sum.count});
}

void LaunchRows(CudaContext& context, const RowGroup& rows) {
  if (std::optional<HeadRows> heads = rows.AsHeadRows(); heads.has_value()) {
    heads->fault = context.fault();
    return LaunchHeadRows(context, *heads);
  }
  if (std::optional<ManyRows> many = rows.AsManyRows(); many.has_value()) {
    many->fault = context.fault();
    return LaunchManyRows(context, *many);
  }
  RowTracks tracks = rows.tracks();
  tracks.fault = context.fault();
  LaunchRowTracks(context, tracks, rows.num_rows());
}

void LaunchCandidates(CudaContext& context, const OpGroup& group) {
  IndexerOverRanks params = group.As<CandidatesWork>(0).params;
  if (group.ops.size() > 1) {
    const auto& gather = group.As<ExchangeWork>(1);
    params.links = gather.params;
    params.all = static_cast<uint64_t*>(gather.all);
  }
  if (group.ops.size() > 2) params.selected = group.As<MergeCandidatesWork>(2).selected;
  LaunchIndexerOverRanks(context, params);
}

// An all-gather, or what begins with the one of queries.
void LaunchGather(CudaContext& context, const OpGroup& group) {
  const auto& gather = group.As<ExchangeWork>(0);
  if (group.ops.size() == 1) {
    context.Launch(gather.kernel, dim3(gather.blocks), dim3(kExchangeThreads), 0, gather.params);
    return;
  }
  const auto& part = group.As<AttentionPartWork>(1);
  if (part.list.selected != nullptr) LaunchPartRows(context, part.table, part.params, part.list);
  AttentionOverRanks params;
  params.table = part.table;
  params.part = part.params;
  params.links = gather.params;
  params.own_q = static_cast<const uint32_t*>(gather.mine);
  params.all_q = static_cast<uint32_t*>(gather.all);
  params.own_heads = static_cast<int>(over_ranks_rules::OwnHeads(group));
  if (group.ops.size() > 2) params.parts = static_cast<float*>(group.As<ExchangeWork>(2).all);
  if (group.ops.size() > 3) {
    params.sink = group.As<MergeAttentionWork>(3).sink;
    params.o = static_cast<uint16_t*>(group.As<MergeAttentionWork>(3).o);
  }
  if (group.ops.size() > 4) params.rotation = group.As<RopeWork>(4).rotation;
  LaunchAttentionOverRanks(context, params, over_ranks_rules::NumTiles(part.max_keys));
}

}  // namespace

Status LaunchGroup(CudaContext& context, const OpGroup& group) {
  switch (group.first().kind) {
    case OpKind::kLinear:
      return LaunchLinears(context, group);
    case OpKind::kGroupedLinear:
      return LaunchGroupedLinear(context, group);
    case OpKind::kExperts:
      return LaunchGemvJoint(context, group.As<JointExpertsWork>(0),
                             group.ops.size() > 1 ? &group.As<LinearWork>(1) : nullptr);
    case OpKind::kSwiglu:
    case OpKind::kRouter:
      LaunchSwigluOrRouter(context, group);
      return {};
    case OpKind::kAttention:
      LaunchDecodeCluster(context, group.As<AttentionWork>(0),
                          group.ops.size() > 1 ? group.As<RopeWork>(1).rotation : OutputRotation{});
      return {};
    case OpKind::kRowStep:
      LaunchRows(context, *group.rows);
      return {};
    case OpKind::kCandidates:
      LaunchCandidates(context, group);
      return {};
    case OpKind::kGather:
      LaunchGather(context, group);
      return {};
    case OpKind::kCombine:
    case OpKind::kRankSum:
    case OpKind::kHcPost:
    case OpKind::kHcPre:
      LaunchSubLayers(context, group);
      return {};
    case OpKind::kRope:
    case OpKind::kNorm:
    case OpKind::kAllToAll:
    case OpKind::kMergeCandidates:
    case OpKind::kRowsHere:
    case OpKind::kAttentionPart:
    case OpKind::kMergeAttention:
    case OpKind::kPackedLinear:
    case OpKind::kTokensToPack:
      break;
  }
  return Internal("lowering: a group of ops begins with one that launches nothing");
}

}  // namespace dsv4::backend::cuda
