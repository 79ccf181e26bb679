// Reference grouped_linear: one small matrix for each group of heads.
#include <algorithm>
#include <vector>

#include "backend/reference/matmul.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status GroupedLinear(ops::OpContext& context, const ops::GroupedLinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Weight& weight = *args.weight;
  const int64_t num_tokens = args.x.shape[0];
  const int64_t num_groups = args.x.shape[1];
  const int64_t group_width = args.x.shape[2];
  const int64_t rank = args.y.shape[2];
  if (num_tokens == 0) return {};
  const std::vector<double> x = LoadAll(args.x);
  const int64_t x_stride = num_groups * group_width;

  // Weight row g * rank + r meets slice g of every token. Both x and y are [num_tokens, ...] with the group
  // inside, so the sum for weight row n goes to column n.
  context.threads().ParallelFor(
      weight.rows, RowGrain(group_width, num_tokens), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end;) {
          const int64_t group = row / rank;
          const int64_t group_end = std::min(end, (group + 1) * rank);
          MultiplyRows(weight, row, group_end, x.data() + group * group_width, x_stride, num_tokens,
                       [&](int64_t token, int64_t out_row, double sum) {
                         StoreValues({&sum, 1}, args.y.data, args.y.dtype, token * weight.rows + out_row);
                       });
          row = group_end;
        }
      });
  return {};
}

}  // namespace dsv4::backend::reference
