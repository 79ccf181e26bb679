// The ops swiglu and router: what they record.
#include "backend/cuda/kernels/elementwise/elementwise.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/access_of.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {

Status Swiglu(CudaContext& context, const ops::SwigluArgs& args) {
  const int64_t count = args.gate.num_elements();
  if (count == 0) return {};
  const Plan<ElementsPath> plan = FirstFit(SwigluRules(),
                                           {.dtype = args.gate.dtype,
                                            .count = count,
                                            .width = args.gate.shape[1],
                                            .a = args.gate.data,
                                            .b = args.up.data,
                                            .y = args.y.data},
                                           context.limits());
  context.Chose(plan);
  const SwigluWork work = {.gate = args.gate.data,
                           .up = args.up.data,
                           .row_weights = args.row_weights.as<const float>(),
                           .y = args.y.data,
                           .count = count,
                           .width = args.gate.shape[1],
                           .limit = args.limit,
                           .dtype = args.gate.dtype};
  if (plan.kernel == ElementsPath::kSeveral) {
    LaunchManySwiglus(context, work);
    return {};
  }
  context.lowering().Record(
      {.kind = OpKind::kSwiglu,
       .accesses = {.reads = {AccessOf(args.gate), AccessOf(args.up), AccessOf(args.row_weights)},
                    .writes = {AccessOf(args.y)}},
       .work = work});
  return {};
}

Status Router(CudaContext& context, const ops::RouterArgs& args) {
  const int64_t num_tokens = args.logits.shape[0];
  const int64_t num_experts = args.logits.shape[1];
  if (num_tokens == 0 || args.indices.shape[1] == 0) return {};
  constexpr int64_t kMaxExperts = 3000;  // With a list of all of them 71 KB of shared memory.
  if (num_experts > kMaxExperts) {
    return Unimplemented("op router: logits: " + args.logits.shape.ToString() +
                         ", this backend takes up to 3000 experts");
  }
  const RouterParams params = {.logits = args.logits.as<const float>(),
                               .bias = args.bias.as<const float>(),
                               .hash_table = args.hash_table.data,
                               .hash_is_i64 = args.hash_table.dtype == DType::kI64,
                               .vocab_size = args.hash_table.is_null() ? 0 : args.hash_table.shape[0],
                               .token_ids = args.token_ids.as<const int32_t>(),
                               .indices = args.indices.as<int32_t>(),
                               .weights = args.weights.as<float>(),
                               .num_experts = static_cast<int>(num_experts),
                               .top_k = static_cast<int>(args.indices.shape[1]),
                               .route_scale = args.route_scale,
                               .temperature = args.temperature,
                               .sum_eps = args.sum_eps,
                               .normalise = args.normalise};
  context.lowering().Record({.kind = OpKind::kRouter,
                             .accesses = {.reads = {AccessOf(args.logits), AccessOf(args.bias),
                                                    AccessOf(args.hash_table), AccessOf(args.token_ids)},
                                          .writes = {AccessOf(args.indices), AccessOf(args.weights)}},
                             .work = RouterWork{params, num_tokens}});
  return {};
}

}  // namespace dsv4::backend::cuda
