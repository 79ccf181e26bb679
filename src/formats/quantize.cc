// Quantisers of rows and matrices: FP8 and FP4 groups of activations, FP8, MXFP4 and NVFP4 weights.
#include "formats/quantize.h"

#include <algorithm>
#include <array>
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

// The e2m1 number nearest to a quotient of magnitude below 2^20, ties to the even code, without branches.
// Adding 1.5 * 2^23 leaves no bits for a fraction, so the addition itself rounds to even.
inline float NearestE2m1(float quotient) {
  constexpr float kRound = 12582912.0F;
  const float magnitude = std::fabs(quotient);
  const float halves = (magnitude * 2.0F + kRound - kRound) * 0.5F;
  const float ones = magnitude + kRound - kRound;
  const float twos = (magnitude * 0.5F + kRound - kRound) * 2.0F;
  const float rounded = magnitude < 2.0F ? halves : magnitude < 4.0F ? ones : twos;
  return std::copysign(rounded < kE2m1Max ? rounded : kE2m1Max, quotient);
}

// The sum of squared errors of a block under one scale. The lanes keep the order of the sum fixed.
template <int64_t kBlock>
float SquaredError(const float* values, float scale) {
  constexpr int64_t kLanes = 8;
  std::array<float, kLanes> sums = {};
  const float reciprocal = scale > 0.0F ? 1.0F / scale : 0.0F;  // A scale of 0 makes every element 0.
  for (int64_t begin = 0; begin < kBlock; begin += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const float error = values[begin + i] - scale * NearestE2m1(values[begin + i] * reciprocal);
      sums[static_cast<size_t>(i)] += error * error;
    }
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// From 7 on, an element would be rounded up to 8 if there were one: a scale that small clips instead of
// rounding.
constexpr double kLargestQuotient = 7.0 * (1 - 1e-6);

// The best code among [first, last], `start` where none is better; value_of(code) is the scale itself.
template <int64_t kBlock, typename ValueOf>
uint8_t LeastSquaresScale(std::span<const float> block, float max, int start, int first, int last,
                          ValueOf value_of) {
  // Squares of tiny or huge numbers leave fp32's range, so the search works on the block brought to a maximum
  // near 1.
  int exponent = 0;
  std::frexp(max, &exponent);
  const double unit = std::ldexp(1.0, -exponent);
  std::array<float, kBlock> scaled;
  for (size_t i = 0; i < scaled.size(); ++i)
    scaled[i] = static_cast<float>(static_cast<double>(block[i]) * unit);
  const auto error_of = [&](int code) {
    return SquaredError<kBlock>(scaled.data(),
                                static_cast<float>(static_cast<double>(value_of(code)) * unit));
  };
  int best = start;
  float least = error_of(start);
  for (int code = first; code <= last; ++code) {
    const float value = value_of(code);
    if (code == start || value <= 0.0F ||
        static_cast<double>(max) >= kLargestQuotient * static_cast<double>(value))
      continue;
    const float error = error_of(code);
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return static_cast<uint8_t>(best);
}

uint8_t MxFp4Scale(std::span<const float> block, BlockScaleRule rule) {
  const float max = MaxMagnitude(block).max;
  const int code = PowerOfTwoScale(max, kReciprocal6);
  if (rule == BlockScaleRule::kAmax || max == 0.0F) return static_cast<uint8_t>(code);
  return LeastSquaresScale<kMxFp4Block>(block, max, code, std::max(code - 1, 0), code,
                                        [](int c) { return FloatFromE8m0(static_cast<uint8_t>(c)); });
}

uint8_t NvFp4Scale(std::span<const float> block, float global_scale, BlockScaleRule rule) {
  const float max = MaxMagnitude(block).max;
  const auto code_for = [&](float element) {
    return E4m3FromFloat(std::min(max / (element * global_scale), kE4m3Max));
  };
  const int code = code_for(kE2m1Max);
  if (rule == BlockScaleRule::kAmax || max == 0.0F) return static_cast<uint8_t>(code);
  constexpr int kLargestCode = kE4m3NaN - 1;
  return LeastSquaresScale<kNvFp4Block>(
      block, max, code, std::max(code - 2, 1), std::min(code_for(4.0F) + 1, kLargestCode),
      [&](int c) { return FloatFromE4m3(static_cast<uint8_t>(c)) * global_scale; });
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

void RoundToFp4E4m3Groups(std::span<const float> in, int64_t group, std::span<float> out) {
  DSV4_CHECK(group > 0 && in.size() == out.size()) << group << " " << in.size() << " " << out.size();
  constexpr float kAmaxFloor = 6 * 0x1p-9F;
  for (size_t begin = 0; begin < in.size(); begin += static_cast<size_t>(group)) {
    const size_t size = std::min(in.size() - begin, static_cast<size_t>(group));
    const Magnitude magnitude = MaxMagnitude(in.subspan(begin, size));
    const float scale =
        FloatFromE4m3(E4m3FromFloat(std::min(std::max(magnitude.max, kAmaxFloor) / kE2m1Max, kE4m3Max)));
    for (size_t i = begin; i < begin + size; ++i) {
      out[i] = magnitude.has_nan ? std::numeric_limits<float>::quiet_NaN()
                                 : FloatFromE2m1(E2m1FromFloat(in[i] / scale)) * scale;
    }
  }
}

void SetViews(const void* data, const void* scale, Weight& weight) {
  const int64_t rows = weight.rows;
  const int64_t cols = weight.cols;
  switch (weight.format) {
    case WeightFormat::kPlain:
      weight.data = TensorView::Contiguous(data, DType::kBF16, {rows, cols});
      break;
    case WeightFormat::kFp8Block:
      weight.data = TensorView::Contiguous(data, DType::kF8E4M3, {rows, cols});
      weight.scale = TensorView::Contiguous(scale, DType::kF8E8M0,
                                            {(rows + weight.block_rows - 1) / weight.block_rows,
                                             (cols + weight.block_cols - 1) / weight.block_cols});
      break;
    case WeightFormat::kMxFp4:
      weight.data = TensorView::Contiguous(data, DType::kI8, {rows, cols / 2});
      weight.scale = TensorView::Contiguous(scale, DType::kF8E8M0, {rows, cols / kMxFp4Block});
      break;
    case WeightFormat::kNvFp4:
      weight.data = TensorView::Contiguous(data, DType::kU8, {rows, cols / 2});
      weight.scale = TensorView::Contiguous(scale, DType::kF8E4M3, {rows, cols / kNvFp4Block});
      break;
  }
}

Weight QuantizedMatrix::View() const {
  Weight weight = {.format = format,
                   .rows = rows,
                   .cols = cols,
                   .block_rows = block_rows,
                   .block_cols = block_cols,
                   .global_scale = global_scale};
  SetViews(data.data(), scale.data(), weight);
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

QuantizedMatrix QuantizeMxFp4(std::span<const float> values, int64_t rows, int64_t cols,
                              BlockScaleRule rule) {
  CheckMatrix(values, rows, cols, kMxFp4Block);
  DSV4_CHECK(cols % kMxFp4Block == 0) << cols;
  QuantizedMatrix result{WeightFormat::kMxFp4, rows, cols, 1, 1, {}, {}, 1.0F};
  result.data.resize(values.size() / 2);
  const int64_t blocks = cols / kMxFp4Block;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> source =
        values.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    for (int64_t block = 0; block < blocks; ++block) {
      result.scale.push_back(
          MxFp4Scale(source.subspan(static_cast<size_t>(block * kMxFp4Block), kMxFp4Block), rule));
    }
    const uint8_t* scales = result.scale.data() + row * blocks;
    PackRow(
        source, kMxFp4Block, [&](int64_t block) { return static_cast<double>(FloatFromE8m0(scales[block])); },
        result.data.data() + row * cols / 2);
  }
  return result;
}

float NvFp4GlobalScale(float max_magnitude) {
  constexpr float kRange = kE2m1Max * kE4m3Max;
  return max_magnitude == 0.0F ? 1.0F : std::max(max_magnitude / kRange, std::numeric_limits<float>::min());
}

QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols) {
  return QuantizeNvFp4(values, rows, cols, NvFp4GlobalScale(MaxMagnitude(values).max));
}

QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols, float global_scale,
                              BlockScaleRule rule) {
  CheckMatrix(values, rows, cols, kNvFp4Block);
  DSV4_CHECK(cols % kNvFp4Block == 0 && global_scale > 0.0F) << cols << " " << global_scale;
  QuantizedMatrix result{WeightFormat::kNvFp4, rows, cols, 1, 1, {}, {}, global_scale};
  result.data.resize(values.size() / 2);
  const int64_t blocks = cols / kNvFp4Block;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const float> source =
        values.subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols));
    for (int64_t block = 0; block < blocks; ++block) {
      result.scale.push_back(NvFp4Scale(source.subspan(static_cast<size_t>(block * kNvFp4Block), kNvFp4Block),
                                        global_scale, rule));
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
