// The planner's arithmetic against what ranks really have, and its choice.
#include "model/planning/forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/null_group.h"
#include "model/arch/architecture.h"
#include "model/planning/memory_plan.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

class ForecastTest : public ::testing::Test {
 protected:
  explicit ForecastTest(const char* shape = "tiny") {
    const SyntheticOptions synthetic{
        .shape = shape, .num_layers = {}, .vocab_size = {}, .format = SyntheticFormat::kNvFp4Experts};
    config_ = *ParseModelConfig(*SyntheticConfig(synthetic), "test");
    checkpoint_ = *MakeSyntheticCheckpoint("test", synthetic, 1);
    resolved_ = *ResolveCheckpoint(*checkpoint_, config_);
  }
  Forecast Of(const Placement& placement, int64_t context = 0) const {
    return MakeForecast(resolved_, config_, placement,
                        {.num_layers = config_.num_hidden_layers, .context = context});
  }

  ModelConfig config_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  ResolvedCheckpoint resolved_;
};

// Memory of the fullest rank as ranks that load their part have it; converted vectors differ a little.
TEST_F(ForecastTest, MemoryIsThatOfTheFullestRank) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const Placement& placement : AllPlacements(num_ranks, config_.layers, true)) {
      MemoryPlan fullest;
      for (int rank = 0; rank < num_ranks; ++rank) {
        ModelOptions options;
        options.placement = placement;
        if (num_ranks > 1) options.group = comm::ImagineGroup(rank, num_ranks, placement.num_shards);
        const auto plan = PlanMemory(config_, checkpoint_, options, {.num_sequences = 1, .context = 1});
        ASSERT_TRUE(plan.has_value()) << plan.error().ToString();
        fullest.weights = std::max(fullest.weights, plan->weights);
        fullest.sequence = std::max(fullest.sequence, plan->sequence);
        fullest.per_token = std::max(fullest.per_token, plan->per_token);
      }
      const Forecast forecast = Of(placement);
      const auto weights = static_cast<double>(fullest.weights);
      EXPECT_NEAR(static_cast<double>(forecast.weights), weights, 0.02 * weights) << ToString(placement);
      EXPECT_EQ(forecast.fixed, fullest.sequence) << ToString(placement);
      // In data-parallel attention a rank has its share of the tokens.
      const double places = placement.divide_sequences ? placement.num_shards : 1;
      EXPECT_DOUBLE_EQ(forecast.per_token, fullest.per_token / places) << ToString(placement);
    }
  }
}

// Model whose experts are wide enough to be divided.
class MiniForecastTest : public ForecastTest {
 protected:
  MiniForecastTest() : ForecastTest("mini") {}
};

TEST_F(MiniForecastTest, ReadsLessOnMoreShardsAndAsMuchOnMoreStages) {
  const Forecast one = Of({});
  EXPECT_EQ(one.exchanges, 0);
  EXPECT_LT(Of({1, 2, ExpertPlacement::kByColumns, true}).read, 0.75 * one.read);
  EXPECT_DOUBLE_EQ(Of({.num_stages = 2}).read, one.read);
  EXPECT_EQ(Of({.num_stages = 2}).exchanges, 2);
  // Whole experts: one shard may have most of a token's.
  EXPECT_GT(Of({1, 2, ExpertPlacement::kById, true}).read,
            Of({1, 2, ExpertPlacement::kByColumns, true}).read);
  // Entries divided by four are read by four.
  const auto grown = [&](const Placement& placement) {
    return Of(placement, 3000).read - Of(placement, 1000).read;
  };
  EXPECT_NEAR(grown({1, 4, ExpertPlacement::kById, true}), grown({1, 4, ExpertPlacement::kById, false}) / 4,
              0.02 * grown({}));
}

TEST(AllPlacements, OfSixRanksAndFourLayers) {
  std::vector<std::string> names;
  std::vector<LayerPlan> layers;
  for (int i = 0; i < 4; ++i) layers.push_back(BlockPlan(i, i));
  for (const Placement& placement : AllPlacements(6, layers, true)) names.push_back(ToString(placement));
  EXPECT_THAT(names, ::testing::ElementsAre(
                         "expert", "expert,entries", "expert,sequences", "tensor", "tensor,entries",
                         "pipeline=2,expert", "pipeline=2,expert,entries", "pipeline=2,expert,sequences",
                         "pipeline=2,tensor", "pipeline=2,tensor,entries", "pipeline=3,expert",
                         "pipeline=3,expert,entries", "pipeline=3,expert,sequences", "pipeline=3,tensor",
                         "pipeline=3,tensor,entries"));
}

TEST(AllPlacements, OfAModelWhoseEntriesStayWhole) {
  std::vector<std::string> names;
  for (const Placement& placement : AllPlacements(2, std::vector<LayerPlan>{BlockPlan(0, 0)}, false))
    names.push_back(ToString(placement));
  EXPECT_THAT(names, ::testing::ElementsAre("expert", "expert,sequences", "tensor"));
}

TEST(ChoosePlacement, TheQuickestThatFits) {
  const std::vector<Forecast> forecasts = {
      {.placement = {}, .weights = 60, .fixed = 10, .per_token = 1, .read = 100, .exchanges = 0},
      {.placement = {}, .weights = 30, .fixed = 10, .per_token = 0.5, .read = 50, .exchanges = 10},
      {.placement = {}, .weights = 20, .fixed = 10, .per_token = 0.25, .read = 80, .exchanges = 2}};
  const auto choose = [&](double memory, double wait, int64_t context) {
    return ChoosePlacement(forecasts, {.memory = memory, .bytes_per_second = 1, .seconds_per_exchange = wait},
                           context);
  };
  EXPECT_EQ(choose(1000, 1, 10).index, 1U);   // 60 s, against 100 and 82.
  EXPECT_EQ(choose(1000, 10, 10).index, 0U);  // 100 s, against 150 and 100: the first.
  EXPECT_EQ(choose(44, 10, 10).index, 2U);    // First two: none fits.
  EXPECT_EQ(choose(44, 1, 100).index, 2U);
  EXPECT_THAT(choose(44, 1, 100).why, HasSubstr("none fits"));
  EXPECT_THAT(choose(45, 1, 10).why, HasSubstr("of 3 placements 2 fit"));
  EXPECT_DOUBLE_EQ(forecasts[1].Tokens(50), 20);
  EXPECT_DOUBLE_EQ(forecasts[0].Tokens(50), 0);
}

}  // namespace
}  // namespace dsv4::model
