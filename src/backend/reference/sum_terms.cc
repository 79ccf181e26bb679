// Reference sum_terms: expert outputs from all parts added in ascending order of expert.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status SumTerms(ops::OpContext&, const ops::SumTermsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.y.shape[0];
  const int64_t dim = args.y.shape[1];
  const int64_t top_k = args.indices.shape[1];
  const int64_t num_assignments = args.indices.num_elements();
  for (int64_t i = 0; i < num_assignments; ++i) {
    const int64_t expert = LoadInteger(args.indices, i);
    if (expert >= 0 && expert < args.begins.back()) continue;
    return OutOfRange(fmt::format("op sum_terms: indices[{}, {}]: {}, want 0 to {}", i / top_k, i % top_k,
                                  expert, args.begins.back() - 1));
  }
  std::vector<int64_t> slots(static_cast<size_t>(top_k));
  std::vector<float> term(static_cast<size_t>(dim));
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto expert_of = [&](int64_t slot) { return LoadInteger(args.indices, t * top_k + slot); };
    std::iota(slots.begin(), slots.end(), 0);
    std::stable_sort(slots.begin(), slots.end(),
                     [&](int64_t a, int64_t b) { return expert_of(a) < expert_of(b); });
    float* const y = args.y.as<float>() + t * dim;
    std::fill_n(y, dim, 0.0F);
    for (const int64_t slot : slots) {
      const int64_t row = ops::PartOf(args.begins, expert_of(slot)) * num_assignments + t * top_k + slot;
      LoadValues(args.parts.data, args.parts.dtype, row * dim, std::span<float>(term));
      for (int64_t d = 0; d < dim; ++d) y[d] += term[static_cast<size_t>(d)];
    }
  }
  return {};
}

}  // namespace dsv4::backend::reference
