// The ops routed_experts and expert_terms: which kernels multiply the chosen experts, and what the one for a
// few tokens records.
#include "backend/cuda/kernels/moe/routed_experts.h"

#include <string>

#include "backend/cuda/kernels/moe/gemv_experts.h"
#include "backend/cuda/kernels/moe/gemv_joint.h"
#include "backend/cuda/kernels/moe/grouped_gemm_fp8.h"
#include "backend/cuda/kernels/moe/grouped_gemm_narrow.h"
#include "backend/cuda/kernels/moe/grouped_gemm_wgmma.h"
#include "backend/cuda/kernels/moe/grouped_gemm_wide.h"
#include "backend/cuda/kernels/moe/grouped_gemv_runs.h"
#include "backend/cuda/kernels/moe/grouped_gemv_stream.h"
#include "backend/cuda/kernels/packing/e4m3_experts.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/select/experts.h"
#include "backend/cuda/runtime/cuda_ops.h"
#include "backend/cuda/tiers/expert_terms.h"
#include "backend/cuda/tiers/expert_tiers.h"

namespace dsv4::backend::cuda {
namespace {

void RecordExperts(CudaContext& context, const JointExpertsWork& work) {
  const auto bytes = [&](const void* data, int64_t bytes_of_token) {
    return Access{{data, static_cast<size_t>(work.num_tokens * bytes_of_token)}};
  };
  context.lowering().Record(
      {.kind = OpKind::kExperts,
       .accesses = {.reads = {bytes(work.x, work.w1.cols * 2), bytes(work.indices, int64_t{work.top_k} * 4),
                              bytes(work.routing, int64_t{work.top_k} * 4)},
                    .writes = {bytes(work.y, work.w2.rows * 4)}},
       .work = work});
}

ExpertsShape ShapeOf(const ExpertTable& table, const ops::ExpertTermsArgs& args) {
  return {.alike = table.alike,
          .bulk_aligned = table.copied_in_bulk,
          .w1 = table.w1,
          .w2 = table.w2,
          .num_tokens = args.x.shape[0],
          .top_k = args.indices.shape[1],
          .num_here = static_cast<int64_t>(args.experts.size()),
          .num_experts = args.num_experts,
          .x = args.x.data,
          .x_dtype = args.x.dtype,
          .terms = args.terms.data};
}

Result<Plan<ExpertsPath>> Choose(CudaContext& context, const ExpertTable& table, ExpertsShape shape) {
  if (WantsE4m3(shape, context.limits())) {
    DSV4_ASSIGN_OR_RETURN(const E4m3Experts* const experts, FindE4m3Experts(context, table, shape.num_here));
    shape.exact_in_e4m3 = experts->exact;
  }
  return ChooseExperts(shape, context.limits());
}

// All kernels give a term the same bits, but for those of FP8 and block scales, which their modes ask for.
Status ComputeTerms(CudaContext& context, const ExpertTable& table, const TermsWork& work,
                    ExpertsPath kernel) {
  const auto group = [&](int tokens_per_tile) { return GroupAssignments(context, work, tokens_per_tile); };
  switch (kernel) {
    case ExpertsPath::kGroupedGemmFp8:
      return GroupedGemmFp8(context, table, work);
    case ExpertsPath::kBlockScaled:
      return ExpertTermsOfAny(context, table, true, work);
    case ExpertsPath::kGroupedGemvRuns: {
      DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertGroups groups,
                                   group(RunTokensPerTile(table.w1, table.w2, context.limits())));
      return GroupedGemvRuns(context, table, groups, work.args);
    }
    case ExpertsPath::kGroupedGemvStream: {
      DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertGroups groups, group(StreamTokensPerTile(table.w1, table.w2)));
      return GroupedGemvStream(context, table, groups, work.args);
    }
    case ExpertsPath::kGroupedGemmNarrow:
      return GroupedGemmNarrow(context, table, work);
    case ExpertsPath::kGroupedGemmWide:
      return GroupedGemmWide(context, table, work);
    case ExpertsPath::kGroupedGemmWgmma:
      return GroupedGemmWgmma(context, table, work);
    case ExpertsPath::kGemvJoint:
    case ExpertsPath::kGemvExperts:  // They sum: not for terms (ExpertsShape::sums).
    case ExpertsPath::kRoutedExperts:
      break;
  }
  return ExpertTermsOfAny(context, table, false, work);
}

Status CheckSizes(const char* op, const TensorView& indices, size_t num_experts) {
  constexpr size_t kMaxExperts = 4096;  // 32 KB of shared memory.
  if (indices.shape[1] <= kMaxTopK && num_experts <= kMaxExperts) return {};
  return Unimplemented("op " + std::string(op) + ": indices " + indices.shape.ToString() + " of " +
                       std::to_string(num_experts) +
                       " experts, this backend takes up to 64 choices of 4096 experts");
}

}  // namespace

Status ExpertTerms(CudaContext& context, const ops::ExpertTermsArgs& args) {
  if (args.indices.num_elements() == 0 || args.experts.empty()) return {};
  DSV4_RETURN_IF_ERROR(CheckSizes("expert_terms", args.indices, args.experts.size()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertTable* const table,
                               context.expert_tables().Find(args.experts, args.x.dtype));
  return TermsOfTable(context, *table, {args, FaultKind::kTermIndex});
}

Status TermsOfTable(CudaContext& context, const ExpertTable& table, const TermsWork& work) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const Plan<ExpertsPath> plan,
                               Choose(context, table, ShapeOf(table, work.args)));
  context.Chose(plan);
  return ComputeTerms(context, table, work, plan.kernel);
}

Status RoutedExperts(CudaContext& context, const ops::RoutedExpertsArgs& args) {
  const Shape shape = {args.indices.shape[0], args.indices.shape[1], args.x.shape[1]};
  if (args.x.shape[0] == 0) return {};
  DSV4_RETURN_IF_ERROR(CheckSizes("routed_experts", args.indices, args.experts.size()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const TieredLayer* const tiered, context.expert_tiers().Find(args.experts));
  if (tiered != nullptr && tiered->num_host > 0) return context.expert_tiers().RoutedExperts(*tiered, args);
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertTable* const table,
                               context.expert_tables().Find(args.experts, args.x.dtype));
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const bool streams =
      tiered != nullptr && context.expert_tiers().Streams(*tiered, args.indices.num_elements(), num_experts);
  if (tiered != nullptr && !streams) context.expert_tiers().Bring(*tiered, *table, num_experts, args.indices);
  ops::ExpertTermsArgs all = {.x = args.x,
                              .indices = args.indices,
                              .weights = args.weights,
                              .experts = args.experts,
                              .num_experts = num_experts,
                              .limit = args.limit,
                              .terms = {}};
  ExpertsShape expert_shape = ShapeOf(*table, all);
  expert_shape.sums = !streams;
  DSV4_ASSIGN_OR_RETURN_STATUS(const Plan<ExpertsPath> plan, Choose(context, *table, expert_shape));
  context.Chose(plan);
  if (plan.kernel == ExpertsPath::kGemvJoint) {
    const JointExpertsWork joint = {.w1 = table->w1,
                                    .w2 = table->w2,
                                    .weights = table->weights,
                                    .indices = args.indices.as<const int32_t>(),
                                    .routing = args.weights.as<const float>(),
                                    .x = args.x.as<const uint16_t>(),
                                    .y = args.y.as<float>(),
                                    .num_tokens = static_cast<int>(shape[0]),
                                    .num_experts = static_cast<int>(args.experts.size()),
                                    .top_k = static_cast<int>(shape[1]),
                                    .limit = args.limit};
    if (!HoldsGemvJoint(context, joint, nullptr)) return GemvExperts(context, *table, args);
    RecordExperts(context, joint);
    return {};
  }
  if (plan.kernel == ExpertsPath::kGemvExperts) return GemvExperts(context, *table, args);
  DSV4_ASSIGN_OR_RETURN_STATUS(
      void* const terms,
      context.ScratchBytes(static_cast<size_t>(shape.num_elements() * ElementBytes(args.x.dtype))));
  all.terms = TensorView::Contiguous(terms, args.x.dtype, shape, args.x.device);
  const TermsWork work = {all, FaultKind::kExpertIndex};
  DSV4_RETURN_IF_ERROR(streams ? context.expert_tiers().StreamTerms(*tiered, *table, work)
                               : ComputeTerms(context, *table, work, plan.kernel));
  const int64_t begins[] = {0, all.num_experts};
  return SumTerms(context, {.parts = all.terms.Reshaped({1, shape[0], shape[1], shape[2]}),
                            .indices = args.indices,
                            .begins = begins,
                            .y = args.y});
}

}  // namespace dsv4::backend::cuda
