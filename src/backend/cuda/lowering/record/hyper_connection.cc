// The ops between two sub-layers: the records of moe_combine, the sum over ranks, hc_post and hc_pre. Also
// the kernels of ops that are not recorded: hc_pre in two launches, and hc_head.
#include "backend/cuda/kernels/hyper_connection/hyper_connection.h"

#include "backend/cuda/kernels/hyper_connection/hc_cluster.h"
#include "backend/cuda/kernels/hyper_connection/hc_many.h"
#include "backend/cuda/kernels/hyper_connection/hc_post.h"
#include "backend/cuda/kernels/rows/engram_mix.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/access_of.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

Division ColumnsOf(DType dtype) {
  return dtype == DType::kF32 ? Division::kFloatColumns : Division::kTokenColumns;
}

HcPreShape ShapeOf(const TensorView& streams, const TensorView& fn, const void* u) {
  return {.dtype = streams.dtype,
          .num_tokens = streams.shape[0],
          .mult = streams.shape[1],
          .dim = streams.shape[2],
          .num_rows = fn.shape[0],
          .streams = streams.data,
          .fn = fn.data,
          .u = u,
          .clusters = {}};
}

HcPreParams ParamsOf(const ops::HcPreArgs& args, const float* dots, int num_parts) {
  return {.dots = dots,
          .scale = args.scale.as<const float>(),
          .base = args.base.as<const float>(),
          .post = args.post.as<float>(),
          .comb = args.comb.as<float>(),
          .given = args.given.as<const float>(),
          .pre = args.pre.as<float>(),
          .num_parts = num_parts,
          .mult = static_cast<int>(args.streams.shape[1]),
          .dim = args.streams.shape[2],
          .norm_eps = args.norm_eps,
          .hc_eps = args.hc_eps,
          .sinkhorn_iters = args.sinkhorn_iters};
}

// The dot products of streams and fn, in scratch.
Result<HcDots> ComputeDots(CudaContext& context, const TensorView& streams, const TensorView& fn) {
  const Plan<HcDotsPath> plan = ChooseHcDots(ShapeOf(streams, fn, nullptr), context.limits());
  context.Chose(plan);
  const int64_t num_tokens = streams.shape[0];
  const int64_t num_parts = plan.kernel != HcDotsPath::kAny ? HcParts(streams.shape[2]) : 1;
  const int64_t count = num_tokens * (fn.shape[0] + 1) * num_parts;
  const int64_t first_pre = (count + kHcMult - 1) / kHcMult * kHcMult;  // Read four at once.
  DSV4_ASSIGN_OR_RETURN(float* const data, context.Scratch<float>(first_pre + num_tokens * kHcMult));
  const HcDots dots = {.data = data, .num_parts = static_cast<int>(num_parts), .pre = data + first_pre};
  LaunchHcDots(context, plan.kernel, streams, fn, dots);
  return dots;
}

// Parts for whatever hc_cluster and hc_token_tiles do not take.
Status HcPreInParts(CudaContext& context, const ops::HcPreArgs& args) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcDots dots, ComputeDots(context, args.streams, args.fn));
  const HcPreParams params = ParamsOf(args, dots.data, dots.num_parts);
  const Plan<HcMixPath> plan = ChooseHcMix(ShapeOf(args.streams, args.fn, args.u.data), context.limits());
  context.Chose(plan);
  if (plan.kernel == HcMixPath::kManyTokens) {
    LaunchManyMixes(context, args, params, dots.pre);
  } else {
    LaunchHcMix(context, args, params);
  }
  return {};
}

}  // namespace

Status MoeCombine(CudaContext& context, const ops::MoeCombineArgs& args) {
  const int64_t count = args.routed.num_elements();
  if (count == 0) return {};
  const Plan<ElementsPath> plan = FirstFit(MoeCombineRules(),
                                           {.dtype = args.y.dtype,
                                            .count = count,
                                            .width = args.routed.shape[1],
                                            .a = args.routed.data,
                                            .b = args.shared.data,
                                            .y = args.y.data},
                                           context.limits());
  context.Chose(plan);
  context.lowering().Record({.kind = OpKind::kCombine,
                             .accesses = {.reads = {AccessOf(args.routed, Division::kFloatColumns),
                                                    AccessOf(args.shared, ColumnsOf(args.y.dtype))},
                                          .writes = {AccessOf(args.y, ColumnsOf(args.y.dtype))}},
                             .work = CombineWork{.routed = args.routed.as<const float>(),
                                                 .shared = args.shared.data,
                                                 .y = args.y.data,
                                                 .count = count,
                                                 .dtype = args.y.dtype,
                                                 .path = plan.kernel}});
  return {};
}

void RecordRankSum(CudaContext& context, const PeerLinks& links, float* values, int64_t count) {
  const Access sum = {{values, static_cast<size_t>(count) * sizeof(float)}, Division::kFloatColumns};
  context.lowering().Record(
      {.kind = OpKind::kRankSum,
       .accesses = {.reads = {sum}, .writes = {sum}},
       .work =
           RankSumWork{.links = links, .routed = values, .added = nullptr, .sum = values, .count = count}});
}

Status HcPost(CudaContext& context, const ops::HcPostArgs& args) {
  if (args.residual.num_elements() == 0) return {};
  const HcPostWork work = {.y = args.y.data,
                           .residual = args.residual.data,
                           .out = args.out.data,
                           .post = args.post.as<const float>(),
                           .comb = args.comb.as<const float>(),
                           .num_tokens = args.residual.shape[0],
                           .dim = args.residual.shape[2],
                           .dtype = args.residual.dtype};
  const Plan<HcPostPath> plan = ChooseHcPost({.dtype = work.dtype,
                                              .num_tokens = work.num_tokens,
                                              .mult = args.residual.shape[1],
                                              .dim = work.dim,
                                              .y = args.y.data,
                                              .out = args.out.data,
                                              .residual = args.residual.data},
                                             context.limits());
  context.Chose(plan);
  if (plan.kernel == HcPostPath::kAny) {
    LaunchHcPostOfAny(context, args);
    return {};
  }
  context.lowering().Record(
      {.kind = OpKind::kHcPost,
       .accesses = {.reads = {AccessOf(args.y, ColumnsOf(args.y.dtype)),
                              AccessOf(args.residual, Division::kStreamColumns),
                              AccessOf(args.post, Division::kPost), AccessOf(args.comb, Division::kComb)},
                    .writes = {AccessOf(args.out, Division::kStreamColumns)}},
       .work = work});
  return {};
}

Status HcPre(CudaContext& context, const ops::HcPreArgs& args) {
  if (args.streams.num_elements() == 0) return {};
  HcPreShape shape = ShapeOf(args.streams, args.fn, args.u.data);
  const auto clusters = [&](int) { return HoldsHcCluster(context, args.streams.shape[2], false); };
  shape.clusters = clusters;
  const Plan<HcPrePath> plan = ChooseHcPre(shape, context.limits());
  context.Chose(plan);
  if (plan.kernel == HcPrePath::kDotsThenMix) return HcPreInParts(context, args);
  DSV4_ASSIGN_OR_RETURN_STATUS(float* const dots, context.lowering().HcDots());
  const int num_parts = plan.kernel == HcPrePath::kCluster ? 1 : static_cast<int>(HcParts(shape.dim));
  context.lowering().Record(
      {.kind = OpKind::kHcPre,
       .accesses = {.reads = {AccessOf(args.streams, Division::kStreamColumns), AccessOf(args.fn),
                              AccessOf(args.scale), AccessOf(args.base), AccessOf(args.given)},
                    .writes = {AccessOf(args.u, Division::kTokenColumns),
                               AccessOf(args.post, Division::kPost), AccessOf(args.comb, Division::kComb),
                               AccessOf(args.pre)}},
       .work = HcPreWork{.streams = args.streams.data,
                         .fn = args.fn.as<const float>(),
                         .u = args.u.data,
                         .params = ParamsOf(args, dots, num_parts),
                         .dots = dots,
                         .num_tokens = static_cast<int>(shape.num_tokens),
                         .path = plan.kernel}});
  return {};
}

Status EngramMix(CudaContext& context, const ops::EngramMixArgs& args) {
  if (args.streams.num_elements() == 0) return {};
  LaunchEngramMix(context, args);
  return {};
}

Status HcHead(CudaContext& context, const ops::HcHeadArgs& args) {
  if (args.streams.num_elements() == 0) return {};
  if (!args.given.is_null()) {
    LaunchHcHead(context, args, {.data = nullptr, .num_parts = 1, .pre = nullptr});
    return {};
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const HcDots dots, ComputeDots(context, args.streams, args.fn));
  LaunchHcHead(context, args, dots);
  return {};
}

}  // namespace dsv4::backend::cuda
