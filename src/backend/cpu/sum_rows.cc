// Op sum_rows on the CPU: listed rows added to the row that each belongs to, in list order.
#include <algorithm>

#include "backend/cpu/cpu_ops.h"

namespace dsv4::backend::cpu {

// Every thread takes some of the columns.
Status SumRows(ops::OpContext& context, const ops::SumRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.out.shape[1];
  constexpr int64_t kColumns = 512;
  context.threads().ParallelFor(dim, kColumns, [&](int64_t begin, int64_t end) {
    auto* const out = args.out.as<float>();
    for (int64_t t = 0; t < args.out.shape[0]; ++t)
      std::fill(out + t * dim + begin, out + t * dim + end, 0.0F);
    const auto* row = args.rows.as<const float>();
    for (const int32_t target : args.targets) {
      float* const sum = out + target * dim;
      for (int64_t d = begin; d < end; ++d) sum[d] += row[d];
      row += dim;
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
