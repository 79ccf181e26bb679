// Words, parts and stages: which rank has what.
#include "model/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace dsv4::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParsePlacement, KnowsItsWords) {
  const auto parsed = [](std::string_view text, int ranks) { return ParsePlacement(text, ranks).value(); };
  EXPECT_EQ(parsed("pipeline", 3), (Placement{.num_stages = 3, .num_shards = 1}));
  EXPECT_EQ(parsed("expert", 3), (Placement{.num_stages = 1, .num_shards = 3}));
  EXPECT_EQ(parsed("auto", 4), parsed("expert", 4));
  EXPECT_EQ(parsed("tensor", 2), (Placement{1, 2, ExpertPlacement::kByColumns, false}));
  EXPECT_EQ(parsed("tensor,entries", 2), (Placement{1, 2, ExpertPlacement::kByColumns, true}));
  EXPECT_EQ(parsed("expert,entries", 2), (Placement{1, 2, ExpertPlacement::kById, true}));
  EXPECT_EQ(parsed("tensor", 1), (Placement{1, 1, ExpertPlacement::kByColumns, false}));
  EXPECT_EQ(parsed("pipeline=2,tensor", 6), (Placement{2, 3, ExpertPlacement::kByColumns, false}));
  EXPECT_EQ(parsed("expert,pipeline=2", 4), (Placement{2, 2, ExpertPlacement::kById}));
  for (const char* text :
       {"pipeline", "expert", "expert,entries", "tensor", "tensor,entries", "pipeline=2,expert",
        "pipeline=2,expert,entries", "pipeline=2,tensor", "pipeline=2,tensor,entries"}) {
    EXPECT_EQ(ToString(parsed(text, 4)), text);
  }
}

TEST(ParsePlacement, RefusesWhatDoesNotFit) {
  const auto refused = [](std::string_view text, int ranks) {
    const auto parsed = ParsePlacement(text, ranks);
    return parsed ? std::string("accepted") : parsed.error().message();
  };
  EXPECT_THAT(refused("pipeline=2,expert", 3), HasSubstr("3 ranks do not fill 2 stages"));
  EXPECT_THAT(refused("pipeline=2", 4), HasSubstr("does not say how a stage is divided"));
  EXPECT_THAT(refused("pipeline=0", 4), HasSubstr("stages are no number"));
  EXPECT_THAT(refused("pipeline=x", 4), HasSubstr("stages are no number"));
  EXPECT_THAT(refused("expert,tensor", 4), HasSubstr("divides the experts twice"));
  EXPECT_THAT(refused("pipeline=2,entries", 4), HasSubstr("entries go with expert or tensor only"));
  EXPECT_THAT(refused("expert,entries,entries", 4), HasSubstr("divides the entries twice"));
  EXPECT_THAT(refused("pipeline,pipeline=2", 4), HasSubstr("two pipelines"));
  EXPECT_THAT(refused("rows", 4), HasSubstr("got 'rows', which has an unknown word; want auto"));
  EXPECT_THAT(refused("", 4), HasSubstr("is empty"));
}

TEST(PartOf, CoversEverythingEvenly) {
  for (const int64_t count : {0, 1, 7, 16, 100, 129}) {
    for (const int64_t unit : {1, 16, 128}) {
      for (const int parts : {1, 2, 3, 4}) {
        int64_t end = 0;
        int64_t longest = 0;
        int64_t shortest = count;
        for (int part = 0; part < parts; ++part) {
          const Range range = PartOf(count, unit, part, parts);
          EXPECT_EQ(range.begin, end);
          EXPECT_TRUE(range.begin % unit == 0 || range.begin == count);
          longest = std::max(longest, range.size());
          shortest = std::min(shortest, range.size());
          end = range.end;
        }
        EXPECT_EQ(end, count);
        EXPECT_LT(longest - shortest, 2 * unit);
      }
    }
  }
}

TEST(BalanceLayers, FindsTheLeastDearestStage) {
  EXPECT_THAT(BalanceLayers(std::vector<int64_t>{1, 1, 1, 1}, 0, 2), ElementsAre(Range{0, 2}, Range{2, 4}));
  // The first stage has more to carry besides.
  EXPECT_THAT(BalanceLayers(std::vector<int64_t>{1, 1, 1, 1}, 2, 2), ElementsAre(Range{0, 1}, Range{1, 4}));
  // Never without a layer.
  EXPECT_THAT(BalanceLayers(std::vector<int64_t>{1, 1, 1}, 100, 3),
              ElementsAre(Range{0, 1}, Range{1, 2}, Range{2, 3}));
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> costs(6);
    for (int64_t& cost : costs) cost = 1 + random() % 9;
    const auto extra = static_cast<int64_t>(random() % 9);
    const auto cost = [&](int64_t begin, int64_t end) {
      return std::accumulate(costs.begin() + begin, costs.begin() + end, begin == 0 ? extra : int64_t{0});
    };
    int64_t best = 1000;
    for (int64_t a = 1; a < 5; ++a) {
      for (int64_t b = a + 1; b < 6; ++b)
        best = std::min(best, std::max({cost(0, a), cost(a, b), cost(b, 6)}));
    }
    int64_t dearest = 0;
    for (const Range& range : BalanceLayers(costs, extra, 3))
      dearest = std::max(dearest, cost(range.begin, range.end));
    EXPECT_EQ(dearest, best);
  }
}

}  // namespace
}  // namespace dsv4::model
