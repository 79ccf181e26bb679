// Op routed_experts on the CPU: tokens grouped by expert, all chosen experts one pool of work for the
// threads.
#include <algorithm>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/expert_terms.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

Status RoutedExperts(ops::OpContext& context, const ops::RoutedExpertsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.x.shape[1];
  const int64_t top_k = args.indices.shape[1];
  std::fill_n(args.y.as<float>(), args.y.num_elements(), 0.0F);
  const auto add = [&](int64_t assignment, const uint8_t* row, int64_t begin, int64_t end) {
    float term[kTermColumns];
    LoadFloats(KernelsOf(context), row + begin * ElementBytes(args.x.dtype), args.x.dtype, end - begin, term);
    float* const y = args.y.as<float>() + assignment / top_k * dim + begin;
    for (int64_t d = 0; d < end - begin; ++d) y[d] += term[d];
  };
  return ForEachTerm(context, "routed_experts",
                     {.x = args.x,
                      .indices = args.indices,
                      .weights = args.weights,
                      .experts = args.experts,
                      .num_experts = static_cast<int64_t>(args.experts.size()),
                      .limit = args.limit},
                     add);
}

}  // namespace dsv4::backend::cpu
