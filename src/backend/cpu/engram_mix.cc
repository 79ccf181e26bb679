// engram_mix: a task is one stream of a token. Sums in double by the tier's row kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {
namespace {

// Eight sums side by side, which the compiler turns into vectors.
double WeightedDot(const float* x, const float* y, const double* weights, int64_t count) {
  constexpr int64_t kSums = 8;
  std::array<double, kSums> sums = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k)
      sums[static_cast<size_t>(k)] +=
          static_cast<double>(x[i + k]) * static_cast<double>(y[i + k]) * weights[i + k];
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(x[i]) * static_cast<double>(y[i]) * weights[i];
  for (size_t k = 1; k < sums.size(); ++k) sums[0] += sums[k];
  return sums[0];
}

}  // namespace

Status EngramMix(ops::OpContext& context, const ops::EngramMixArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const int64_t mult = args.streams.shape[1];
  const int64_t dim = args.streams.shape[2];
  const DType dtype = args.streams.dtype;
  if (args.streams.num_elements() == 0) return {};
  const std::vector<float> q_weight = LoadAll(kernels, args.q_weight);
  const std::vector<float> k_weight = LoadAll(kernels, args.k_weight);
  std::vector<double> weights(q_weight.size());
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<double>(q_weight[i]) * static_cast<double>(k_weight[i]);
  const auto norm = [&](const std::vector<float>& x) {
    return 1.0 / std::sqrt(kernels.rows.sum_squares(x.data(), dim, false) / static_cast<double>(dim) +
                           static_cast<double>(args.eps));
  };
  context.threads().ParallelFor(args.streams.shape[0] * mult, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> stream(static_cast<size_t>(dim));
    std::vector<float> key(stream.size());
    for (int64_t task = begin; task < end; ++task) {
      const int64_t t = task / mult;
      const int64_t i = task % mult;
      const uint8_t* const from = At(args.streams.data, dtype, task * dim);
      const int64_t first = t * (mult + 1) * dim;
      LoadFloats(kernels, from, dtype, dim, stream.data());
      LoadFloats(kernels, At(args.mixed.data, dtype, first + i * dim), dtype, dim, key.data());
      const double norms = norm(stream) * norm(key);
      const double sum = WeightedDot(stream.data(), key.data(), weights.data() + i * dim, dim);
      const double similarity = sum * norms / std::sqrt(static_cast<double>(dim));
      const double root =
          std::copysign(std::sqrt(std::max(std::fabs(similarity), ops::kLeastEngramSimilarity)), similarity);
      const bool is_image = !args.is_image.is_null() && args.is_image.as<const int32_t>()[t] != 0;
      const std::array<double, 2> factors = {1.0, is_image ? 0.0 : 1.0 / (1.0 + std::exp(-root))};
      const std::array<const uint8_t*, 2> in = {from, At(args.mixed.data, dtype, first + mult * dim)};
      uint8_t* const out = args.out.as<uint8_t>() + task * dim * ElementBytes(dtype);
      kernels.rows.mix_rows(in.data(), 2, dtype == DType::kBF16, factors.data(), 1, dim, &out);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
