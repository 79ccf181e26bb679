// engram_mix in double, as the contract says it.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {
namespace {

// rsqrt(mean(x^2) + eps).
double Norm(std::span<const double> x, double eps) {
  const auto dim = static_cast<int64_t>(x.size());
  return 1.0 / std::sqrt(Dot(x.data(), x.data(), dim) / static_cast<double>(dim) + eps);
}

double Gate(std::span<const double> stream, std::span<const double> key, std::span<const double> q_weight,
            std::span<const double> k_weight, double eps) {
  double sum = 0;
  for (size_t d = 0; d < stream.size(); ++d) sum += stream[d] * q_weight[d] * k_weight[d] * key[d];
  const double similarity =
      sum * Norm(stream, eps) * Norm(key, eps) / std::sqrt(static_cast<double>(stream.size()));
  const double root =
      std::copysign(std::sqrt(std::max(std::fabs(similarity), ops::kLeastEngramSimilarity)), similarity);
  return 1.0 / (1.0 + std::exp(-root));
}

}  // namespace

Status EngramMix(ops::OpContext& context, const ops::EngramMixArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const auto mult = static_cast<size_t>(args.streams.shape[1]);
  const auto dim = static_cast<size_t>(args.streams.shape[2]);
  const std::vector<double> q_weight = LoadAll(args.q_weight);
  const std::vector<double> k_weight = LoadAll(args.k_weight);
  context.threads().ParallelFor(args.streams.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<double> streams(mult * dim);
    std::vector<double> mixed((mult + 1) * dim);
    for (int64_t t = begin; t < end; ++t) {
      LoadRow(args.streams, t, streams);
      LoadRow(args.mixed, t, mixed);
      const bool is_image = !args.is_image.is_null() && args.is_image.as<const int32_t>()[t] != 0;
      for (size_t i = 0; i < mult && !is_image; ++i) {
        const auto of_stream = [&](auto& all) { return std::span(all).subspan(i * dim, dim); };
        const double gate = Gate(of_stream(streams), of_stream(mixed), of_stream(q_weight),
                                 of_stream(k_weight), static_cast<double>(args.eps));
        AddScaled(gate, std::span<const double>(mixed).subspan(mult * dim), of_stream(streams));
      }
      StoreRow(streams, args.out, t);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
