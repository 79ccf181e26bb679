// linear and grouped_linear over every stored format, with the mutations of field-lessons.md N1, N4 and N8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "formats/number_formats.h"
#include "formats/quantize.h"
#include "tests/parity/backends.h"
#include "tests/parity/test_tensor.h"

namespace dsv4::test {
namespace {

// A weight that owns its storage, and its values by definition of the format, decoded here a second time.
struct TestWeight {
  std::string name;
  Weight weight;
  std::vector<double> values;
  std::vector<std::byte> bytes;  // Plain formats.
  QuantizedMatrix matrix;        // The others.
  std::vector<float> f32_scales;
};

double DecodeE4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const double magnitude =
      exponent == 0 ? (code & 7) * 0x1p-9 : std::ldexp(1.0 + (code & 7) / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

double DecodeE2m1(uint8_t code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return ((code & 8) != 0 ? -1.0 : 1.0) * kMagnitudes[code & 7];
}

std::unique_ptr<TestWeight> Plain(DType dtype, int64_t rows, int64_t cols, Random& random) {
  auto result = std::make_unique<TestWeight>();
  result->name = std::string(DTypeName(dtype));
  const TestTensor tensor(dtype, {rows, cols}, random.Normals(rows * cols, 0.5));
  result->values = tensor.Values();
  result->bytes = tensor.Bytes();
  result->weight.rows = rows;
  result->weight.cols = cols;
  result->weight.data = TensorView::Contiguous(static_cast<void*>(result->bytes.data()), dtype, {rows, cols});
  return result;
}

std::vector<float> Floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

std::unique_ptr<TestWeight> Fp8(int64_t rows, int64_t cols, int64_t block, bool f32_scale, Random& random) {
  auto result = std::make_unique<TestWeight>();
  result->name = "fp8 block " + std::to_string(block) + (f32_scale ? " f32 scales" : "");
  result->matrix = QuantizeFp8Block(Floats(random.Normals(rows * cols, 0.5)), rows, cols, block, block);
  result->weight = result->matrix.View();
  const int64_t scale_cols = result->weight.scale.shape[1];
  for (const uint8_t code : result->matrix.scale) {
    result->f32_scales.push_back(std::ldexp(f32_scale ? 1.1F : 1.0F, code - 127));
  }
  if (f32_scale) {
    result->weight.scale = TensorView::Contiguous(static_cast<void*>(result->f32_scales.data()), DType::kF32,
                                                  result->weight.scale.shape);
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double scale = static_cast<double>(
        result->f32_scales[static_cast<size_t>(i / cols / block * scale_cols + i % cols / block)]);
    const double value = DecodeE4m3(result->matrix.data[static_cast<size_t>(i)]) * scale;
    result->values.push_back(static_cast<double>(static_cast<float>(value)));
  }
  return result;
}

std::unique_ptr<TestWeight> Fp4(WeightFormat format, int64_t rows, int64_t cols, bool divides,
                                Random& random) {
  auto result = std::make_unique<TestWeight>();
  const std::vector<float> source = Floats(random.Normals(rows * cols, 0.5));
  const bool nvfp4 = format == WeightFormat::kNvFp4;
  result->name = nvfp4 ? (divides ? "nvfp4, divisor" : "nvfp4") : "mxfp4";
  result->matrix = nvfp4 ? QuantizeNvFp4(source, rows, cols) : QuantizeMxFp4(source, rows, cols);
  result->weight = result->matrix.View();
  double global = static_cast<double>(result->matrix.global_scale);
  if (divides) {
    result->weight.global_scale = static_cast<float>(1.0 / global);
    result->weight.global_scale_divides = true;
    global = 1.0 / static_cast<double>(result->weight.global_scale);
  }
  const int64_t block = nvfp4 ? 16 : 32;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const uint8_t byte = result->matrix.data[static_cast<size_t>(i / 2)];
    const uint8_t scale_code = result->matrix.scale[static_cast<size_t>(i / block)];
    const double scale = nvfp4 ? static_cast<double>(static_cast<float>(DecodeE4m3(scale_code) * global))
                               : std::ldexp(1.0, scale_code - 127);
    const double value = DecodeE2m1(static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4)) * scale;
    result->values.push_back(static_cast<double>(static_cast<float>(value)));
  }
  return result;
}

std::vector<std::unique_ptr<TestWeight>> EveryFormat(int64_t rows, int64_t cols, Random& random) {
  std::vector<std::unique_ptr<TestWeight>> weights;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    weights.push_back(Plain(dtype, rows, cols, random));
  }
  weights.push_back(Fp8(rows, cols, 128, false, random));
  weights.push_back(Fp8(rows, cols, 32, false, random));
  weights.push_back(Fp8(rows, cols, 128, true, random));
  if (cols % 16 == 0) {
    weights.push_back(Fp4(WeightFormat::kNvFp4, rows, cols, false, random));
    weights.push_back(Fp4(WeightFormat::kNvFp4, rows, cols, true, random));
  }
  if (cols % 32 == 0) weights.push_back(Fp4(WeightFormat::kMxFp4, rows, cols, false, random));
  return weights;
}

// Activations as the contract rounds them, by the arithmetic definition of the grid.
std::vector<double> Quantized(const std::vector<double>& x, int64_t cols, int64_t group = 128) {
  std::vector<double> rounded = x;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(cols)) {
    for (int64_t begin = 0; begin < cols; begin += group) {
      const size_t first = row + static_cast<size_t>(begin);
      const size_t last = row + static_cast<size_t>(std::min(cols, begin + group));
      float max = 1e-4F;
      for (size_t i = first; i < last; ++i) max = std::max(max, std::fabs(static_cast<float>(x[i])));
      int exponent = 0;
      const double fraction = std::frexp(static_cast<double>(max * (1.0F / 448.0F)), &exponent);
      const double scale = std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
      for (size_t i = first; i < last; ++i) {
        const double q = std::fabs(x[i] / scale);
        const double step =
            std::ldexp(1.0, (q < 0x1p-6 ? -6 : static_cast<int>(std::floor(std::log2(q)))) - 3);
        rounded[i] = std::nearbyint(x[i] / scale / step) * step * scale;
      }
    }
  }
  return rounded;
}

struct Sums {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

Sums Multiply(const std::vector<double>& x, const std::vector<double>& w, int64_t num_tokens, int64_t rows,
              int64_t cols) {
  Sums sums;
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t n = 0; n < rows; ++n) {
      long double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < cols; ++k) {
        const double product = x[static_cast<size_t>(t * cols + k)] * w[static_cast<size_t>(n * cols + k)];
        sum += static_cast<long double>(product);
        magnitude += std::fabs(product);
      }
      sums.values.push_back(static_cast<double>(sum));
      sums.magnitudes.push_back(magnitude);
    }
  }
  return sums;
}

struct LinearCase {
  int64_t num_tokens;
  int64_t rows;
  int64_t cols;
  int64_t gap;
};

TEST(LinearParity, EveryFormatAgainstTheDefinition) {
  const LinearCase cases[] = {{0, 8, 32, 0},   {1, 1, 16, 0},    {1, 33, 128, 0},  {2, 127, 160, 3},
                              {5, 129, 96, 0}, {7, 128, 384, 1}, {3, 20, 4096, 0}, {2, 5, 41, 0},
                              {5, 38, 128, 0}, {21, 36, 128, 1}};
  for (const LinearCase& c : cases) {
    Random random(41);
    const auto weights = EveryFormat(c.rows, c.cols, random);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const std::vector<double> x = Rounded(dtype, random.Normals(c.num_tokens * c.cols, 2.0));
      const TestTensor x_tensor(dtype, {c.num_tokens, c.cols}, x, c.gap);
      for (const auto& w : weights) {
        for (const ActivationQuant quant :
             {ActivationQuant::kNone, ActivationQuant::kFp8Block, ActivationQuant::kFp8Columns32}) {
          w->weight.activation = quant;
          for (const DType out : {DType::kBF16, DType::kF32}) {
            const auto outputs = RunOnAll(
                [&](const ops::Backend& backend) {
                  TestTensor y(out, {c.num_tokens, c.rows}, c.gap);
                  const Status status = backend.table.linear(*backend.context, {x_tensor, &w->weight, y});
                  EXPECT_TRUE(status.ok()) << status.ToString();
                  return Outputs(std::move(y));
                },
                FastOutputs::kBounded);
            const std::vector<double> rounded =
                quant == ActivationQuant::kNone ? x : Quantized(x, c.cols, ActivationGroup(quant));
            const Sums want = Multiply(rounded, w->values, c.num_tokens, c.rows, c.cols);
            ExpectRounded(out, outputs[0].Values(), want.values, want.magnitudes, w->name);
            ExpectFast(outputs, 0, out, want.values, want.magnitudes, c.cols, w->name);
          }
        }
      }
    }
  }
}

std::vector<double> RunLinear(const Weight& weight, const std::vector<double>& x, DType dtype = DType::kF32,
                              const ops::Backend& backend = Reference()) {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / weight.cols;
  const TestTensor x_tensor(DType::kBF16, {num_tokens, weight.cols}, x);
  TestTensor y(dtype, {num_tokens, weight.rows});
  const Status status = backend.table.linear(*backend.context, {x_tensor, &weight, y});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return y.Values();
}

// N1: every scale tensor takes part, and as a multiplier.
// With power-of-two scales the group shows only beside an outlier above 2^14 times its neighbours: there 32
// columns keep what 128 lose.
TEST(LinearParity, GroupsOf32KeepWhatAnOutlierIn128Loses) {
  constexpr int64_t kCols = 256;
  std::vector<double> x(kCols, 0.0);
  for (int64_t i = 0; i < kCols; ++i) x[static_cast<size_t>(i)] = 0.5 + static_cast<double>(i % 7) / 16;
  x[3] = 1048576.0;  // In the first group of either size.
  const TestTensor x_tensor(DType::kBF16, {1, kCols}, x);
  Random random(47);
  const auto w32 = Fp8(40, kCols, 32, false, random);
  const auto mxfp4 = Fp4(WeightFormat::kMxFp4, 40, kCols, false, random);
  for (const auto& w : {w32.get(), mxfp4.get()}) {
    std::vector<std::vector<double>> by_group;
    for (const ActivationQuant quant : {ActivationQuant::kFp8Block, ActivationQuant::kFp8Columns32}) {
      w->weight.activation = quant;
      const std::vector<double> rounded = Quantized(x_tensor.Values(), kCols, ActivationGroup(quant));
      const Sums want = Multiply(rounded, w->values, 1, 40, kCols);
      const auto outputs = RunOnAll(
          [&](const ops::Backend& backend) {
            TestTensor y(DType::kF32, {1, 40});
            EXPECT_TRUE(backend.table.linear(*backend.context, {x_tensor, &w->weight, y}).ok());
            return Outputs(std::move(y));
          },
          FastOutputs::kBounded);
      ExpectRounded(DType::kF32, outputs[0].Values(), want.values, want.magnitudes, w->name);
      ExpectFast(outputs, 0, DType::kF32, want.values, want.magnitudes, kCols, w->name);
      by_group.push_back(rounded);
    }
    // Columns 32 to 127 vanish beside the outlier in groups of 128, and stay in groups of 32.
    EXPECT_EQ(by_group[0][40], 0.0);
    EXPECT_NEAR(by_group[1][40], x[40], x[40] / 16);
    EXPECT_EQ(by_group[0][200], by_group[1][200]);
  }
}

TEST(LinearMutation, TriplingAnyScaleChangesTheOutput) {
  Random random(42);
  const std::vector<double> x = random.Normals(2 * 128);

  auto nvfp4 = Fp4(WeightFormat::kNvFp4, 8, 128, false, random);
  const std::vector<double> base = RunLinear(nvfp4->weight, x);
  nvfp4->weight.global_scale *= 3.0F;
  const std::vector<double> tripled = RunLinear(nvfp4->weight, x);
  for (size_t i = 0; i < base.size(); ++i)
    EXPECT_NEAR(tripled[i], 3.0 * base[i], 1e-5 * (1.0 + std::fabs(base[i])));
  nvfp4->weight.global_scale /= 3.0F;
  for (size_t block = 0; block < nvfp4->matrix.scale.size(); ++block) {
    const uint8_t kept = nvfp4->matrix.scale[block];
    nvfp4->matrix.scale[block] = E4m3FromFloat(FloatFromE4m3(kept) / 3.0F);
    const std::vector<double> mutated = RunLinear(nvfp4->weight, x);
    for (size_t i = 0; i < base.size(); ++i) {
      const bool same_row = i % 8 == block / 8;
      EXPECT_EQ(mutated[i] != base[i], same_row) << "block " << block << " output " << i;
    }
    nvfp4->matrix.scale[block] = kept;
  }

  for (auto& weight : {Fp8(8, 128, 32, false, random), Fp4(WeightFormat::kMxFp4, 8, 128, false, random)}) {
    const std::vector<double> reference = RunLinear(weight->weight, x);
    for (uint8_t& code : weight->matrix.scale) {
      const uint8_t kept = code;
      ++code;
      EXPECT_NE(RunLinear(weight->weight, x), reference);
      code = kept;
    }
  }

  auto base_checkpoint = Fp8(8, 128, 32, true, random);
  const std::vector<double> reference = RunLinear(base_checkpoint->weight, x);
  for (float& scale : base_checkpoint->f32_scales) {
    scale *= 3.0F;
    EXPECT_NE(RunLinear(base_checkpoint->weight, x), reference);
    scale /= 3.0F;
  }
}

// N4 and batch invariance: a row gets its own activation scales, whatever its neighbours are.
TEST(LinearMutation, RowsOfVeryDifferentMagnitudeDoNotInfluenceEachOther) {
  Random random(43);
  for (const auto& w : EveryFormat(16, 256, random)) {
    w->weight.activation = ActivationQuant::kFp8Block;
    std::vector<double> batch;
    std::vector<double> alone;
    for (const double magnitude : {1e-6, 1.0, 1e6, 0.0, 30.0}) {
      const std::vector<double> row = random.Normals(256, magnitude);
      const std::vector<double> y = RunLinear(w->weight, row, DType::kBF16);
      alone.insert(alone.end(), y.begin(), y.end());
      batch.insert(batch.end(), row.begin(), row.end());
    }
    EXPECT_EQ(RunLinear(w->weight, batch, DType::kBF16), alone) << w->name;
  }
}

TEST(LinearMutation, ActivationRoundingIsSeen) {
  Random random(44);
  const std::vector<double> x = random.Normals(128);
  auto w = Fp8(32, 128, 128, false, random);
  const std::vector<double> exact = RunLinear(w->weight, x);
  w->weight.activation = ActivationQuant::kFp8Block;
  EXPECT_NE(RunLinear(w->weight, x), exact);
}

// N8: a column slice of a wider matrix is a legal x and y, and gives what a copy gives.
TEST(LinearMutation, ColumnSlicesGiveTheSameNumbersAsCopies) {
  Random random(45);
  auto w = Plain(DType::kBF16, 24, 48, random);
  const std::vector<double> wide = Rounded(DType::kBF16, random.Normals(5 * 200));
  const TestTensor wide_tensor(DType::kBF16, {5, 200}, wide);
  TensorView slice = wide_tensor.view();
  slice.data = wide_tensor.view().as<uint16_t>() + 100;
  slice.shape = {5, 48};
  std::vector<double> copied;
  for (size_t row = 0; row < 5; ++row) {
    copied.insert(copied.end(), wide.begin() + static_cast<int64_t>(row) * 200 + 100,
                  wide.begin() + static_cast<int64_t>(row) * 200 + 148);
  }
  TestTensor y(DType::kBF16, {5, 24});
  ASSERT_TRUE(Reference().table.linear(*Reference().context, {slice, &w->weight, y}).ok());
  EXPECT_EQ(y.Values(), RunLinear(w->weight, copied, DType::kBF16));

  // Into other columns of the same matrix: the bytes between the slices stay.
  TensorView out = slice;
  out.data = wide_tensor.view().as<uint16_t>() + 10;
  out.shape = {5, 24};
  ASSERT_TRUE(Reference().table.linear(*Reference().context, {slice, &w->weight, out}).ok());
  const std::vector<double> after = wide_tensor.Values();
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t col = i % 200;
    EXPECT_EQ(after[i], col >= 10 && col < 34 ? y.Values()[i / 200 * 24 + col - 10] : wide[i]);
  }
}

TEST(GroupedLinearParity, EveryGroupMeetsItsOwnRows) {
  struct GroupCase {
    int64_t num_tokens;
    int64_t num_groups;
    int64_t group_width;
    int64_t rank;
  };
  const GroupCase cases[] = {{0, 2, 32, 8}, {1, 1, 32, 1}, {3, 2, 96, 5}, {2, 8, 128, 64}, {5, 3, 64, 129}};
  for (const GroupCase& c : cases) {
    Random random(46);
    for (const auto& w : EveryFormat(c.num_groups * c.rank, c.group_width, random)) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const std::vector<double> x =
            Rounded(dtype, random.Normals(c.num_tokens * c.num_groups * c.group_width));
        const TestTensor x_tensor(dtype, {c.num_tokens, c.num_groups, c.group_width}, x);
        const auto outputs = RunOnAll(
            [&](const ops::Backend& backend) {
              TestTensor y(dtype, {c.num_tokens, c.num_groups, c.rank});
              const Status status = backend.table.grouped_linear(*backend.context, {x_tensor, &w->weight, y});
              EXPECT_TRUE(status.ok()) << status.ToString();
              return Outputs(std::move(y));
            },
            FastOutputs::kBounded);
        Sums want;
        for (int64_t t = 0; t < c.num_tokens; ++t) {
          for (int64_t g = 0; g < c.num_groups; ++g) {
            const auto x_begin = x.begin() + (t * c.num_groups + g) * c.group_width;
            const auto w_begin = w->values.begin() + g * c.rank * c.group_width;
            const Sums part = Multiply({x_begin, x_begin + c.group_width},
                                       {w_begin, w_begin + c.rank * c.group_width}, 1, c.rank, c.group_width);
            want.values.insert(want.values.end(), part.values.begin(), part.values.end());
            want.magnitudes.insert(want.magnitudes.end(), part.magnitudes.begin(), part.magnitudes.end());
          }
        }
        ExpectRounded(dtype, outputs[0].Values(), want.values, want.magnitudes, w->name);
        ExpectFast(outputs, 0, dtype, want.values, want.magnitudes, c.group_width, w->name);
      }
    }
  }
}

// However many tokens a step has, and wherever the threads cut the rows: a row alone gives the same bits. Few
// tokens, many and those that do not fill a tile take different paths through a fast backend.
TEST(LinearBatchInvariance, ARowAloneGivesTheSameBits) {
  constexpr int64_t kTokens = 37;
  for (const int64_t cols : {32, 96, 384, 1120}) {
    Random random(48);
    const auto weights = EveryFormat(70, cols, random);
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const std::vector<double> x = Rounded(dtype, random.Normals(kTokens * cols));
      const TestTensor x_tensor(dtype, {kTokens, cols}, x);
      for (const auto& w : weights) {
        for (const FastBackend& fast : FastBackends()) {
          const ops::Backend& backend = fast.three_threads;
          const auto run = [&](int64_t begin, int64_t end) {
            TestTensor y(DType::kF32, {end - begin, w->weight.rows});
            const Status status =
                backend.table.linear(*backend.context, {x_tensor.view().Rows(begin, end), &w->weight, y});
            EXPECT_TRUE(status.ok()) << status.ToString();
            return y.Values();
          };
          std::vector<double> alone;
          for (int64_t t = 0; t < kTokens; ++t) {
            const std::vector<double> row = run(t, t + 1);
            alone.insert(alone.end(), row.begin(), row.end());
          }
          for (const int64_t step : {2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 37}) {
            for (int64_t begin = 0; begin < kTokens; begin += step) {
              const int64_t end = std::min(kTokens, begin + step);
              EXPECT_EQ(run(begin, end), std::vector<double>(alone.begin() + begin * w->weight.rows,
                                                             alone.begin() + end * w->weight.rows))
                  << w->name << " on " << backend.name << ", " << step << " tokens, " << cols << " columns";
            }
          }
        }
      }
    }
  }
}

// Every code of e4m3 and every scale a checkpoint may hold is read as the format says: one row a code, x = 1.
TEST(LinearCodes, EveryCodeAndScale) {
  for (const FastBackend& fast : FastBackends()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      std::vector<uint8_t> codes;
      std::vector<double> want;
      for (int code = 0; code < 256; ++code) {
        if ((code & 0x7F) == 0x7F) continue;  // NaN.
        codes.insert(codes.end(), 128, 0);
        codes[codes.size() - 128 + static_cast<size_t>(code) % 128] = static_cast<uint8_t>(code);
        want.push_back(DecodeE4m3(static_cast<uint8_t>(code)));
      }
      const int64_t rows = static_cast<int64_t>(want.size());
      const TestTensor ones(dtype, {1, 128}, std::vector<double>(128, 1.0));
      uint8_t unit_scale[2] = {127, 127};
      Weight fp8;
      fp8.format = WeightFormat::kFp8Block;
      fp8.rows = rows;
      fp8.cols = fp8.block_rows = fp8.block_cols = 128;
      fp8.data = TensorView::Contiguous(static_cast<void*>(codes.data()), DType::kF8E4M3, {rows, 128});
      fp8.scale = TensorView::Contiguous(static_cast<void*>(unit_scale), DType::kF8E8M0, {2, 1});
      const auto run = [&](const Weight& weight) {
        TestTensor y(DType::kF32, {1, weight.rows});
        const Status status = fast.one_thread.table.linear(*fast.one_thread.context, {ones, &weight, y});
        EXPECT_TRUE(status.ok()) << status.ToString();
        return y.Values();
      };
      EXPECT_EQ(run(fp8), want) << fast.one_thread.name;

      for (const WeightFormat format : {WeightFormat::kNvFp4, WeightFormat::kMxFp4}) {
        const bool nvfp4 = format == WeightFormat::kNvFp4;
        const int64_t block = nvfp4 ? 16 : 32;
        const int64_t num_scales = nvfp4 ? 127 : 255;
        Weight fp4;
        fp4.format = format;
        fp4.rows = num_scales * 16;
        fp4.cols = block;
        std::vector<uint8_t> packed(static_cast<size_t>(fp4.rows * block / 2), 0);
        std::vector<uint8_t> scales;
        std::vector<double> values;
        for (int64_t row = 0; row < fp4.rows; ++row) {
          const auto code = static_cast<uint8_t>(row % 16);
          const auto scale = static_cast<uint8_t>(row / 16);
          const int64_t column = row % block;
          packed[static_cast<size_t>((row * block + column) / 2)] =
              column % 2 == 0 ? code : static_cast<uint8_t>(code << 4);
          scales.push_back(scale);
          const double value = DecodeE2m1(code) * (nvfp4 ? DecodeE4m3(scale) : std::ldexp(1.0, scale - 127));
          // Tiles take what bf16 would hold as a subnormal number for zero.
          const bool tiles = fast.one_thread.name == "cpu (amx)" && dtype == DType::kBF16;
          const bool lost = tiles && std::fabs(value) < 0x1p-126;
          values.push_back(lost ? 0.0 : static_cast<double>(static_cast<float>(value)));
        }
        fp4.data = TensorView::Contiguous(static_cast<void*>(packed.data()), nvfp4 ? DType::kU8 : DType::kI8,
                                          {fp4.rows, block / 2});
        fp4.scale = TensorView::Contiguous(static_cast<void*>(scales.data()),
                                           nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0, {fp4.rows, 1});
        const TestTensor x(dtype, {1, block}, std::vector<double>(static_cast<size_t>(block), 1.0));
        TestTensor y(DType::kF32, {1, fp4.rows});
        ASSERT_TRUE(fast.one_thread.table.linear(*fast.one_thread.context, {x, &fp4, y}).ok());
        EXPECT_EQ(y.Values(), values) << fast.one_thread.name << (nvfp4 ? " nvfp4" : " mxfp4");
      }
    }
  }
}

// Whether a kernel folds the scale of an FP8 block into its look-up or multiplies with it, the value is the
// same. A NaN stays one, for any number of tokens.
TEST(LinearCodes, EveryFp8Scale) {
  constexpr int64_t kRows = 128;
  constexpr int64_t kTokens = 20;
  std::vector<uint8_t> codes(static_cast<size_t>(kRows) * 256, 0);
  for (size_t row = 0; row < kRows; ++row) {
    codes[row * 256 + row] = static_cast<uint8_t>(row);                    // The first block: 0 to 127, NaN.
    codes[row * 256 + 255 - row] = static_cast<uint8_t>(128 + row % 127);  // The second.
  }
  Weight weight;
  weight.format = WeightFormat::kFp8Block;
  weight.rows = kRows;
  weight.cols = 256;
  weight.block_rows = weight.block_cols = 128;
  weight.data = TensorView::Contiguous(static_cast<void*>(codes.data()), DType::kF8E4M3, {kRows, 256});
  const TestTensor ones(DType::kBF16, {kTokens, 256}, std::vector<double>(kTokens * 256, 1.0));
  for (const FastBackend& fast : FastBackends()) {
    for (int scale = 0; scale < 255; ++scale) {
      uint8_t scales[2] = {static_cast<uint8_t>(scale), 127};
      weight.scale = TensorView::Contiguous(static_cast<void*>(scales), DType::kF8E8M0, {1, 2});
      for (const int64_t tokens : {int64_t{1}, int64_t{5}, kTokens}) {
        TestTensor y(DType::kF32, {tokens, kRows});
        ASSERT_TRUE(
            fast.one_thread.table.linear(*fast.one_thread.context, {ones.view().Rows(0, tokens), &weight, y})
                .ok());
        const std::vector<double> got = y.Values();
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t row = i % kRows;
          if (row == 127) {
            EXPECT_TRUE(std::isnan(got[i])) << fast.one_thread.name << " scale " << scale;
            continue;
          }
          const double first = std::ldexp(DecodeE4m3(static_cast<uint8_t>(row)), scale - 127);
          const double second = DecodeE4m3(static_cast<uint8_t>(128 + row % 127));
          // Both terms are exact, or too large for any tier.
          EXPECT_EQ(got[i], static_cast<double>(static_cast<float>(first + second)))
              << fast.one_thread.name << " scale " << scale << " row " << row;
        }
      }
    }
  }
}

TEST(PrepareWeightParity, ValuesDoNotChange) {
  Random random(47);
  const std::vector<double> x = random.Normals(64);
  for (const auto& w : EveryFormat(8, 64, random)) {
    for (const ops::Backend* backend : {&Reference(), &Candidates()[0]}) {
      Weight prepared;
      ASSERT_TRUE(backend->table.prepare_weight(*backend->context, {&w->weight, &prepared}).ok());
      EXPECT_EQ(RunLinear(prepared, x, DType::kF32, *backend), RunLinear(w->weight, x)) << w->name;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
