// Op sum_terms on the CPU: a token's expert outputs, gathered from several parts, added in ascending order of
// expert.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {
namespace {

// Rows of `parts`, one for each of a token's slots, in the order in which they are added up.
Result<std::vector<int64_t>> RowsInOrder(const ops::SumTermsArgs& args) {
  const int64_t top_k = args.indices.shape[1];
  const int64_t num_assignments = args.indices.num_elements();
  const auto expert_of = [&](int64_t i) { return LoadInteger(args.indices, i); };
  for (int64_t i = 0; i < num_assignments; ++i) {
    if (expert_of(i) >= 0 && expert_of(i) < args.begins.back()) continue;
    return Error(OutOfRange(fmt::format("op sum_terms: indices[{}, {}]: {}, want 0 to {}", i / top_k,
                                        i % top_k, expert_of(i), args.begins.back() - 1)));
  }
  std::vector<int64_t> rows(static_cast<size_t>(num_assignments));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) {
    return a / top_k != b / top_k ? a < b : expert_of(a) < expert_of(b);
  });
  for (int64_t& row : rows) row += ops::PartOf(args.begins, expert_of(row)) * num_assignments;
  return rows;
}

}  // namespace

Status SumTerms(ops::OpContext& context, const ops::SumTermsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int64_t> rows, RowsInOrder(args));
  const int64_t dim = args.y.shape[1];
  const int64_t top_k = args.indices.shape[1];
  const int64_t row_bytes = dim * ElementBytes(args.parts.dtype);
  context.threads().ParallelFor(args.y.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<float> term(static_cast<size_t>(dim));
    for (int64_t t = begin; t < end; ++t) {
      float* const y = args.y.as<float>() + t * dim;
      std::fill_n(y, dim, 0.0F);
      for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
        LoadFloats(KernelsOf(context),
                   args.parts.as<const uint8_t>() + rows[static_cast<size_t>(i)] * row_bytes,
                   args.parts.dtype, dim, term.data());
        for (int64_t d = 0; d < dim; ++d) y[d] += term[static_cast<size_t>(d)];
      }
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
