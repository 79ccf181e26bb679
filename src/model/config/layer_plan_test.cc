// Plans of layers: what they say, which of them do not fit together, and the cache that they want.
#include "model/config/layer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/arch/architecture.h"
#include "model/config/cache_geometry.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

// Two layers of the window alone, then one of each ratio in turns; the first three are routed by token ids.
ModelConfig Flash() {
  const auto json = SyntheticConfig({.shape = "flash"});
  EXPECT_TRUE(json.has_value());
  auto config = ParseModelConfig(*json, "flash");
  EXPECT_TRUE(config.has_value());
  return *config;
}

// Layer 0 sees the window; 1 makes entries, keys and a choice; 2 uses all three; 3 uses the entries and
// chooses by 1's keys; 4 makes its own of another ratio.
std::vector<LayerPlan> Shared() {
  std::vector<LayerPlan> plans;
  for (int i = 0; i < 5; ++i) plans.push_back(BlockPlan(i, i));
  const auto set = [&](size_t layer, int entries, int keys, int selection, int64_t ratio) {
    plans[layer].entries = entries;
    plans[layer].keys = keys;
    plans[layer].selection = selection;
    plans[layer].ratio = ratio;
    plans[layer].rope = RopeKind::kCompressed;
  };
  set(1, 1, 1, 1, 2);
  set(2, 1, -1, 1, 2);
  set(3, 1, 1, 3, 2);
  set(4, 4, 4, 4, 1);
  return plans;
}

TEST(LayerPlan, SaysWhatALayerSeesAndWhoseEntriesItReads) {
  const std::vector<LayerPlan> plans = PlansOfStage(Flash().layers, {0, 4});
  ASSERT_EQ(plans.size(), 4U);
  const char* const names[] = {"swa", "swa", "csa", "hca"};
  const int64_t ratios[] = {0, 0, 4, 128};
  const int64_t overlaps[] = {1, 1, 2, 1};
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayerPlan& plan = plans[i];
    EXPECT_EQ(plan.number, static_cast<int>(i));
    EXPECT_EQ(AttentionName(plan), names[i]) << i;
    EXPECT_EQ(plan.router, i < 3 ? RouterKind::kTokenIds : RouterKind::kScores) << i;
    EXPECT_EQ(plan.rope, i < 2 ? RopeKind::kPlain : RopeKind::kCompressed) << i;
    EXPECT_EQ(plan.ratio, ratios[i]) << i;
    EXPECT_EQ(plan.overlap, overlaps[i]) << i;
    EXPECT_EQ(plan.sees_entries(), i >= 2) << i;
    EXPECT_EQ(plan.makes_entries(), i >= 2) << i;
    EXPECT_EQ(plan.makes_keys(), i == 2) << i;
    EXPECT_EQ(plan.selects(), i == 2) << i;
  }
  EXPECT_EQ(plans[1].VisibleEntries(700), 0);
  EXPECT_EQ(plans[2].VisibleEntries(2), 0);
  EXPECT_EQ(plans[2].VisibleEntries(3), 1);
}

TEST(LayerPlan, StatesOfAStageBeginAtItsFirstLayer) {
  const std::vector<LayerPlan> plans = PlansOfStage(Flash().layers, {3, 7});
  for (size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(plans[i].number, static_cast<int>(3 + i));
    EXPECT_EQ(plans[i].window, static_cast<int>(i));
    EXPECT_EQ(plans[i].entries, static_cast<int>(i));
  }
}

TEST(LayerPlan, LayersThatShareRowsStayInAStage) {
  const std::vector<LayerPlan> plans = Shared();
  ASSERT_TRUE(CheckPlans(plans, "shared").ok());
  std::vector<bool> may_begin;
  for (int64_t i = 0; i < 5; ++i) may_begin.push_back(MayBeginStage(plans, i));
  EXPECT_EQ(may_begin, (std::vector<bool>{true, true, false, false, true}));
  EXPECT_EQ(MostStages(plans), 3);
  const std::vector<LayerPlan> stage = PlansOfStage(plans, {1, 4});
  EXPECT_EQ(stage[2].entries, 0);
  EXPECT_EQ(stage[2].selection, 2);
  EXPECT_TRUE(stage[2].selects());
  EXPECT_FALSE(stage[2].makes_keys());
  EXPECT_FALSE(stage[1].selects());
  EXPECT_TRUE(stage[1].reads_selection());
}

TEST(LayerPlan, PlansThatDoNotFitTogetherAreRefused) {
  struct Case {
    std::function<void(std::vector<LayerPlan>&)> edit;
    std::string error;
  };
  const std::vector<Case> cases = {
      {[](auto& p) { p[2].entries = 3; },
       "layer 2: reads the entries of layer 3, wanted those of itself or of an earlier layer"},
      {[](auto& p) { p[2].entries = 0; }, "layer 2: reads the entries of layer 0, which makes none"},
      {[](auto& p) { p[4].entries = 2; }, "layer 4: reads the entries of layer 2, which makes none"},
      {[](auto& p) { p[2].ratio = 4; }, "whose ratio is 2, wanted its own ratio 4"},
      {[](auto& p) { p[2].ratio = 0; }, "wanted entries exactly where the ratio is not 0"},
      {[](auto& p) { p[0].selection = 0; }, "wanted entries exactly where the ratio is not 0"},
      {[](auto& p) { p[2].selection = 0; }, "layer 2: reads the selection of layer 0, which makes none"},
      {[](auto& p) { p[4].ratio = 2, p[4].entries = 1, p[4].keys = -1, p[4].selection = 1; },
       "layer 4: uses the choice of layer 1, wanted that of layer 3, the last one to choose"},
      {[](auto& p) { p[3].keys = -1; }, "layer 3: chooses entries without keys"},
      {[](auto& p) { p[3].keys = 2; }, "layer 3: reads the keys of layer 2, which makes none"},
      {[](auto& p) { p[4].ratio = 2, p[4].keys = 1; }, "scores keys of layer 1 for entries of layer 4"},
      {[](auto& p) { p[4].ratio = 2, p[4].keys = -1, p[4].selection = 3; },
       "uses the choice of layer 3, which reads other entries"},
  };
  for (const Case& test : cases) {
    std::vector<LayerPlan> plans = Shared();
    test.edit(plans);
    const Status status = CheckPlans(plans, "config.json");
    EXPECT_THAT(status.message(), HasSubstr(test.error));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << test.error;
  }
}

// A layer that reads another's entries keeps none, and a draft block behind the trunk has a window of its
// own.
TEST(LayerPlan, TheCacheHasWhatTheLayersOwn) {
  const ModelConfig config = Flash();
  std::vector<LayerPlan> plans = Shared();
  plans.push_back(BlockPlan(static_cast<int>(config.num_hidden_layers), 5));
  const kv::CacheLayout layout =
      CacheGeometry(config, plans, Numerics::kRelease, CacheRows::kPacked, 512, 64);
  ASSERT_EQ(layout.layers.size(), 6U);
  for (const int layer : {1, 4}) {
    EXPECT_TRUE(layout.HasPages(layer, kv::PageKind::kEntries)) << layer;
    EXPECT_TRUE(layout.HasPages(layer, kv::PageKind::kIndexerKeys)) << layer;
  }
  for (const int layer : {0, 2, 3, 5}) {
    EXPECT_FALSE(layout.HasPages(layer, kv::PageKind::kEntries)) << layer;
    EXPECT_FALSE(layout.HasPages(layer, kv::PageKind::kIndexerKeys)) << layer;
    EXPECT_FALSE(layout.HasRing(layer, kv::RingKind::kCompressorValues)) << layer;
    EXPECT_TRUE(layout.HasRing(layer, kv::RingKind::kWindow)) << layer;
  }
}

}  // namespace
}  // namespace dsv4::model
