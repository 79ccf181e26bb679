// The ops between two sub-layers: what moe_combine, the sum over ranks, hc_post and hc_pre record.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/hyper_connection/hc_cluster.h"
#include "backend/cuda/kernels/hyper_connection/hc_mix.h"
#include "backend/cuda/kernels/hyper_connection/hc_post.h"
#include "backend/cuda/lowering/lowering.h"
#include "backend/cuda/lowering/record/access_of.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "backend/cuda/lowering/select/rows.h"

namespace dsv4::backend::cuda {
namespace {

Division ColumnsOf(DType dtype) {
  return dtype == DType::kF32 ? Division::kFloatColumns : Division::kTokenColumns;
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
                           .dtype = args.residual.dtype,
                           .path = {}};
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
  HcPostWork chosen = work;
  chosen.path = plan.kernel;
  context.lowering().Record(
      {.kind = OpKind::kHcPost,
       .accesses = {.reads = {AccessOf(args.y, ColumnsOf(args.y.dtype)),
                              AccessOf(args.residual, Division::kStreamColumns),
                              AccessOf(args.post, Division::kPost), AccessOf(args.comb, Division::kComb)},
                    .writes = {AccessOf(args.out, Division::kStreamColumns)}},
       .work = chosen});
  return {};
}

Status HcPre(CudaContext& context, const ops::HcPreArgs& args) {
  if (args.streams.num_elements() == 0) return {};
  HcPreShape shape = ShapeOf(args.streams, args.fn, args.u.data);
  shape.cluster_fits = [&] { return HoldsHcCluster(context, args.streams.shape[2], false); };
  const Plan<HcPrePath> plan = ChooseHcPre(shape, context.limits());
  context.Chose(plan);
  if (plan.kernel == HcPrePath::kDotsThenMix) return LaunchHcPreInParts(context, args);
  DSV4_ASSIGN_OR_RETURN_STATUS(double* const dots, context.lowering().HcDots());
  const int num_parts = plan.kernel == HcPrePath::kCluster ? 1 : static_cast<int>(HcParts(shape.dim));
  context.lowering().Record(
      {.kind = OpKind::kHcPre,
       .accesses = {.reads = {AccessOf(args.streams, Division::kStreamColumns), AccessOf(args.fn),
                              AccessOf(args.scale), AccessOf(args.base)},
                    .writes = {AccessOf(args.u, Division::kTokenColumns),
                               AccessOf(args.post, Division::kPost), AccessOf(args.comb, Division::kComb)}},
       .work = HcPreWork{.streams = args.streams.data,
                         .fn = args.fn.as<const float>(),
                         .u = args.u.data,
                         .params = ParamsOf(args, dots, num_parts),
                         .dots = dots,
                         .num_tokens = static_cast<int>(shape.num_tokens),
                         .path = plan.kernel}});
  return {};
}

}  // namespace dsv4::backend::cuda
