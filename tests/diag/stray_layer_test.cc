// One layer that does not go along with the others is named; layers that differ among themselves are not.
#include "diag/checks/tensors/stray_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace dsv4::testing {
namespace {

using diag::StrayLayer;
using diag::StrayLayers;
using ::testing::HasSubstr;

constexpr int kLayers = 8;
constexpr int64_t kSize = 64;

// Layers that were trained together: the same channels are large in all of them.
class StrayLayersTest : public ::testing::Test {
 protected:
  StrayLayersTest() {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kSize; ++i) channels_.push_back(std::exp(0.5 * normal(random)));
  }

  std::vector<float> Matrix(int layer, double size = 1) const {
    std::mt19937 random(static_cast<uint32_t>(100 + layer));
    std::normal_distribution<double> normal;
    std::vector<float> values;
    for (int64_t i = 0; i < kSize; ++i) {
      for (int64_t j = 0; j < kSize; ++j)
        values.push_back(
            static_cast<float>(0.02 * size * channels_[static_cast<size_t>(i)] * normal(random)));
    }
    return values;
  }
  static std::vector<float> Transposed(const std::vector<float>& values) {
    std::vector<float> other(values.size());
    for (size_t i = 0; i < kSize; ++i)
      for (size_t j = 0; j < kSize; ++j) other[j * kSize + i] = values[i * kSize + j];
    return other;
  }
  void Add(int layer, const std::vector<float>& values) {
    Weight weight;
    weight.rows = weight.cols = kSize;
    weight.data = TensorView::Contiguous(values.data(), DType::kF32, {kSize, kSize});
    strays_.AddShape(layer, "w", weight);
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * value;
    strays_.AddSize(layer, "w", std::sqrt(sum / static_cast<double>(values.size())), /*is_norm=*/false);
    const std::vector<float> norm = {1, 1.1F + 0.01F * static_cast<float>(layer)};
    strays_.AddNorm(layer, "norm", norm);
  }
  void ExpectOne(int layer, const char* text) {
    const std::vector<StrayLayer> found = strays_.Find();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].layer, layer);
    EXPECT_THAT(found[0].text, HasSubstr(text));
  }

  std::vector<double> channels_;
  StrayLayers strays_;
};

TEST_F(StrayLayersTest, LayersThatGoTogetherPass) {
  for (int layer = 0; layer < kLayers; ++layer) Add(layer, Matrix(layer, 1 + 0.03 * layer));
  EXPECT_TRUE(strays_.Find().empty());
}

TEST_F(StrayLayersTest, ASizeThatStandsOutIsNamed) {
  for (int layer = 0; layer < kLayers; ++layer) Add(layer, Matrix(layer, layer == 3 ? 2 : 1 + 0.01 * layer));
  ExpectOne(3, "times as large as in the layers beside it");
}

TEST_F(StrayLayersTest, AtTheEndsOnlyAPowerOfTwoStandsOut) {
  for (int layer = 0; layer < kLayers; ++layer) Add(layer, Matrix(layer, layer == 0 ? 0.5 : 1));
  ExpectOne(0, "times as small");
  strays_ = StrayLayers();
  for (int layer = 0; layer < kLayers; ++layer) Add(layer, Matrix(layer, layer == 0 ? 2.8 : 1));
  EXPECT_TRUE(strays_.Find().empty());
}

TEST_F(StrayLayersTest, SizesThatVarySayNothing) {
  for (int layer = 0; layer < kLayers; ++layer)
    Add(layer, Matrix(layer, layer == 3 ? 2 : layer % 2 == 0 ? 1 : 1.3));
  EXPECT_TRUE(strays_.Find().empty());
}

TEST_F(StrayLayersTest, ATransposedMatrixIsNamed) {
  for (int layer = 0; layer < kLayers; ++layer)
    Add(layer, layer == 4 ? Transposed(Matrix(layer)) : Matrix(layer));
  ExpectOne(4, "is it transposed");
  strays_ = StrayLayers();
  for (int layer = 0; layer < kLayers; ++layer)  // Half of them: then there is no order to go by.
    Add(layer, layer % 2 == 0 ? Transposed(Matrix(layer)) : Matrix(layer));
  EXPECT_TRUE(strays_.Find().empty());
}

TEST_F(StrayLayersTest, SignsAndConstantNorms) {
  const std::vector<float> ones(16, 1.0F);
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<float> values(16);
    std::iota(values.begin(), values.end(), 20.0F);
    strays_.AddNorm(layer, "norm", layer == 2 ? ones : values);
    for (float& value : values) value *= layer == 5 ? -0.01F : 0.01F;
    strays_.AddBias(layer, "bias", values);
  }
  const std::vector<StrayLayer> found = strays_.Find();
  ASSERT_EQ(found.size(), 3U);  // The norm of ones is of another size, too.
  EXPECT_EQ(found[0].layer, 2);
  EXPECT_THAT(found[1].text, HasSubstr("is constant"));
  EXPECT_EQ(found[1].layer, 2);
  EXPECT_THAT(found[2].text, HasSubstr("other sign"));
  EXPECT_EQ(found[2].layer, 5);
}

TEST_F(StrayLayersTest, NumbersThatAreTheSameInAllLayers) {
  enum class Fault : uint8_t { kNone, kNegated, kLarge, kConstant };
  for (const Fault fault : {Fault::kNone, Fault::kNegated, Fault::kLarge, Fault::kConstant}) {
    strays_ = StrayLayers();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<float> values;
      for (int i = 0; i < 24; ++i) {
        const float value = (i % 5 == 0 ? 0.0F : -3.0F) + 0.2F * normal(random);
        const bool damaged = layer == 4 && fault != Fault::kNone;
        values.push_back(!damaged                   ? value
                         : fault == Fault::kNegated ? -value
                         : fault == Fault::kLarge   ? 8 * value
                                                    : 1.0F);
      }
      strays_.AddProfile(layer, "base", values);
      strays_.AddVector(layer, "base", values);
      const std::vector<float> norm = {1, 1.1F + 0.01F * static_cast<float>(layer)};
      strays_.AddNorm(layer, "norm", norm);
    }
    const std::vector<StrayLayer> found = strays_.Find();
    ASSERT_EQ(found.empty(), fault == Fault::kNone) << static_cast<int>(fault);
    for (const StrayLayer& stray : found) EXPECT_EQ(stray.layer, 4) << stray.text;
  }
}

TEST_F(StrayLayersTest, OfRandomWeightsNothingIsSaid) {
  const std::vector<float> ones(16, 1.0F);
  for (int layer = 0; layer < kLayers; ++layer) {
    strays_.AddNorm(layer, "norm", ones);
    strays_.AddSize(layer, "w", layer == 3 ? 4 : 1, /*is_norm=*/false);
  }
  EXPECT_FALSE(strays_.trained());
  EXPECT_TRUE(strays_.Find().empty());
}

}  // namespace
}  // namespace dsv4::testing
