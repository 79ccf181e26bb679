// Experts of every format for tests of routed_experts and of the ops that divide it.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "formats/quantize.h"
#include "ops/routed_experts.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {

enum class ExpertFormat { kNvFp4, kMxFp4, kFp8, kMixed };

struct TestExperts {
  std::vector<QuantizedMatrix> matrices;
  std::vector<ops::ExpertWeights> weights;
};

inline TestExperts MakeExperts(int64_t num_experts, int64_t dim, int64_t inter_dim, ExpertFormat format,
                               Random& random) {
  TestExperts experts;
  const auto matrix = [&](int64_t rows, int64_t cols, int64_t which) {
    const std::vector<double> normals = random.Normals(rows * cols, 0.3);
    const std::vector<float> values(normals.begin(), normals.end());
    const int64_t kind = format == ExpertFormat::kMixed ? which % 3 : static_cast<int64_t>(format);
    if (kind == 0) return QuantizeNvFp4(values, rows, cols);
    if (kind == 1) return QuantizeMxFp4(values, rows, cols);
    return QuantizeFp8Block(values, rows, cols, 128, 128);
  };
  for (int64_t e = 0; e < num_experts; ++e) {
    experts.matrices.push_back(matrix(inter_dim, dim, e));
    experts.matrices.push_back(matrix(dim, inter_dim, e + 1));
    experts.matrices.push_back(matrix(inter_dim, dim, e + 2));
  }
  for (size_t e = 0; e < static_cast<size_t>(num_experts); ++e) {
    ops::ExpertWeights weights{experts.matrices[3 * e].View(), experts.matrices[3 * e + 1].View(),
                               experts.matrices[3 * e + 2].View()};
    for (Weight* weight : {&weights.w1, &weights.w2, &weights.w3}) {
      weight->activation =
          weight->format == WeightFormat::kNvFp4 ? ActivationQuant::kNone : ActivationQuant::kFp8Block;
    }
    experts.weights.push_back(weights);
  }
  return experts;
}

struct ExpertCase {
  int64_t num_tokens;
  int64_t num_experts;
  int64_t top_k;
  int64_t dim;
  int64_t inter_dim;
};

inline std::vector<double> DistinctIndices(const ExpertCase& c, Random& random) {
  std::vector<double> indices;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    std::vector<double> experts(static_cast<size_t>(c.num_experts));
    std::iota(experts.begin(), experts.end(), 0.0);
    for (size_t k = 0; k < static_cast<size_t>(c.top_k); ++k) {
      std::swap(experts[k],
                experts[k + static_cast<size_t>(random.Below(c.num_experts - static_cast<int64_t>(k)))]);
      indices.push_back(experts[k]);
    }
  }
  return indices;
}

}  // namespace dsv4::test
