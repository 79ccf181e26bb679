// Reference sum_rows: listed rows added to the row that each belongs to, in list order.
#include <algorithm>

#include "backend/reference/reference_ops.h"

namespace dsv4::backend::reference {

Status SumRows(ops::OpContext&, const ops::SumRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.out.shape[1];
  auto* const out = args.out.as<float>();
  std::fill_n(out, args.out.num_elements(), 0.0F);
  const auto* row = args.rows.as<const float>();
  for (const int32_t target : args.targets) {
    for (int64_t d = 0; d < dim; ++d) out[target * dim + d] += row[d];
    row += dim;
  }
  return {};
}

}  // namespace dsv4::backend::reference
