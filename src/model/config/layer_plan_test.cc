#include "model/config/layer_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/config/cache_geometry.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::model {
namespace {

// Two layers of the window alone, then one of each ratio in turns; the first three are routed by token ids.
ModelConfig Flash() {
  const auto json = SyntheticConfig({.shape = "flash"});
  EXPECT_TRUE(json.has_value());
  auto config = ParseModelConfig(*json, "flash");
  EXPECT_TRUE(config.has_value());
  return *config;
}

TEST(LayerPlan, SaysWhatALayerSeesAndWhoseEntriesItReads) {
  const std::vector<LayerPlan> plans = PlanLayers(Flash(), {0, 4});
  ASSERT_EQ(plans.size(), 4U);
  const AttentionKind kinds[] = {AttentionKind::kWindow, AttentionKind::kWindow,
                                 AttentionKind::kSelectedEntries, AttentionKind::kAllEntries};
  const int64_t ratios[] = {0, 0, 4, 128};
  const int64_t overlaps[] = {1, 1, 2, 1};
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayerPlan& plan = plans[i];
    EXPECT_EQ(plan.number, static_cast<int>(i));
    EXPECT_EQ(plan.attention, kinds[i]) << i;
    EXPECT_EQ(plan.router, i < 3 ? RouterKind::kTokenIds : RouterKind::kScores) << i;
    EXPECT_EQ(plan.ratio, ratios[i]) << i;
    EXPECT_EQ(plan.overlap, overlaps[i]) << i;
    EXPECT_EQ(plan.sees_entries(), i >= 2) << i;
    EXPECT_EQ(plan.owns_entries(), i >= 2) << i;
    EXPECT_EQ(plan.has_indexer(), i == 2) << i;
  }
}

TEST(LayerPlan, StatesOfAStageBeginAtItsFirstLayer) {
  const std::vector<LayerPlan> plans = PlanLayers(Flash(), {3, 7});
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(plans[i].number, static_cast<int>(3 + i));
    EXPECT_EQ(plans[i].state_layer, static_cast<int>(i));
    EXPECT_EQ(plans[i].entries_layer, static_cast<int>(i));
  }
}

// A layer that reads another's entries keeps none, and a draft block behind the trunk has a window of its own.
TEST(LayerPlan, TheCacheHasWhatTheLayersOwn) {
  const ModelConfig config = Flash();
  std::vector<LayerPlan> plans = PlanLayers(config, {0, 5});
  ASSERT_EQ(plans[4].attention, AttentionKind::kSelectedEntries);
  plans[4].entries_layer = 2;
  plans.push_back(
      {.number = static_cast<int>(config.num_hidden_layers), .state_layer = 5, .entries_layer = 5});
  const kv::CacheLayout layout =
      CacheGeometry(config, plans, Numerics::kRelease, CacheRows::kPacked, 512, 64);
  ASSERT_EQ(layout.layers.size(), 6U);
  for (const int layer : {2, 3}) EXPECT_TRUE(layout.HasPages(layer, kv::PageKind::kEntries)) << layer;
  for (const int layer : {0, 1, 4, 5}) EXPECT_FALSE(layout.HasPages(layer, kv::PageKind::kEntries)) << layer;
  EXPECT_TRUE(layout.HasPages(2, kv::PageKind::kIndexerKeys));
  EXPECT_FALSE(layout.HasPages(4, kv::PageKind::kIndexerKeys));
  EXPECT_FALSE(layout.HasRing(4, kv::RingKind::kCompressorValues));
  EXPECT_TRUE(layout.HasRing(5, kv::RingKind::kWindow));
  EXPECT_FALSE(layout.HasRing(5, kv::RingKind::kCompressorValues));
}

}  // namespace
}  // namespace dsv4::model
