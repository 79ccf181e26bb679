// Half-layers in their order pass, two that changed places are named, and random ones say nothing.
#include "diag/checks/tensors/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/diag/random_matrices.h"

namespace dsv4::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 24;
constexpr int64_t kCols = 256;

class NeighboursTest : public ::testing::Test, protected RandomMatrices {
 protected:
  NeighboursTest() : RandomMatrices(3) {}

  // Each half-layer's matrix has a part of the last one's.
  std::vector<model::LayerWeights> Layers(int count, float kept) {
    std::vector<model::LayerWeights> layers(static_cast<size_t>(count));
    std::vector<float> last(static_cast<size_t>(kRows * kCols));
    for (model::LayerWeights& layer : layers) {
      for (TensorView* matrix : {&layer.hc_attn.fn, &layer.hc_ffn.fn}) {
        for (float& value : last) value = kept * value + Normal();
        *matrix = Tensor(last, {kRows, kCols});
      }
    }
    return layers;
  }
};

TEST_F(NeighboursTest, LayersInTheirOrderAndRandomOnesPass) {
  for (const int count : {0, 3, 4, 8, 30}) {
    for (const float kept : {0.0F, 0.2F, 0.6F, 0.9F})
      EXPECT_THAT(diag::LookForExchangedNeighbours(Layers(count, kept)), IsEmpty()) << count << " " << kept;
  }
}

TEST_F(NeighboursTest, TwoThatChangedPlacesAreNamed) {
  std::vector<model::LayerWeights> layers = Layers(8, 0.6F);
  std::swap(layers[2].hc_attn.fn, layers[5].hc_attn.fn);
  std::vector<diag::Hole> found = diag::LookForExchangedNeighbours(layers);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].layer, 2);
  EXPECT_EQ(found[0].name, "layers.2.hc_attn_fn");
  EXPECT_THAT(found[0].text, HasSubstr("and layers.5.hc_attn_fn are more like"));

  layers = Layers(8, 0.6F);
  std::swap(layers[4].hc_attn.fn, layers[6].hc_ffn.fn);
  found = diag::LookForExchangedNeighbours(layers);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].name, "layers.4.hc_attn_fn");
  EXPECT_THAT(found[0].text, HasSubstr("and layers.6.hc_ffn_fn are more like"));
}

}  // namespace
}  // namespace dsv4::testing
