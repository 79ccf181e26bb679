// Reference linear: each output a dot product of rounded activations and one dequantised row.
#include <span>
#include <vector>

#include "backend/reference/matmul.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status Linear(ops::OpContext& context, const ops::LinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Weight& weight = *args.weight;
  const int64_t num_tokens = args.x.shape[0];
  const int64_t cols = weight.cols;
  if (num_tokens == 0) return {};
  std::vector<float> rows(static_cast<size_t>(num_tokens * cols));
  for (int64_t t = 0; t < num_tokens; ++t) {
    LoadValues(args.x.data, args.x.dtype, t * args.x.strides[0],
               std::span<float>(rows).subspan(static_cast<size_t>(t * cols), static_cast<size_t>(cols)));
  }
  const std::vector<double> x = QuantizeActivations(rows, num_tokens, cols, weight.activation);

  context.threads().ParallelFor(weight.rows, RowGrain(cols, num_tokens), [&](int64_t begin, int64_t end) {
    MultiplyRows(weight, begin, end, x.data(), cols, num_tokens, [&](int64_t token, int64_t row, double sum) {
      StoreValues({&sum, 1}, args.y.data, args.y.dtype, token * args.y.strides[0] + row);
    });
  });
  return {};
}

}  // namespace dsv4::backend::reference
