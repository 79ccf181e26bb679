// Reference head_rms_norm: a norm without weight for each head, with the release's inner roundings.
#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status HeadRmsNorm(ops::OpContext& context, const ops::HeadRmsNormArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const DType dtype = args.x.dtype;
  const int64_t head_dim = args.x.shape[2];
  const int64_t num_rows = args.x.shape[0] * args.x.shape[1];
  context.threads().ParallelFor(num_rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(head_dim));
    for (int64_t row = begin; row < end; ++row) {
      LoadValues(args.x.data, dtype, row * head_dim, std::span<double>(x));
      // The release runs square, mean, + eps, rsqrt and product as separate tensor ops: five rounding points.
      double sum = 0.0;
      for (const double value : x) sum += HeldAs(dtype, value * value);
      const double mean = HeldAs(dtype, sum / static_cast<double>(head_dim));
      const double shifted = HeldAs(dtype, mean + static_cast<double>(args.eps));
      const double factor = HeldAs(dtype, 1.0 / std::sqrt(shifted));
      for (double& value : x) value *= factor;
      StoreValues(x, args.y.data, dtype, row * head_dim);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
