// Random attention problems with windows and entries, and bounds from their sizes.
#include "tests/parity/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/number_formats.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// Roundings that a product of a logit may go through: fast backends add in order, in runs of 256 products,
// and then the runs.
double LogitDepth(int64_t num_terms) {
  return static_cast<double>(std::min<int64_t>(num_terms, 256) + num_terms / 256);
}

}  // namespace

Problem MakeProblem(const Geometry& geometry, DType dtype, const std::vector<int64_t>& first_positions,
                    const std::vector<int64_t>& lengths, uint32_t seed) {
  Random random(seed);
  const int64_t dim = geometry.head_dim;
  Problem problem;
  problem.geometry = geometry;
  problem.dtype = dtype;
  problem.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  problem.sink = Rounded(DType::kF32, random.Normals(geometry.num_heads, 2.0));
  for (size_t i = 0; i < lengths.size(); ++i) {
    Context context{first_positions[i], lengths[i], {}, {}};
    const int64_t end = first_positions[i] + lengths[i];
    context.keys = Rounded(dtype, random.Normals(end * dim, 1.5));
    if (geometry.ratio > 0) context.entries = Rounded(dtype, random.Normals(end / geometry.ratio * dim, 1.5));
    const std::vector<double> q = Rounded(dtype, random.Normals(lengths[i] * geometry.num_heads * dim, 1.5));
    problem.q.insert(problem.q.end(), q.begin(), q.end());
    for (int64_t t = 0; geometry.top_k > 0 && t < lengths[i]; ++t) {
      // Some visible entries in random order, holes in between.
      const int64_t visible = (first_positions[i] + t + 1) / geometry.ratio;
      std::vector<double> order(static_cast<size_t>(visible));
      std::iota(order.begin(), order.end(), 0.0);
      for (size_t k = 0; k < order.size(); ++k)
        std::swap(order[k], order[static_cast<size_t>(random.Below(visible))]);
      std::vector<double> row(static_cast<size_t>(geometry.top_k), -1.0);
      for (size_t k = 0; k < row.size() && k < order.size(); ++k) {
        if (random.Below(4) != 0) row[k] = order[k];
      }
      problem.selected.insert(problem.selected.end(), row.begin(), row.end());
    }
    problem.contexts.push_back(std::move(context));
  }
  return problem;
}

Expected Formula(const Problem& problem, bool round_weights) {
  const Geometry& g = problem.geometry;
  const size_t dim = static_cast<size_t>(g.head_dim);
  Expected expected;
  size_t token = 0;
  for (const Context& context : problem.contexts) {
    for (int64_t i = 0; i < context.num_tokens; ++i, ++token) {
      const int64_t p = context.first_position + i;
      std::vector<const double*> keys;
      for (int64_t j = 0; j <= p; ++j) {
        if (j > p - g.window_size) keys.push_back(context.keys.data() + j * g.head_dim);
      }
      for (int64_t j = 0; g.ratio > 0 && j < (p + 1) / g.ratio; ++j) {
        bool visible = g.top_k == 0;
        for (size_t k = 0; k < static_cast<size_t>(g.top_k); ++k) {
          visible |= problem.selected[token * static_cast<size_t>(g.top_k) + k] == static_cast<double>(j);
        }
        if (visible) keys.push_back(context.entries.data() + j * g.head_dim);
      }
      for (size_t h = 0; h < static_cast<size_t>(g.num_heads); ++h) {
        const double* q = problem.q.data() + (token * static_cast<size_t>(g.num_heads) + h) * dim;
        std::vector<double> logits;
        double largest_terms = 0;  // Products that the fp32 sum of a logit adds up.
        for (const double* key : keys) {
          double terms = 0;
          for (size_t d = 0; d < dim; ++d) terms += std::fabs(key[d] * q[d]);
          largest_terms = std::max(largest_terms, terms * static_cast<double>(problem.softmax_scale));
          logits.push_back(std::inner_product(key, key + dim, q, 0.0) *
                           static_cast<double>(problem.softmax_scale));
        }
        const double max = *std::max_element(logits.begin(), logits.end());
        double normalizer = std::exp(problem.sink[h] - max);
        std::vector<double> sum(dim, 0.0);
        std::vector<double> magnitude(dim, 0.0);
        for (size_t t = 0; t < keys.size(); ++t) {
          double weight = std::exp(logits[t] - max);
          normalizer += weight;
          if (round_weights && problem.dtype == DType::kBF16) {
            weight = static_cast<double>(RoundToBf16(static_cast<float>(weight)));
          }
          for (size_t d = 0; d < dim; ++d) {
            sum[d] += weight * keys[t][d];
            magnitude[d] += std::fabs(weight * keys[t][d]);
          }
        }
        for (size_t d = 0; d < dim; ++d) {
          expected.values.push_back(sum[d] / normalizer);
          expected.magnitudes.push_back(magnitude[d] / normalizer);
          // An error of the logits is a relative one of the weights, of Z too. The value sum runs key by key.
          // With bf16 each weight may round the other way.
          const double relative = 2 * std::expm1(2 * LogitDepth(g.head_dim) * 0x1p-24 * largest_terms) +
                                  static_cast<double>(keys.size()) * 0x1p-24 +
                                  (problem.dtype == DType::kBF16 ? 0x1p-8 : 0.0);
          expected.slack.push_back(relative * magnitude[d] / normalizer);
        }
      }
    }
  }
  return expected;
}

}  // namespace dsv4::test
