// Ops linear and grouped_linear on the CPU: activations are packed once, rows of weights are shared out to
// threads.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

Status Linear(ops::OpContext& context, const ops::LinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Weight& weight = *args.weight;
  const int64_t num_tokens = args.x.shape[0];
  if (num_tokens == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  const MatmulPlan plan = PlanMatmul(kernels, weight, args.x.dtype);
  std::vector<const uint8_t*> rows;
  for (int64_t t = 0; t < num_tokens; ++t)
    rows.push_back(At(args.x.data, args.x.dtype, t * args.x.strides[0]));
  Activations x(context.threads(), kernels, plan, rows, args.x.dtype, weight.cols);
  Activations::MakeTiles(context.threads(), {&x, 1});

  const int64_t range = RangeRows(weight, num_tokens);
  context.threads().ParallelFor((weight.rows + range - 1) / range, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * range;
    MultiplyRangeTo(kernels, plan, weight, begin, std::min(weight.rows, last * range), x,
                    args.y.as<uint8_t>() + begin * ElementBytes(args.y.dtype), args.y.dtype,
                    args.y.strides[0]);
  });
  return {};
}

Status GroupedLinear(ops::OpContext& context, const ops::GroupedLinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Weight& weight = *args.weight;
  const int64_t num_tokens = args.x.shape[0];
  const int64_t num_groups = args.x.shape[1];
  const int64_t group_width = args.x.shape[2];
  const int64_t rank = args.y.shape[2];
  if (num_tokens == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  const MatmulPlan plan = PlanMatmul(kernels, weight, args.x.dtype);
  std::vector<Activations> x;
  for (int64_t group = 0; group < num_groups; ++group) {
    std::vector<const uint8_t*> rows;
    for (int64_t t = 0; t < num_tokens; ++t) {
      rows.push_back(At(args.x.data, args.x.dtype, (t * num_groups + group) * group_width));
    }
    x.emplace_back(context.threads(), kernels, plan, rows, args.x.dtype, group_width);
  }
  Activations::MakeTiles(context.threads(), x);

  // Weight row group * rank + r meets slice `group` of every token and goes to column row of y, which has the
  // group inside.
  const int64_t range = RangeRows(weight, num_tokens);
  const int64_t ranges_per_group = (rank + range - 1) / range;
  context.threads().ParallelFor(num_groups * ranges_per_group, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t group = i / ranges_per_group;
      const int64_t begin = group * rank + i % ranges_per_group * range;
      MultiplyRangeTo(kernels, plan, weight, begin, std::min((group + 1) * rank, begin + range),
                      x[static_cast<size_t>(group)],
                      args.y.as<uint8_t>() + begin * ElementBytes(args.y.dtype), args.y.dtype, weight.rows);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
