// Problems for products in FP8 whose sums tensor cores holds exactly: whatever it is given that it should not
// be, shows.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {

inline constexpr int64_t kScaleBlock = 128;

// e4m3 weights of small integers in blocks of 128 x 128, each block with another scale: E8M0, or F32 of all
// mantissas.
struct IntegerWeight {
  int64_t rows;
  int64_t cols;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> e8m0;
  std::vector<float> scales;
  Weight weight;  // Borrows from the others.

  int64_t BlockCols() const { return (cols + kScaleBlock - 1) / kScaleBlock; }
  float Scale(int64_t row, int64_t block) const {
    return scales[static_cast<size_t>(row / kScaleBlock * BlockCols() + block)];
  }
};

inline int SmallInteger(std::mt19937& random) { return static_cast<int>(random() % 15) - 7; }

inline void MakeIntegerWeight(int64_t rows, int64_t cols, DType scale_dtype, uint32_t seed,
                              IntegerWeight& made) {
  made.rows = rows;
  made.cols = cols;
  std::mt19937 random(seed);
  made.codes.resize(static_cast<size_t>(rows * cols));
  for (uint8_t& code : made.codes) code = E4m3FromFloat(static_cast<float>(SmallInteger(random)));
  const int64_t scale_rows = (rows + kScaleBlock - 1) / kScaleBlock;
  for (int64_t i = 0; i < scale_rows * made.BlockCols(); ++i) {
    made.e8m0.push_back(static_cast<uint8_t>(kE8m0Bias - 6 + i * 5 % 11));
    made.scales.push_back(
        FloatFromE8m0(made.e8m0.back()) *
        (scale_dtype == DType::kF32 ? 1.0F + static_cast<float>(random() % 997) / 997.0F : 1.0F));
  }
  Weight& weight = made.weight;
  weight.format = WeightFormat::kFp8Block;
  weight.activation = ActivationQuant::kFp8Block;
  weight.rows = rows;
  weight.cols = cols;
  weight.block_rows = weight.block_cols = kScaleBlock;
  weight.data = TensorView::Contiguous(made.codes.data(), DType::kF8E4M3, {rows, cols});
  const Shape shape = {scale_rows, made.BlockCols()};
  weight.scale = scale_dtype == DType::kF32 ? TensorView::Contiguous(made.scales.data(), DType::kF32, shape)
                                            : TensorView::Contiguous(made.e8m0.data(), DType::kF8E8M0, shape);
}

// Rows of small integers, each group of 128 columns times another power of two.
inline std::vector<float> IntegerRows(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t group = i / cols * 3 + i % cols / kScaleBlock * 5;
    x[static_cast<size_t>(i)] =
        std::ldexp(static_cast<float>(SmallInteger(random)), static_cast<int>(group % 9) - 4);
  }
  return x;
}

// The result as gemm_tma_fp8.h defines it, from columns [first_col, first_col + weight.cols) of rows of x. No
// sum of integers here reaches 2^13 times the smallest, so the unit's are exact.
inline std::vector<float> ExactFp8Product(const std::vector<float>& x, int64_t x_cols, int64_t first_col,
                                          const IntegerWeight& weight, int64_t first_row, int64_t num_rows) {
  const int64_t num_tokens = std::ssize(x) / x_cols;
  std::vector<float> values(weight.codes.size());
  std::transform(weight.codes.begin(), weight.codes.end(), values.begin(), FloatFromE4m3);
  std::vector<float> y(static_cast<size_t>(num_tokens * num_rows), 0.0F);
  std::vector<float> codes(static_cast<size_t>(kScaleBlock));
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t block = 0; block < weight.BlockCols(); ++block) {
      const float* const group = &x[static_cast<size_t>(t * x_cols + first_col + block * kScaleBlock)];
      float max = 1e-4F;
      for (int64_t c = 0; c < kScaleBlock; ++c) max = std::max(max, std::abs(group[c]));
      const float scale = std::ldexp(1.0F, CeilLog2(max * (1.0F / 448.0F)));
      for (int64_t c = 0; c < kScaleBlock; ++c) codes[static_cast<size_t>(c)] = group[c] / scale;
      for (int64_t row = 0; row < num_rows; ++row) {
        const float* const w =
            &values[static_cast<size_t>((first_row + row) * weight.cols + block * kScaleBlock)];
        std::array<float, 8> parts = {};  // Exact in any order.
        for (size_t c = 0; c < kScaleBlock; ++c) parts[c % 8] += codes[c] * w[c];
        const float unit = std::accumulate(parts.begin(), parts.end(), 0.0F);
        float& total = y[static_cast<size_t>(t * num_rows + row)];
        total = std::fma(unit, scale * weight.Scale(first_row + row, block), total);
      }
    }
  }
  return y;
}

}  // namespace dsv4::testing
