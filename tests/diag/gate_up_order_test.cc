// Gate against up: chance stays small for any weights, and a swap is told where the gates say anything.
#include "diag/checks/tensors/gate_up_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tensor/tensor.h"

namespace dsv4::testing {
namespace {

constexpr int64_t kRows = 128;
constexpr int64_t kCols = 96;

// Owns what its view shows.
struct Matrix {
  std::vector<float> values = std::vector<float>(static_cast<size_t>(kRows * kCols));

  Weight View() {
    Weight weight;
    weight.rows = kRows;
    weight.cols = kCols;
    weight.data = TensorView::Contiguous(values.data(), DType::kF32, {kRows, kCols});
    return weight;
  }
};

// Rows of noise plus `common` times one direction, which all matrices have in common.
Matrix Rows(std::mt19937& random, float common) {
  std::normal_distribution<float> normal;
  Matrix matrix;
  for (size_t i = 0; i < matrix.values.size(); ++i)
    matrix.values[i] = normal(random) + common * (i % kCols % 3 == 0 ? 1.0F : -0.5F);
  return matrix;
}

// A choice that training cannot prefer: any sign of a row.
void TossSigns(std::mt19937& random, Matrix& matrix) {
  for (size_t row = 0; row < kRows; ++row) {
    if (random() % 2 == 0) continue;
    for (size_t i = 0; i < kCols; ++i) matrix.values[row * kCols + i] *= -1;
  }
}

TEST(CommonDirectionTest, ChanceStaysSmallHoweverTheRowsLie) {
  std::mt19937 random(3);
  for (const float common : {0.0F, 0.3F, 100.0F}) {  // 100: nearly one line, the worst there is.
    double largest = 0;
    for (int i = 0; i < 40; ++i) {
      Matrix up = Rows(random, common);
      TossSigns(random, up);
      largest = std::max(largest, diag::CommonDirection(up.View()));
    }
    EXPECT_LT(largest, common == 0 ? 5 : 12) << common;
  }
}

TEST(CommonDirectionTest, ADirectionShows) {
  std::mt19937 random(4);
  Matrix gate = Rows(random, 0.3F);
  EXPECT_GT(diag::CommonDirection(gate.View()), 24);
  gate.values[5] = std::nanf("");
  EXPECT_EQ(diag::CommonDirection(gate.View()), 0);
  Matrix zero;
  EXPECT_EQ(diag::CommonDirection(zero.View()), 0);
}

// Layers of experts whose gates have a direction, and whose ups have one up to their signs.
class GateUpOrderTest : public ::testing::Test {
 protected:
  void Build(int num_layers, int num_experts, float common) {
    std::mt19937 random(5);
    matrices_.reserve(static_cast<size_t>(num_layers * (num_experts + 1) * 2));
    const auto make = [&] {
      model::ExpertWeights expert;
      matrices_.push_back(Rows(random, common));
      expert.w1 = matrices_.back().View();
      matrices_.push_back(Rows(random, common));
      TossSigns(random, matrices_.back());
      expert.w3 = matrices_.back().View();
      return expert;
    };
    layers_.resize(static_cast<size_t>(num_layers));
    for (model::LayerWeights& layer : layers_) {
      for (int i = 0; i < num_experts; ++i) layer.experts.push_back(make());
      layer.shared_expert = make();
    }
  }

  std::vector<std::string> Swapped() const {
    std::vector<std::string> names;
    for (const diag::GateUp& group : diag::LookAtGateUpOrder(layers_).swapped)
      names.push_back(diag::GateUpName(group));
    return names;
  }

  std::vector<Matrix> matrices_;
  std::vector<model::LayerWeights> layers_;
};

using Names = std::vector<std::string>;

TEST_F(GateUpOrderTest, InOrder) {
  Build(3, 20, 0.3F);
  EXPECT_EQ(Swapped(), Names());
  EXPECT_EQ(diag::LookAtGateUpOrder(layers_).num_in_order, 6);
}

TEST_F(GateUpOrderTest, WithoutADirectionNothingIsSaid) {
  Build(3, 20, 0);
  for (model::LayerWeights& layer : layers_) std::swap(layer.experts[0].w1, layer.experts[0].w3);
  const diag::GateUpOrder order = diag::LookAtGateUpOrder(layers_);
  EXPECT_EQ(order.num_undecided, 6);
  EXPECT_TRUE(order.swapped.empty());
}

TEST_F(GateUpOrderTest, SwapsAreNamed) {
  Build(3, 20, 0.3F);
  std::swap(layers_[2].shared_expert.w1, layers_[2].shared_expert.w3);
  EXPECT_EQ(Swapped(), Names{"layers.2.ffn.shared_experts"});
  for (model::ExpertWeights& expert : layers_[1].experts) std::swap(expert.w1, expert.w3);
  EXPECT_EQ(Swapped(), (Names{"layers.1.ffn.experts", "layers.2.ffn.shared_experts"}));
  std::swap(layers_[0].experts[5].w1, layers_[0].experts[5].w3);  // One of the 16 that are looked at.
  EXPECT_EQ(Swapped(),
            (Names{"layers.0.ffn.experts.5", "layers.1.ffn.experts", "layers.2.ffn.shared_experts"}));
}

TEST(SwappedCompressorsTest, AreNamedAndHealthyOnesPass) {
  std::mt19937 random(6);
  Matrix gate = Rows(random, 0.3F);
  Matrix kv = Rows(random, 0.3F);
  TossSigns(random, kv);
  std::vector<model::LayerWeights> layers(2);
  layers[0].compressor = model::CompressorWeights{.wkv = kv.View(), .wgate = gate.View()};
  layers[1].key_compressor = layers[0].compressor;
  EXPECT_TRUE(diag::LookForSwappedCompressors(layers).empty());
  std::swap(layers[1].key_compressor->wkv, layers[1].key_compressor->wgate);
  const std::vector<diag::Hole> found = diag::LookForSwappedCompressors(layers);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].layer, 1);
  EXPECT_EQ(found[0].name, "layers.1.attn.indexer.compressor");
}

}  // namespace
}  // namespace dsv4::testing
