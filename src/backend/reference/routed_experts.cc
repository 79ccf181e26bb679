// Reference routed_experts: every chosen expert's output for a token, added in ascending order of expert.
#include <algorithm>
#include <vector>

#include "backend/reference/expert_terms.h"
#include "backend/reference/reference_ops.h"

namespace dsv4::backend::reference {

// Experts run side by side, each into rows of its own; the fp32 sum then runs in ascending order of expert.
Status RoutedExperts(ops::OpContext& context, const ops::RoutedExpertsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.x.shape[1];
  const int64_t num_assignments = args.indices.num_elements();
  std::vector<float> terms(static_cast<size_t>(num_assignments * dim));
  DSV4_RETURN_IF_ERROR(ForEachTerm(context, "routed_experts",
                                   {.x = args.x,
                                    .indices = args.indices,
                                    .weights = args.weights,
                                    .experts = args.experts,
                                    .num_experts = static_cast<int64_t>(args.experts.size()),
                                    .limit = args.limit},
                                   [&](int64_t assignment, std::span<const float> row) {
                                     std::copy(row.begin(), row.end(), terms.begin() + assignment * dim);
                                   }));
  const int64_t begins[] = {0, static_cast<int64_t>(args.experts.size())};
  const Shape shape = {1, args.indices.shape[0], args.indices.shape[1], dim};
  return SumTerms(context, {.parts = TensorView::Contiguous(terms.data(), DType::kF32, shape),
                            .indices = args.indices,
                            .begins = begins,
                            .y = args.y});
}

}  // namespace dsv4::backend::reference
