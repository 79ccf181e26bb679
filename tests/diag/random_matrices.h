// Random matrices and norms whose rows and columns have given sizes, for tests of checks that measure them.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "formats/weight.h"
#include "tensor/tensor.h"

namespace dsv4::testing {

class RandomMatrices {
 public:
  using Sizes = std::vector<float>;

  explicit RandomMatrices(unsigned seed) : random_(seed) {}

  float Normal() { return normal_(random_); }
  // Around a part that several have in common.
  Sizes Draw(const Sizes& common, float spread) {
    Sizes sizes = common;
    for (float& size : sizes) size *= std::exp(spread * Normal());
    return sizes;
  }
  // Owned by this, as all that follow.
  TensorView Tensor(const Sizes& values, const Shape& shape) {
    return TensorView::Contiguous(owned_.emplace_back(values).data(), DType::kF32, shape);
  }
  TensorView Norm(const Sizes& gains) { return Tensor(gains, {static_cast<int64_t>(gains.size())}); }
  // Rows and columns of these sizes, or of any where there are none. Sizes of one head repeat.
  Weight Matrix(int64_t rows, int64_t cols, const Sizes& by_row, const Sizes& by_column) {
    Sizes values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / static_cast<size_t>(cols);
      const size_t column = i % static_cast<size_t>(cols);
      values[i] = Normal() * (by_row.empty() ? 1 : by_row[row % by_row.size()]) *
                  (by_column.empty() ? 1 : by_column[column % by_column.size()]);
    }
    Weight weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.data = Tensor(values, {rows, cols});
    return weight;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::deque<Sizes> owned_;
};

}  // namespace dsv4::testing
