#include "formats/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "formats/number_formats.h"

namespace dsv4 {

namespace {

constexpr float kReciprocal448 = std::bit_cast<float>(0x3B124925U);
constexpr float kReciprocal6 = std::bit_cast<float>(0x3E2AAAABU);
constexpr float kFp8AmaxFloor = 1e-4F;
constexpr float kFp4AmaxFloor = 6 * 0x1p-126F;

struct Magnitude {
  float max = 0.0F;
  bool has_nan = false;
};

Magnitude MaxMagnitude(std::span<const float> values) {
  Magnitude result;
  for (const float value : values) {
    result.max = std::max(result.max, std::fabs(value));  // A NaN operand leaves max as it is.
    result.has_nan |= std::isnan(value);
  }
  return result;
}

// The e8m0 code of 2^ceil(log2(max * reciprocal)); 1.0 for an all-zero block, whose elements are zero anyway.
uint8_t PowerOfTwoScale(float max, float reciprocal) {
  if (max == 0.0F) return kE8m0Bias;
  return static_cast<uint8_t>(std::clamp(CeilLog2(max * reciprocal) + kE8m0Bias, 0, 254));
}

// Division by a scale that may be subnormal must not overflow before the clamp, so it is done in double.
float Quotient(float value, float scale) {
  return static_cast<float>(static_cast<double>(value) / static_cast<double>(scale));
}

// Packs one row's e2m1 codes, block by block, dividing by scale_of(block); a zero scale gives zero codes.
template <typename ScaleOf>
void PackRow(std::span<const float> row, int64_t block, ScaleOf scale_of, uint8_t* packed) {
  for (size_t k = 0; k < row.size(); k += 2) {
    const double scale = scale_of(static_cast<int64_t>(k) / block);
    const auto code = [&](float value) -> uint8_t {
      if (scale == 0.0) return 0;
      const double quotient = std::clamp(static_cast<double>(value) / scale, -6.0, 6.0);
      return E2m1FromFloat(static_cast<float>(quotient));
    };
    packed[k / 2] = PackE2m1(code(row[k]), code(row[k + 1]));
  }
}

void CheckMatrix(std::span<const float> values, int64_t rows, int64_t cols, int64_t block_cols) {
  DSV4_CHECK(rows > 0 && cols > 0 && block_cols > 0 && static_cast<int64_t>(values.size()) == rows * cols)
      << rows << " x " << cols << ", " << values.size() << " values, blocks of " << block_cols;
}

}  // namespace

void RoundToFp8Groups(std::span<const float> in, int64_t group, std::span<float> out) {
  DSV4_CHECK(group > 0 && in.size() == out.size()) << group << " " << in.size() << " " << out.size();
  for (size_t begin = 0; begin < in.size(); begin += static_cast<size_t>(group)) {
    const size_t size = std::min(in.size() - begin, static_cast<size_t>(group));
    const float max = std::max(MaxMagnitude(in.subspan(begin, size)).max, kFp8AmaxFloor);
    const float scale = std::ldexp(1.0F, CeilLog2(max * kReciprocal448));
    for (size_t i = begin; i < begin + size; ++i) {
      const float clamped = std::clamp(in[i] / scale, -kE4m3Max, kE4m3Max);
      out[i] = FloatFromE4m3(E4m3FromFloat(clamped)) * scale;
    }
  }
}

void RoundToFp4Groups(std::span<const float> in, int64_t group, std::span<float> out) {
  DSV4_CHECK(group > 0 && in.size() == out.size()) << group << " " << in.size() << " " << out.size();
  for (size_t begin = 0; begin < in.size(); begin += static_cast<size_t>(group)) {
    const size_t size = std::min(in.size() - begin, static_cast<size_t>(group));
    const Magnitude magnitude = MaxMagnitude(in.subspan(begin, size));
    const float scale = std::ldexp(1.0F, CeilLog2(std::max(magnitude.max, kFp4AmaxFloor) * kReciprocal6));
    for (size_t i = begin; i < begin + size; ++i) {
      out[i] = magnitude.has_nan ? std::numeric_limits<float>::quiet_NaN()
                                 : FloatFromE2m1(E2m1FromFloat(in[i] / scale)) * scale;
    }
  }
}

Weight QuantizedMatrix::View() const {
  Weight weight;
  weight.format = format;
  weight.rows = rows;
  weight.cols = cols;
  weight.block_rows = block_rows;
  weight.block_cols = block_cols;
  weight.global_scale = global_scale;
  const auto view = [](const std::vector<uint8_t>& bytes, DType dtype, Shape shape) {
    return TensorView::Contiguous(static_cast<const void*>(bytes.data()), dtype, shape);
  };
  switch (format) {
    case WeightFormat::kFp8Block:
      weight.data = view(data, DType::kF8E4M3, {rows, cols});
      weight.scale = view(scale, DType::kF8E8M0,
                          {(rows + block_rows - 1) / block_rows, (cols + block_cols - 1) / block_cols});
      break;
    case WeightFormat::kMxFp4:
      weight.data = view(data, DType::kI8, {rows, cols / 2});
      weight.scale = view(scale, DType::kF8E8M0, {rows, cols / kMxFp4Block});
      break;
    case WeightFormat::kNvFp4:
      weight.data = view(data, DType::kU8, {rows, cols / 2});
      weight.scale = view(scale, DType::kF8E4M3, {rows, cols / kNvFp4Block});
      break;
    case WeightFormat::kPlain:
      DSV4_CHECK(false) << "a quantised matrix is never plain";
  }
  return weight;
}

QuantizedMatrix QuantizeFp8Block(std::span<const float> values, int64_t rows, int64_t cols,
                                 int64_t block_rows, int64_t block_cols) {
  CheckMatrix(values, rows, cols, block_cols);
  DSV4_CHECK(block_rows > 0) << block_rows;
  const int64_t scale_cols = (cols + block_cols - 1) / block_cols;
  const int64_t scale_rows = (rows + block_rows - 1) / block_rows;
  QuantizedMatrix result{WeightFormat::kFp8Block, rows, cols, block_rows, block_cols, {}, {}, 1.0F};
  result.data.resize(values.size());
  result.scale.resize(static_cast<size_t>(scale_rows * scale_cols));
  for (int64_t block_row = 0; block_row < scale_rows; ++block_row) {
    for (int64_t block_col = 0; block_col < scale_cols; ++block_col) {
      const int64_t row_end = std::min(rows, (block_row + 1) * block_rows);
      const int64_t col_begin = block_col * block_cols;
      const int64_t width = std::min(cols, col_begin + block_cols) - col_begin;
      float max = 0.0F;
      for (int64_t row = block_row * block_rows; row < row_end; ++row) {
        max = std::max(max, MaxMagnitude(values.subspan(static_cast<size_t>(row * cols + col_begin),
                                                        static_cast<size_t>(width)))
                                .max);
      }
      const uint8_t code = PowerOfTwoScale(max, kReciprocal448);
      result.scale[static_cast<size_t>(block_row * scale_cols + block_col)] = code;
      const float scale = FloatFromE8m0(code);
      for (int64_t row = block_row * block_rows; row < row_end; ++row) {
        for (int64_t col = col_begin; col < col_begin + width; ++col) {
          const size_t i = static_cast<size_t>(row * cols + col);
          result.data[i] = E4m3FromFloat(Quotient(values[i], scale));
        }
      }
    }
  }
  return result;
}

QuantizedMatrix QuantizeMxFp4(std::span<const float> values, int64_t rows, int64_t cols) {
  CheckMatrix(values, rows, cols, kMxFp4Block);
  DSV4_CHECK(cols % kMxFp4Block == 0) << cols;
  QuantizedMatrix result{WeightFormat::kMxFp4, rows, cols, 1, 1, {}, {}, 1.0F};
  result.data.resize(values.size() / 2);
  const int64_t blocks = cols / kMxFp4Block;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> source =
        values.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    for (int64_t block = 0; block < blocks; ++block) {
      const float max =
          MaxMagnitude(source.subspan(static_cast<size_t>(block * kMxFp4Block), kMxFp4Block)).max;
      result.scale.push_back(PowerOfTwoScale(max, kReciprocal6));
    }
    const uint8_t* scales = result.scale.data() + row * blocks;
    PackRow(
        source, kMxFp4Block, [&](int64_t block) { return static_cast<double>(FloatFromE8m0(scales[block])); },
        result.data.data() + row * cols / 2);
  }
  return result;
}

QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols) {
  const float max = MaxMagnitude(values).max;
  constexpr float kRange = kE2m1Max * kE4m3Max;
  return QuantizeNvFp4(values, rows, cols,
                       max == 0.0F ? 1.0F : std::max(max / kRange, std::numeric_limits<float>::min()));
}

QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols, float global_scale) {
  CheckMatrix(values, rows, cols, kNvFp4Block);
  DSV4_CHECK(cols % kNvFp4Block == 0 && global_scale > 0.0F) << cols << " " << global_scale;
  QuantizedMatrix result{WeightFormat::kNvFp4, rows, cols, 1, 1, {}, {}, global_scale};
  result.data.resize(values.size() / 2);
  const int64_t blocks = cols / kNvFp4Block;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> source =
        values.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    for (int64_t block = 0; block < blocks; ++block) {
      const float max =
          MaxMagnitude(source.subspan(static_cast<size_t>(block * kNvFp4Block), kNvFp4Block)).max;
      const float scale = max / (kE2m1Max * global_scale);
      result.scale.push_back(E4m3FromFloat(std::min(scale, kE4m3Max)));
    }
    const uint8_t* scales = result.scale.data() + row * blocks;
    // The product is exact in double, so it cannot underflow to a zero divisor.
    PackRow(
        source, kNvFp4Block,
        [&](int64_t block) {
          return static_cast<double>(FloatFromE4m3(scales[block])) * static_cast<double>(global_scale);
        },
        result.data.data() + row * cols / 2);
  }
  return result;
}

}  // namespace dsv4
