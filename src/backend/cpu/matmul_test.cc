// Properties that GEMMs promise beside their values, which tests/parity holds to: the bits of a result depend
// on its row and its token alone.
#include "backend/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/emulated_tiles_testing.h"
#include "backend/cpu/isa.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4::backend::cpu {
namespace {

std::vector<float> Normals(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Tier {
  std::string name;
  Kernels kernels;
};

// Tiers of this machine, and tiles in software.
std::vector<Tier> Tiers() {
  std::vector<Tier> tiers;
  for (const Isa isa : AvailableIsas()) tiers.push_back({std::string(IsaName(isa)), KernelsFor(isa)});
  const std::vector<Isa> available = AvailableIsas();
  if (std::find(available.begin(), available.end(), Isa::kAvx512Bf16) != available.end()) {
    tiers.push_back({"emulated tiles", KernelsFor(Isa::kAvx512Bf16)});
    tiers.back().kernels.bf16 = emulated::kBf16Matmul;
  }
  return tiers;
}

std::vector<float> ProductsOf(const Kernels& kernels, const Weight& weight, int64_t begin, int64_t end,
                              std::span<const uint8_t* const> tokens, DType dtype) {
  ThreadPool threads(1);
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  const MatmulPlan plan = PlanMatmul(kernels, weight, dtype);
  Activations packed(threads, kernels, plan, tokens, dtype, weight.cols);
  Activations::MakeTiles(threads, {&packed, 1});
  std::vector<float> out(static_cast<size_t>(num_tokens * (end - begin)));
  MultiplyRange(plan, weight, begin, end, packed, out.data(), end - begin);
  return out;
}

// Products of rows [begin, end) and all tokens.
std::vector<float> Products(const Kernels& kernels, const Weight& weight, int64_t begin, int64_t end,
                            const std::vector<float>& x, int64_t first_token, int64_t num_tokens) {
  std::vector<const uint8_t*> tokens;
  for (int64_t t = first_token; t < first_token + num_tokens; ++t)
    tokens.push_back(reinterpret_cast<const uint8_t*>(x.data() + t * weight.cols));
  return ProductsOf(kernels, weight, begin, end, tokens, DType::kF32);
}

// All rows'.
std::vector<float> ProductsOfBf16(const Kernels& kernels, const Weight& weight,
                                  const std::vector<uint16_t>& x, int64_t num_tokens) {
  std::vector<const uint8_t*> tokens;
  for (int64_t t = 0; t < num_tokens; ++t)
    tokens.push_back(reinterpret_cast<const uint8_t*>(x.data() + t * weight.cols));
  return ProductsOf(kernels, weight, 0, weight.rows, tokens, DType::kBF16);
}

// Every cut into rows and tokens: 128 columns are half a chunk of 4 bits, of which kernels may take two rows
// at a time, and an odd row is left. 43 tokens are more than meet a tile as it comes from memory.
TEST(Matmul, ResultsDoNotDependOnTheCut) {
  constexpr int64_t kTokens = 43;
  for (const int64_t cols : {int64_t{128}, int64_t{256}, int64_t{384}}) {
    for (const int64_t num_rows : {int64_t{12}, int64_t{37}}) {
      const std::vector<float> values = Normals(num_rows * cols, 3);
      const std::vector<float> x = Normals(kTokens * cols, 5);
      for (QuantizedMatrix& matrix : std::vector<QuantizedMatrix>{
               QuantizeNvFp4(values, num_rows, cols), QuantizeMxFp4(values, num_rows, cols),
               QuantizeFp8Block(values, num_rows, cols, 128, 128),
               QuantizeFp8Block(values, num_rows, cols, 32, 32)}) {
        Weight weight = matrix.View();
        weight.activation =
            matrix.block_cols == 32 ? ActivationQuant::kFp8Columns32 : ActivationQuant::kFp8Block;
        for (const auto& [name, kernels] : Tiers()) {
          const std::vector<float> all = Products(kernels, weight, 0, num_rows, x, 0, kTokens);
          for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33}) {
            const std::vector<float> few = Products(kernels, weight, 0, num_rows, x, 1, tokens);
            for (int64_t i = 0; i < tokens * num_rows; ++i)
              ASSERT_EQ(few[static_cast<size_t>(i)], all[static_cast<size_t>(num_rows + i)]);
          }
          for (int64_t row = 0; row < num_rows; ++row) {
            const std::vector<float> alone = Products(kernels, weight, row, row + 1, x, 0, kTokens);
            for (int64_t t = 0; t < kTokens; ++t)
              ASSERT_EQ(alone[static_cast<size_t>(t)], all[static_cast<size_t>(t * num_rows + row)])
                  << name << ", " << cols << " columns, row " << row << ", token " << t;
          }
        }
      }
    }
  }
}

// Many tokens meet a few columns of the weights after the other, and are cut into several such groups.
TEST(Matmul, ManyTokensHaveTheBitsOfFew) {
  constexpr int64_t kTokens = 300;
  constexpr int64_t kFew = 10;
  constexpr int64_t kRows = 33;
  constexpr int64_t kCols = 640;
  const std::vector<float> values = Normals(kRows * kCols, 29);
  const std::vector<float> x = Normals(kTokens * kCols, 31);
  QuantizedMatrix matrix = QuantizeNvFp4(values, kRows, kCols);
  const Weight weight = matrix.View();
  for (const auto& [name, kernels] : Tiers()) {
    const std::vector<float> all = Products(kernels, weight, 0, kRows, x, 0, kTokens);
    for (int64_t first = 0; first < kTokens; first += kFew) {
      const std::vector<float> few = Products(kernels, weight, 0, kRows, x, first, kFew);
      ASSERT_TRUE(std::equal(few.begin(), few.end(), all.begin() + first * kRows))
          << name << ", tokens from " << first;
    }
  }
}

// Every code of weights and scales, within the rounding of the sums.
TEST(Matmul, SumsOfEveryFormat) {
  constexpr int64_t kRows = 41;
  constexpr int64_t kTokens = 35;
  for (const int64_t cols : {int64_t{64}, int64_t{256}, int64_t{320}, int64_t{1152}}) {
    const std::vector<float> values = Normals(kRows * cols, 13);
    const std::vector<float> x = Normals(kTokens * cols, 17);
    std::vector<QuantizedMatrix> matrices = {
        QuantizeNvFp4(values, kRows, cols), QuantizeMxFp4(values, kRows, cols),
        QuantizeFp8Block(values, kRows, cols, 128, 128), QuantizeFp8Block(values, kRows, cols, 32, 32)};
    std::vector<Weight> weights;
    for (QuantizedMatrix& matrix : matrices) {
      for (size_t i = 0; i < matrix.data.size(); ++i) {
        const auto code = static_cast<uint8_t>(i * 37 + i / 256);
        const bool nan = matrix.format == WeightFormat::kFp8Block && (code & 0x7FU) == 0x7FU;
        matrix.data[i] = nan ? 0 : code;
      }
      // e4m3 scales from the subnormal ones on, e8m0 scales around 1.
      for (size_t i = 0; i < matrix.scale.size(); ++i) {
        if (matrix.format == WeightFormat::kNvFp4) matrix.scale[i] = static_cast<uint8_t>(i * 11 % 127);
        if (matrix.format == WeightFormat::kMxFp4 || matrix.block_cols == 32)
          matrix.scale[i] = static_cast<uint8_t>(117 + i * 7 % 21);
      }
      weights.push_back(matrix.View());
    }
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(Bf16FromFloat(value));
    weights.emplace_back();
    weights.back().rows = kRows;
    weights.back().cols = cols;
    weights.back().data =
        TensorView::Contiguous(static_cast<void*>(bits.data()), DType::kBF16, {kRows, cols});
    for (Weight& weight : weights) {
      weight.activation =
          weight.block_cols == 32 ? ActivationQuant::kFp8Columns32 : ActivationQuant::kFp8Block;
      std::vector<float> rounded = x;
      for (int64_t t = 0; t < kTokens; ++t)
        RoundToFp8Groups(
            std::span(x).subspan(static_cast<size_t>(t * cols), static_cast<size_t>(cols)),
            ActivationGroup(weight.activation),
            std::span(rounded).subspan(static_cast<size_t>(t * cols), static_cast<size_t>(cols)));
      for (const auto& [name, kernels] : Tiers()) {
        const std::vector<float> got = Products(kernels, weight, 0, kRows, x, 0, kTokens);
        std::vector<float> row(static_cast<size_t>(cols));
        for (int64_t r = 0; r < kRows; ++r) {
          DequantizeRow(weight, r, row.data());
          for (int64_t t = 0; t < kTokens; ++t) {
            double want = 0;
            double magnitude = 0;
            for (int64_t k = 0; k < cols; ++k) {
              const double product = static_cast<double>(row[static_cast<size_t>(k)]) *
                                     static_cast<double>(rounded[static_cast<size_t>(t * cols + k)]);
              want += product;
              magnitude += std::fabs(product);
            }
            const auto value = static_cast<double>(got[static_cast<size_t>(t * kRows + r)]);
            ASSERT_LE(std::fabs(value - want), 64 * 0x1p-24 * magnitude)
                << name << ", format " << static_cast<int>(weight.format) << ", " << cols << " columns, row "
                << r << ", token " << t << ": " << value << ", want " << want;
          }
        }
      }
    }
  }
}

// Scales that bf16 products cannot carry in front, beside ordinary ones. The largest leaves every weight a
// number in fp32. Zero and NaN codes are among them.
TEST(Matmul, FineScalesOfAnySizeAndEveryCode) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kTokens = 18;
  constexpr int kLargestScale = 246;  // 2^119, times 448.
  for (const int64_t cols : {int64_t{96}, int64_t{512}}) {
    for (const int extreme : {127, 0, kLargestScale}) {
      QuantizedMatrix matrix = QuantizeFp8Block(Normals(kRows * cols, 41), kRows, cols, 32, 32);
      for (size_t i = 0; i < matrix.data.size(); ++i) matrix.data[i] = static_cast<uint8_t>(i * 37 + i / 256);
      for (size_t i = 0; i < matrix.scale.size(); ++i)
        matrix.scale[i] = static_cast<uint8_t>(i == 1 ? extreme : 120 + i % 9);
      const Weight weight = matrix.View();
      std::vector<uint16_t> x;
      const float factor = extreme == kLargestScale ? 0x1p-20F : extreme == 0 ? 0x1p20F : 1.0F;
      for (int64_t i = 0; i < kTokens * cols; ++i)
        x.push_back(Bf16FromFloat(static_cast<float>(i * 7 % 17 - 8) * factor));
      for (const auto& [name, kernels] : Tiers()) {
        const std::vector<float> got = ProductsOfBf16(kernels, weight, x, kTokens);
        // In double: products of the largest weights are no fp32.
        std::vector<double> values(static_cast<size_t>(cols));
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t k = 0; k < cols; ++k) {
            const auto code =
                static_cast<double>(FloatFromE4m3(matrix.data[static_cast<size_t>(row * cols + k)]));
            values[static_cast<size_t>(k)] =
                std::ldexp(code, matrix.scale[static_cast<size_t>(k / 32)] - 127);
          }
          for (int64_t t = 0; t < kTokens; ++t) {
            double want = 0;
            double magnitude = 0;
            for (int64_t k = 0; k < cols; ++k) {
              const double product = values[static_cast<size_t>(k)] *
                                     static_cast<double>(FloatFromBf16(x[static_cast<size_t>(t * cols + k)]));
              want += product;
              magnitude += std::fabs(product);
            }
            const auto value = static_cast<double>(got[static_cast<size_t>(t * kRows + row)]);
            if (magnitude > 1e38) continue;
            if (std::isnan(want)) {
              ASSERT_FALSE(std::isfinite(value))
                  << name << ", row " << row << ": " << value << ", want " << want;
              continue;
            }
            ASSERT_LE(std::fabs(value - want), 64 * 0x1p-24 * magnitude + 0x1p-130)
                << name << ", " << cols << " columns, scale " << extreme << ", row " << row << ", token "
                << t;
          }
        }
      }
    }
  }
}

// Sums of few enough bits that no rounding happens: every scale a block may have, subnormal ones among others
// and alone. Activations times a large or a small power of two give sums times that power.
TEST(Matmul, EveryNvFp4ScaleIsExact) {
  constexpr int64_t kTokens = 9;
  constexpr int64_t kBlock = 16;
  constexpr int kCodes = 127;
  for (const int64_t cols : {int64_t{64}, int64_t{128}, int64_t{640}}) {
    // A row for each code, and one for each subnormal code, and zero, with all of them as neighbours.
    const int64_t num_rows = kCodes + 8;
    QuantizedMatrix matrix = QuantizeNvFp4(Normals(num_rows * cols, 37), num_rows, cols);
    const int64_t blocks = cols / kBlock;
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t i = 0; i < blocks; ++i) {
        matrix.scale[static_cast<size_t>(row * blocks + i)] =
            static_cast<uint8_t>(row < kCodes ? row : (row - kCodes + i) % 8);
      }
    }
    Weight weight = matrix.View();
    weight.global_scale = 1.0F;
    for (const int exponent : {0, 100, -90}) {
      std::vector<uint16_t> x;
      for (int64_t i = 0; i < kTokens * cols; ++i)
        x.push_back(Bf16FromFloat(std::ldexp(static_cast<float>(i * 7 % 17 - 8), exponent)));
      for (const auto& [name, kernels] : Tiers()) {
        const std::vector<float> got = ProductsOfBf16(kernels, weight, x, kTokens);
        for (int64_t row = 0; row < num_rows; ++row) {
          std::vector<float> values(static_cast<size_t>(cols));
          DequantizeRow(weight, row, values.data());
          for (int64_t t = 0; t < kTokens; ++t) {
            double want = 0;
            for (int64_t k = 0; k < cols; ++k)
              want += static_cast<double>(values[static_cast<size_t>(k)]) *
                      static_cast<double>(FloatFromBf16(x[static_cast<size_t>(t * cols + k)]));
            ASSERT_EQ(static_cast<double>(got[static_cast<size_t>(t * num_rows + row)]), want)
                << name << ", " << cols << " columns, row " << row << ", token " << t
                << ", activations times 2^" << exponent;
          }
        }
      }
    }
  }
}

// Tile instructions give what the emulation says, bit for bit.
TEST(Matmul, TilesInSoftwareHaveTheBitsOfTheMachine) {
  const std::vector<Isa> available = AvailableIsas();
  if (std::find(available.begin(), available.end(), Isa::kAmx) == available.end())
    GTEST_SKIP() << "no AMX on this machine";
  constexpr int64_t kRows = 70;
  constexpr int64_t kCols = 1536;
  constexpr int64_t kTokens = 40;
  const std::vector<float> values = Normals(kRows * kCols, 19);
  const std::vector<float> x = Normals(kTokens * kCols, 23);
  Kernels software = KernelsFor(Isa::kAmx);
  software.bf16 = emulated::kBf16Matmul;
  for (QuantizedMatrix& matrix :
       std::vector<QuantizedMatrix>{QuantizeNvFp4(values, kRows, kCols), QuantizeMxFp4(values, kRows, kCols),
                                    QuantizeFp8Block(values, kRows, kCols, 128, 128)}) {
    Weight weight = matrix.View();
    weight.activation = ActivationQuant::kFp8Block;
    for (const int64_t tokens : {int64_t{1}, int64_t{7}, int64_t{20}, kTokens}) {
      EXPECT_EQ(Products(KernelsFor(Isa::kAmx), weight, 0, kRows, x, 0, tokens),
                Products(software, weight, 0, kRows, x, 0, tokens))
          << tokens << " tokens";
    }
  }
}

// bf16 rows shorter than a chunk (the Markov head of models/tiny has 64 columns) have the sums of rows that
// zeros fill up.
TEST(Matmul, ShortRowsAreRowsPaddedWithZeros) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kTokens = 9;
  constexpr int64_t kPadded = 128;
  const auto bf16 = [](const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(Bf16FromFloat(value));
    return bits;
  };
  for (const int64_t cols : {32, 64, 96, 40}) {
    std::vector<float> values = Normals(kRows * kPadded, 7);
    std::vector<float> x = Normals(kTokens * kPadded, 11);
    for (float& value : x) value = FloatFromBf16(Bf16FromFloat(value));
    std::vector<float> short_values;
    std::vector<float> short_x;
    const auto cut = [&](std::vector<float>& padded, std::vector<float>& rest) {
      for (size_t i = 0; i < padded.size(); ++i) {
        if (static_cast<int64_t>(i) % kPadded < cols) {
          rest.push_back(padded[i]);
        } else {
          padded[i] = 0.0F;
        }
      }
    };
    cut(values, short_values);
    cut(x, short_x);
    std::vector<uint16_t> bits = bf16(values);
    std::vector<uint16_t> short_bits = bf16(short_values);
    const auto view = [&](std::vector<uint16_t>& data, int64_t width) {
      Weight weight;
      weight.rows = kRows;
      weight.cols = width;
      weight.data = TensorView::Contiguous(static_cast<void*>(data.data()), DType::kBF16, {kRows, width});
      weight.activation = ActivationQuant::kFp8Block;
      return weight;
    };
    for (const auto& [name, kernels] : Tiers()) {
      for (const int64_t tokens : {1, 3, 4, 9}) {
        EXPECT_EQ(Products(kernels, view(short_bits, cols), 0, kRows, short_x, 0, tokens),
                  Products(kernels, view(bits, kPadded), 0, kRows, x, 0, tokens))
            << name << ", " << cols << " columns, " << tokens << " tokens";
      }
    }
  }
}

// Every bf16 number, NaN and infinities too: in groups of like size, and in a mixed order, where large ones
// leave small ones nothing.
std::vector<uint16_t> AllBf16(bool mixed) {
  std::vector<uint16_t> bits(size_t{1} << 16);
  std::iota(bits.begin(), bits.end(), uint16_t{0});
  std::mt19937 random(13);
  if (mixed) std::shuffle(bits.begin(), bits.end(), random);
  return bits;
}

// Rows of bf16 are packed without a detour over fp32 where a tier can. The bytes are the same: whole packs,
// and rows that end within one.
TEST(Matmul, PackedBf16IsWhatTheSameNumbersInFp32AreInTheKernelsOrder) {
  ThreadPool threads(1);
  for (const int64_t cols : {int64_t{128}, int64_t{256}, int64_t{384}, int64_t{200}}) {
    const std::vector<float> values = Normals(2 * cols, 3);
    std::vector<QuantizedMatrix> matrices = {QuantizeFp8Block(values, 2, cols, 128, 128)};
    if (cols % 16 == 0) matrices.push_back(QuantizeNvFp4(values, 2, cols));
    for (QuantizedMatrix& matrix : matrices) {
      for (const ActivationQuant quant : {ActivationQuant::kFp8Block, ActivationQuant::kNone}) {
        for (const bool mixed : {false, true}) {
          std::vector<uint16_t> bits = AllBf16(mixed);
          bits.resize(bits.size() / static_cast<size_t>(cols) * static_cast<size_t>(cols));
          std::vector<float> wide;
          for (const uint16_t number : bits) wide.push_back(FloatFromBf16(number));
          Weight weight = matrix.View();
          weight.activation = quant;
          for (const Isa isa : AvailableIsas()) {
            const Kernels kernels = KernelsFor(isa);
            const MatmulPlan plan = PlanMatmul(kernels, weight, DType::kBF16);
            std::vector<const uint8_t*> rows;
            std::vector<const uint8_t*> wide_rows;
            for (size_t i = 0; i < bits.size(); i += static_cast<size_t>(cols)) {
              rows.push_back(reinterpret_cast<const uint8_t*>(bits.data() + i));
              wide_rows.push_back(reinterpret_cast<const uint8_t*>(wide.data() + i));
            }
            const Activations packed(threads, kernels, plan, rows, DType::kBF16, cols);
            const Activations of_wide(threads, kernels, plan, wide_rows, DType::kF32, cols);
            const int64_t padded = (cols + kPackColumns - 1) / kPackColumns * kPackColumns;
            const int64_t element = plan.kernels->bf16_activations ? 2 : 4;
            for (int64_t row = 0; row < packed.num_rows(); ++row) {
              const int64_t at = row * packed.stride() * element;
              for (int64_t i = 0; i < padded; ++i) {
                // With a NaN that nothing rounds, fp32 to bf16 sets the first bit.
                uint32_t got = 0;
                uint32_t want = 0;
                std::memcpy(&got, packed.data() + at + i * element, static_cast<size_t>(element));
                std::memcpy(&want, of_wide.data() + at + i * element, static_cast<size_t>(element));
                if (element == 2 && (got & 0x7FFFU) > 0x7F80U) got |= 0x40U;
                ASSERT_EQ(got, want) << IsaName(isa) << ", " << cols << " columns, row " << row << ", " << i;
                if (quant != ActivationQuant::kNone || element != 2) continue;
                const int64_t column = i / kPackColumns * kPackColumns + plan.order()[i % kPackColumns];
                const uint16_t stored =
                    column < cols ? bits[static_cast<size_t>(row * cols + column)] : uint16_t{0};
                ASSERT_EQ(got & ~0x40U, stored & ~0x40U);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::backend::cpu
