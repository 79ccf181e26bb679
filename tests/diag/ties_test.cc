// Ties between rows and columns: random weights say nothing, an exchange among tied ones is told, few layers are not judged.
#include "diag/checks/tensors/ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/diag/random_matrices.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kDim = 96;
constexpr int64_t kHidden = 64;

class TiesTest : public ::testing::Test, protected RandomMatrices {
 protected:
  TiesTest() : RandomMatrices(7) {}

  // Sizes of a hidden dimension's elements.
  Sizes HiddenSizes(float spread) { return Draw(Sizes(kHidden, 1.0F), spread); }
  // Rows, or else columns, are the hidden dimension's.
  Weight Matrix(int64_t rows, int64_t cols, const Sizes& sizes) {
    return rows == kHidden ? RandomMatrices::Matrix(rows, cols, sizes, {})
                           : RandomMatrices::Matrix(rows, cols, {}, sizes);
  }
  std::vector<model::LayerWeights> Layers(int count, float spread) {
    std::vector<model::LayerWeights> layers(static_cast<size_t>(count));
    for (model::LayerWeights& layer : layers) {
      Sizes sizes = HiddenSizes(spread);
      layer.wq_a = Matrix(kHidden, kDim, sizes);
      layer.wq_b = Matrix(kDim, kHidden, sizes);
      sizes = HiddenSizes(spread);
      layer.wo_a = Matrix(kHidden, kDim, sizes);
      layer.wo_b = Matrix(kDim, kHidden, sizes);
      for (int i = 0; i < 3; ++i) {
        sizes = HiddenSizes(spread);
        layer.experts.push_back(
            {Matrix(kHidden, kDim, sizes), Matrix(kDim, kHidden, sizes), Matrix(kHidden, kDim, sizes)});
      }
    }
    return layers;
  }
};

TEST_F(TiesTest, HealthyWeightsHaveNoFinding) {
  EXPECT_THAT(diag::LookForBrokenTies(Layers(6, 0.3F)).found, IsEmpty());
  EXPECT_THAT(diag::LookForBrokenTies(Layers(6, 0.0F)).found, IsEmpty());
  EXPECT_THAT(diag::LookForBrokenTies({}).found, IsEmpty());
}

TEST_F(TiesTest, LayersThatChangedPlacesAreNamed) {
  std::vector<model::LayerWeights> layers = Layers(6, 0.3F);
  std::swap(layers[1].wq_b, layers[4].wq_b);
  const diag::Ties ties = diag::LookForBrokenTies(layers);
  ASSERT_EQ(ties.found.size(), 2U);
  EXPECT_EQ(ties.found[0].layer, 1);
  EXPECT_EQ(ties.found[0].name, "layers.1.attn.wq_b");
  EXPECT_THAT(ties.found[0].text, HasSubstr("tied to layer 4's attn.wq_a"));
  EXPECT_EQ(ties.found[1].layer, 4);
}

TEST_F(TiesTest, ALayerOutOfOrderIsToldByItself) {
  std::vector<model::LayerWeights> layers = Layers(6, 0.3F);
  layers[2].wo_a = Matrix(kHidden, kDim, HiddenSizes(0.3F));
  const diag::Ties ties = diag::LookForBrokenTies(layers);
  ASSERT_EQ(ties.found.size(), 1U);
  EXPECT_EQ(ties.found[0].name, "layers.2.attn.wo_b");
  EXPECT_THAT(ties.found[0].text, HasSubstr("is not tied to its attn.wo_a"));
}

TEST_F(TiesTest, ExpertsThatExchangedAMatrixAreNamed) {
  std::vector<model::LayerWeights> layers = Layers(4, 0.3F);
  std::swap(layers[3].experts[0].w2, layers[3].experts[2].w2);
  const diag::Ties ties = diag::LookForBrokenTies(layers);
  ASSERT_EQ(ties.found.size(), 1U);
  EXPECT_EQ(ties.found[0].name, "layers.3.ffn.experts.0.w2");
  EXPECT_THAT(ties.found[0].text, HasSubstr("and layers.3.ffn.experts.2.w2 are tied to each other's"));
}

TEST_F(TiesTest, AMatrixOfAllExpertsOutOfOrderIsNamed) {
  for (const char* name : {"w3", "w2", "w1"}) {
    std::vector<model::LayerWeights> layers = Layers(4, 0.3F);
    for (model::ExpertWeights& expert : layers[2].experts) {
      if (name[1] == '1') expert.w1 = Matrix(kHidden, kDim, HiddenSizes(0.3F));
      if (name[1] == '2') expert.w2 = Matrix(kDim, kHidden, HiddenSizes(0.3F));
      if (name[1] == '3') expert.w3 = Matrix(kHidden, kDim, HiddenSizes(0.3F));
    }
    const diag::Ties ties = diag::LookForBrokenTies(layers);
    ASSERT_EQ(ties.found.size(), 1U) << name;
    EXPECT_EQ(ties.found[0].layer, 2);
    EXPECT_EQ(ties.found[0].name, std::string("layers.2.ffn.experts ") + name);
    EXPECT_THAT(ties.found[0].text, HasSubstr("in another order than the other two"));
  }
}

TEST_F(TiesTest, ThreeLayersAreTooFewToJudgeOne) {
  std::vector<model::LayerWeights> layers = Layers(3, 0.3F);
  std::swap(layers[0].wq_b, layers[1].wq_b);
  EXPECT_THAT(diag::LookForBrokenTies(layers).found, IsEmpty());
}

}  // namespace
}  // namespace dsv4::testing
