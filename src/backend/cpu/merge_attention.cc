// Op merge_attention on the CPU: parts rescaled by their maxima and added in rank order, the sink once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

Status MergeAttention(ops::OpContext& context, const ops::MergeAttentionArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  if (args.o.num_elements() == 0) return {};
  const Kernels& kernels = KernelsOf(context);
  const std::vector<float> sink = LoadAll(kernels, args.sink);
  const int64_t num_parts = args.parts.shape[0];
  const int64_t num_heads = args.o.shape[1];
  const int64_t dim = args.o.shape[2];
  const int64_t num_rows = args.o.shape[0] * num_heads;
  const auto row_of = [&](int64_t part, int64_t row) {
    return args.parts.as<const float>() + (part * num_rows + row) * (dim + 2);
  };
  context.threads().ParallelFor(num_rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> o(static_cast<size_t>(dim));
    for (int64_t row = begin; row < end; ++row) {
      float max = -std::numeric_limits<float>::infinity();
      for (int64_t part = 0; part < num_parts; ++part) max = std::max(max, row_of(part, row)[dim]);
      const auto factor = [&](const float* values) {
        return std::exp(static_cast<double>(values[dim]) - static_cast<double>(max));
      };
      double sum = 0;
      for (int64_t part = 0; part < num_parts; ++part) {
        const float* const values = row_of(part, row);
        if (values[dim + 1] != 0) sum += factor(values) * static_cast<double>(values[dim + 1]);
      }
      std::fill(o.begin(), o.end(), 0.0F);
      const double sink_logit = static_cast<double>(sink[static_cast<size_t>(row % num_heads)]);
      const double scale = 1.0 / (sum + std::exp(sink_logit - static_cast<double>(max)));
      for (int64_t part = 0; part < num_parts; ++part) {
        const float* const values = row_of(part, row);
        if (values[dim + 1] == 0) continue;  // No keys.
        const auto share = static_cast<float>(factor(values) * scale);
        for (int64_t d = 0; d < dim; ++d) o[static_cast<size_t>(d)] += share * values[d];
      }
      StoreFloats(kernels, o.data(), dim, args.o.as<uint8_t>() + row * dim * ElementBytes(args.o.dtype),
                  args.o.dtype);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
