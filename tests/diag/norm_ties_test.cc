// Norms and matrices over layers: exchanges are named with both places, honest and random layers pass.
#include "diag/checks/tensors/norm_ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

#include "tensor/tensor.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kHidden = 128;
constexpr int64_t kLatents = 96;
constexpr int64_t kHead = 64;
constexpr int64_t kRows = 48;

class NormTiesTest : public ::testing::Test {
 protected:
  using Sizes = std::vector<float>;

  // A part that all layers have in common, and one of each layer's own.
  Sizes Draw(const Sizes& common, float spread) {
    Sizes sizes = common;
    for (float& size : sizes) size *= std::exp(spread * normal_(random_));
    return sizes;
  }
  TensorView Norm(const Sizes& gains) {
    const Sizes& owned = owned_.emplace_back(gains);
    return TensorView::Contiguous(owned.data(), DType::kF32, {static_cast<int64_t>(owned.size())});
  }
  // Rows and columns of these sizes, or of any where there are none. Sizes of one head repeat.
  Weight Matrix(int64_t rows, int64_t cols, const Sizes& by_row, const Sizes& by_column) {
    Sizes& values = owned_.emplace_back(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / static_cast<size_t>(cols);
      const size_t column = i % static_cast<size_t>(cols);
      values[i] = normal_(random_) * (by_row.empty() ? 1 : by_row[row % by_row.size()]) *
                  (by_column.empty() ? 1 : by_column[column % by_column.size()]);
    }
    Weight weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.data = TensorView::Contiguous(values.data(), DType::kF32, {rows, cols});
    return weight;
  }
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
  static void ExpectExchange(const std::vector<model::LayerWeights>& layers, const char* name,
                             const char* other) {
    const std::vector<diag::Hole> found = diag::LookForExchangedNorms(layers);
    ASSERT_FALSE(found.empty()) << name;
    EXPECT_EQ(found[0].name, name);
    EXPECT_EQ(found[0].layer, 1);
    EXPECT_THAT(found[0].text, HasSubstr(other));
  }

  std::mt19937 random_{11};
  std::normal_distribution<float> normal_;
  std::deque<Sizes> owned_;
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
  std::vector<model::LayerWeights> layers = healthy;
  std::swap(layers[1].attn_norm, layers[4].attn_norm);
  ExpectExchange(layers, "layers.1.attn_norm", "and layers.4.attn_norm go along with each other's attn.wq_a");
  layers = healthy;
  std::swap(layers[1].ffn_norm, layers[4].ffn_norm);
  ExpectExchange(layers, "layers.1.ffn_norm", "and layers.4.ffn_norm go along with each other's experts");
  layers = healthy;
  std::swap(layers[1].q_norm, layers[4].q_norm);
  ExpectExchange(layers, "layers.1.attn.q_norm", "and layers.4.attn.q_norm go along with each other's");
  layers = healthy;
  std::swap(layers[1].kv_norm, layers[4].kv_norm);
  ExpectExchange(layers, "layers.1.attn.kv_norm", "and layers.4.attn.kv_norm go along with each other's");
  layers = healthy;
  std::swap(layers[1].wo_a, layers[4].wo_a);
  ExpectExchange(layers, "layers.1.attn.wo_a", "and layers.4.attn.wo_a go along with each other's attn.wo_b");
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
