// Norms and matrices over layers: exchanges are named with both places, honest and random layers pass.
#include "diag/checks/tensors/norm_ties.h"

#include <fmt/format.h>
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

constexpr int64_t kHidden = 128;
constexpr int64_t kLatents = 96;
constexpr int64_t kHead = 64;
constexpr int64_t kRows = 48;

class NormTiesTest : public ::testing::Test, protected RandomMatrices {
 protected:
  NormTiesTest() : RandomMatrices(11) {}

  std::vector<model::LayerWeights> Layers(int count, float spread) {
    const Sizes before = Draw(Sizes(kHidden, 1.0F), 0.2F);
    const Sizes behind = Draw(Sizes(kHidden, 0.7F), 0.2F);
    std::vector<model::LayerWeights> layers(static_cast<size_t>(count));
    for (model::LayerWeights& layer : layers) {
      const Sizes attention = Draw(before, spread);
      const Sizes experts = Draw(behind, spread);
      const Sizes queries = Draw(Sizes(kLatents, 1.0F), spread);
      const Sizes keys = Draw(Sizes(kHead, 1.2F), spread);
      const Sizes outputs = Draw(Sizes(kLatents, 1.0F), spread);
      Sizes inverse = queries;  // Which way they go is the training's.
      for (float& size : inverse) size = 1 / size;
      layer.attn_norm = Norm(attention);
      layer.ffn_norm = Norm(experts);
      layer.q_norm = Norm(inverse);
      layer.kv_norm = Norm(keys);
      layer.wq_a = Matrix(kLatents, kHidden, queries, attention);
      layer.wq_b = Matrix(2 * kHead, kLatents, keys, queries);
      layer.wkv = Matrix(kHead, kHidden, keys, attention);
      layer.wo_a = Matrix(kLatents, 2 * kHead, outputs, keys);
      layer.wo_b = Matrix(kHidden, kLatents, {}, outputs);
      layer.experts.push_back({Matrix(kRows, kHidden, {}, experts), Matrix(kHidden, kRows, {}, {}),
                               Matrix(kRows, kHidden, {}, experts)});
    }
    return layers;
  }
  static void ExpectExchange(const std::vector<model::LayerWeights>& layers, const std::string& name,
                             const std::string& other) {
    const std::vector<diag::Hole> found = diag::LookForExchangedNorms(layers);
    ASSERT_FALSE(found.empty()) << name;
    EXPECT_EQ(found[0].name, name);
    EXPECT_EQ(found[0].layer, 1);
    EXPECT_THAT(found[0].text, HasSubstr(other));
  }
};

TEST_F(NormTiesTest, HealthyAndRandomLayersPass) {
  for (const int count : {0, 3, 4, 7, 20}) {
    EXPECT_THAT(diag::LookForExchangedNorms(Layers(count, 0.15F)), IsEmpty()) << count;
    EXPECT_THAT(diag::LookForExchangedNorms(Layers(count, 0.0F)), IsEmpty()) << count;
  }
  std::vector<model::LayerWeights> layers = Layers(7, 0.15F);
  for (model::LayerWeights& layer : layers) layer.attn_norm = Norm(Draw(Sizes(kHidden, 1.0F), 0.15F));
  EXPECT_THAT(diag::LookForExchangedNorms(layers), IsEmpty());
}

TEST_F(NormTiesTest, NormsOfTwoLayers) {
  const std::vector<model::LayerWeights> healthy = Layers(7, 0.15F);
  const auto expect = [&](auto model::LayerWeights::*tensor, const char* name, const char* readers) {
    std::vector<model::LayerWeights> layers = healthy;
    std::swap(layers[1].*tensor, layers[4].*tensor);
    ExpectExchange(layers, fmt::format("layers.1.{}", name),
                   fmt::format("and layers.4.{} go along with each other's{}", name, readers));
  };
  expect(&model::LayerWeights::attn_norm, "attn_norm", " attn.wq_a");
  expect(&model::LayerWeights::ffn_norm, "ffn_norm", " experts");
  expect(&model::LayerWeights::q_norm, "attn.q_norm", "");
  expect(&model::LayerWeights::kv_norm, "attn.kv_norm", "");
  expect(&model::LayerWeights::wo_a, "attn.wo_a", " attn.wo_b");
}

TEST_F(NormTiesTest, NormsOfOneLayer) {
  std::vector<model::LayerWeights> layers = Layers(7, 0.05F);
  EXPECT_THAT(diag::LookForExchangedNorms(layers), IsEmpty());
  std::swap(layers[1].attn_norm, layers[1].ffn_norm);
  ExpectExchange(layers, "layers.1.attn_norm", "times as far from all other layers' as from their ffn_norm");
}

TEST_F(NormTiesTest, ANormOutOfOrder) {
  std::vector<model::LayerWeights> layers = Layers(7, 0.15F);
  layers[1].q_norm = Norm(Draw(Sizes(kLatents, 1.0F), 0.15F));
  ExpectExchange(layers, "layers.1.attn.q_norm", "does not go along with its attn.wq_a and attn.wq_b");
}

}  // namespace
}  // namespace dsv4::testing
