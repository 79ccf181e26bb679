// Reference rms_norm: mean of squares, scale and weight of each row in double, one rounding.
#include <cmath>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status RmsNorm(ops::OpContext& context, const ops::RmsNormArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_rows = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  const std::vector<double> weight = LoadAll(args.weight);
  context.threads().ParallelFor(num_rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(dim));
    for (int64_t row = begin; row < end; ++row) {
      LoadRow(args.x, row, x);
      const double mean_square = Dot(x.data(), x.data(), dim) / static_cast<double>(dim);
      const double factor = 1.0 / std::sqrt(mean_square + static_cast<double>(args.eps));
      for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * weight[i];
      StoreRow(x, args.y, row);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
