// Scores of keys in codes: those of the values that the codes stand for, bit for bit, and what the kernels
// refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "backend/cpu/isa.h"
#include "formats/cache_rows.h"
#include "formats/number_formats.h"

namespace dsv4::backend::cpu {
namespace {

constexpr auto kWidth = static_cast<size_t>(kFp4KeyWidth);
constexpr auto kGroup = static_cast<size_t>(kFp4KeyGroup);

// Rows on the grid, each group with a power of two between 2^least and 2^most.
class Rows {
 public:
  Rows(size_t num_rows, int least, int most, uint32_t seed) : num_rows_(num_rows) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < num_rows * kWidth / kGroup; ++i) {
      const auto exponent = static_cast<int>(random() % static_cast<uint32_t>(most - least + 1)) + least;
      for (size_t k = 0; k < kGroup; ++k) {
        // The first code is the largest, so that the group's power is this one.
        const auto code = static_cast<uint8_t>(k == 0 ? 7 : random() % 16);
        values_.push_back(std::ldexp(FloatFromE2m1(code), exponent));
      }
    }
  }

  size_t num_rows() const { return num_rows_; }
  float& value(size_t row, size_t column) { return values_[row * kWidth + column]; }
  float value(size_t row, size_t column) const { return values_[row * kWidth + column]; }

  std::vector<uint16_t> AsBf16() const {
    std::vector<uint16_t> bits;
    for (const float value : values_) bits.push_back(Bf16FromFloat(value));
    return bits;
  }
  std::vector<std::vector<uint8_t>> AsCodes() const {
    const CacheFormat format = CacheFormat::Fp4(kFp4KeyWidth, kFp4KeyGroup);
    std::vector<std::vector<uint8_t>> rows;
    for (size_t r = 0; r < num_rows_; ++r) {
      rows.emplace_back(static_cast<size_t>(format.RowBytes(kFp4KeyWidth)));
      const Status packed = PackRow(format, std::span(values_).subspan(r * kWidth, kWidth),
                                    reinterpret_cast<std::byte*>(rows.back().data()));
      EXPECT_TRUE(packed.ok()) << packed.ToString();
    }
    return rows;
  }

 private:
  size_t num_rows_;
  std::vector<float> values_;
};

float Bf16(float value) { return FloatFromBf16(Bf16FromFloat(value)); }

std::vector<float> Want(const Rows& queries, const std::vector<float>& weights, const Rows& keys) {
  std::vector<float> scores;
  for (size_t j = 0; j < keys.num_rows(); ++j) {
    double sum = 0;
    for (size_t h = 0; h < queries.num_rows(); ++h) {
      double dot = 0;
      for (size_t k = 0; k < kWidth; ++k)
        dot += static_cast<double>(queries.value(h, k)) * static_cast<double>(keys.value(j, k));
      sum += static_cast<double>(Bf16(std::max(0.0F, Bf16(static_cast<float>(dot))) * weights[h]));
    }
    scores.push_back(Bf16(static_cast<float>(sum)));
  }
  return scores;
}

std::vector<float> Weights(size_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> weights;
  for (size_t i = 0; i < count; ++i) weights.push_back(Bf16(normal(random)));
  return weights;
}

struct Packed {
  bool queries = false;
  bool keys = false;
  std::vector<float> scores;
};
Packed ScoreWith(const Fp4KeyKernels& kernels, const Rows& queries, const std::vector<float>& weights,
                 const Rows& keys) {
  Packed packed;
  const auto num_heads = static_cast<int64_t>(queries.num_rows());
  const std::vector<uint16_t> rows = queries.AsBf16();
  std::vector<uint8_t> query(static_cast<size_t>(Fp4KeyKernels::QueryBytes(num_heads)), 0xAB);
  packed.queries = kernels.pack_query(reinterpret_cast<const uint8_t*>(rows.data()), weights.data(),
                                      num_heads, query.data());
  const std::vector<std::vector<uint8_t>> codes = keys.AsCodes();
  std::vector<const uint8_t*> pointers;
  for (const std::vector<uint8_t>& row : codes) pointers.push_back(row.data());
  std::vector<uint8_t> block(static_cast<size_t>(kFp4KeyBlockBytes), 0xCD);
  packed.keys = kernels.pack_keys(pointers.data(), static_cast<int64_t>(pointers.size()), block.data());
  if (packed.queries && packed.keys) {
    std::vector<float> scores(static_cast<size_t>(kFp4Keys));
    kernels.score(query.data(), block.data(), num_heads, scores.data());
    packed.scores.assign(scores.begin(), scores.begin() + static_cast<ptrdiff_t>(keys.num_rows()));
  }
  return packed;
}

template <typename Check>
void OnEveryTier(const Check& check) {
  bool any = false;
  for (const Isa isa : AvailableIsas()) {
    const Fp4KeyKernels kernels = KernelsFor(isa).fp4_keys;
    if (kernels.score == nullptr) continue;
    SCOPED_TRACE(std::string(IsaName(isa)));
    any = true;
    check(kernels);
  }
  if (!any) GTEST_SKIP() << "no tier of this machine has dot products of bytes";
}

TEST(Fp4Keys, ScoresAreThoseOfTheValues) {
  OnEveryTier([](const Fp4KeyKernels& kernels) {
    for (const size_t num_heads : {1U, 4U, 8U, 13U, 64U}) {
      for (const size_t num_keys : {1U, 15U, 16U, 17U, 31U, 32U}) {
        for (const int least : {-30, -3, 0, 20}) {
          const Rows queries(num_heads, -3, 0, static_cast<uint32_t>(num_heads));
          const Rows keys(num_keys, least, least + 3, static_cast<uint32_t>(100 + num_keys));
          const std::vector<float> weights = Weights(num_heads);
          const Packed got = ScoreWith(kernels, queries, weights, keys);
          ASSERT_TRUE(got.queries && got.keys) << num_heads << ' ' << num_keys << ' ' << least;
          ASSERT_EQ(got.scores, Want(queries, weights, keys)) << num_heads << ' ' << num_keys << ' ' << least;
        }
      }
    }
  });
}

// Dot products, and products with weights. They lie next to the middle between two numbers of eight bits, on
// it, and on either side of a power of two.
TEST(Fp4Keys, RoundingIsThatOfBf16) {
  OnEveryTier([](const Fp4KeyKernels& kernels) {
    for (const float weight : {1.0F, -1.0F, 1.0078125F, 1.4921875F, 0x1.fep-9F, 0.0F}) {
      Rows queries(1, 0, 0, 1);
      Rows keys(32, 0, 0, 2);
      for (int dot = 0; dot < 2048; dot += 32) {
        for (size_t j = 0; j < 32; ++j) {
          const int wanted = dot + static_cast<int>(j);
          for (size_t k = 0; k < kWidth; ++k) queries.value(0, k) = k < 32 ? 6.0F : k < 64 ? 1.0F : 0.5F;
          for (size_t k = 0; k < kWidth; ++k) keys.value(j, k) = 0.0F;
          int left = wanted;
          for (size_t k = 0; k < 64; ++k) {
            const int unit = k < 32 ? 6 : 1;
            const int value = std::min(left / unit, 6);
            const int taken = value == 5 ? 4 : value;  // 5 is not on the grid.
            keys.value(j, k) = static_cast<float>(taken);
            left -= taken * unit;
          }
        }
        const Packed got = ScoreWith(kernels, queries, {weight}, keys);
        ASSERT_TRUE(got.queries && got.keys);
        ASSERT_EQ(got.scores, Want(queries, {weight}, keys)) << dot << ' ' << weight;
      }
    }
  });
}

// The largest products there are, all of one sign.
TEST(Fp4Keys, SumsHaveRoom) {
  OnEveryTier([](const Fp4KeyKernels& kernels) {
    Rows queries(8, 0, 0, 1);
    Rows keys(32, 0, 0, 2);
    for (size_t k = 0; k < kWidth; ++k) {
      for (size_t h = 0; h < 8; ++h) queries.value(h, k) = h % 2 == 0 ? 6.0F : -127.0F;
      for (size_t j = 0; j < 32; ++j) keys.value(j, k) = j % 2 == 0 ? 48.0F : -48.0F;
    }
    // The smallest group's power is 1, the others' 8.
    for (size_t j = 0; j < 32; ++j) {
      for (size_t k = 0; k < kGroup; ++k) keys.value(j, k) = j % 2 == 0 ? 6.0F : -6.0F;
    }
    const std::vector<float> weights(8, 1.0F);
    const Packed got = ScoreWith(kernels, queries, weights, keys);
    ASSERT_TRUE(got.queries && got.keys);
    EXPECT_EQ(got.scores, Want(queries, weights, keys));
  });
}

TEST(Fp4Keys, WhatIsNoSuchOperandIsRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  OnEveryTier([](const Fp4KeyKernels& kernels) {
    const Rows usual(4, 0, 0, 1);
    const std::vector<float> weights = Weights(4);
    const auto query_with = [&](float value) {
      Rows rows = usual;
      rows.value(3, 127) = value;
      return ScoreWith(kernels, rows, weights, usual).queries;
    };
    EXPECT_TRUE(query_with(0.5F));
    EXPECT_FALSE(query_with(0.03125F)) << "half of a unit";
    EXPECT_FALSE(query_with(kNaN));
    EXPECT_FALSE(query_with(kInfinity));
    EXPECT_FALSE(query_with(-kInfinity));
    EXPECT_FALSE(ScoreWith(kernels, Rows(4, 80, 80, 1), weights, usual).queries);
    EXPECT_FALSE(ScoreWith(kernels, Rows(4, -80, -80, 1), weights, usual).queries);
    const auto weight_with = [&](float weight) {
      std::vector<float> some = weights;
      some[2] = weight;
      return ScoreWith(kernels, usual, some, usual).queries;
    };
    EXPECT_TRUE(weight_with(0.0F));
    EXPECT_TRUE(weight_with(-0x1p-40F));
    for (const float weight : {kNaN, kInfinity, -kInfinity, 0x1p-80F, -0x1p-80F, 0x1p60F}) {
      EXPECT_FALSE(weight_with(weight)) << weight;
    }

    const auto key_with = [&](size_t group, float value) {
      Rows rows(32, 0, 0, 5);
      for (size_t k = 0; k < kGroup; ++k) rows.value(31, group * kGroup + k) = value;
      return ScoreWith(kernels, usual, weights, rows).keys;
    };
    for (size_t group = 0; group < 4; ++group) {
      EXPECT_TRUE(key_with(group, 0.0F)) << group;
      EXPECT_TRUE(key_with(group, 6.0F * 8)) << group;
      EXPECT_TRUE(key_with(group, 6.0F / 8)) << group;
      EXPECT_FALSE(key_with(group, 6.0F * 16)) << group;
      EXPECT_FALSE(key_with(group, 6.0F / 16)) << group;
      EXPECT_FALSE(key_with(group, kNaN)) << group;
    }
    EXPECT_FALSE(ScoreWith(kernels, usual, weights, Rows(1, 60, 60, 1)).keys);
    EXPECT_FALSE(ScoreWith(kernels, usual, weights, Rows(1, -60, -60, 1)).keys);
  });
}

}  // namespace
}  // namespace dsv4::backend::cpu
