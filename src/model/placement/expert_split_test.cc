// Tests of expert splits: numbers, shares, slots, refusals, and order.
#include "model/placement/expert_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::model {
namespace {

using ops::WeightTier;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertSplit, ReadsNumbersAndShares) {
  EXPECT_EQ(*ParseExpertSplit("host=192", 256, 4), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("resident=64,host=192", 256, 4), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("host=75%", 256, 4), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("host=100%", 256, 4), (ExpertSplit{0, 256}));
  EXPECT_EQ(*ParseExpertSplit("host=0", 256, 4), (ExpertSplit{256, 0}));
  EXPECT_EQ(*ParseExpertSplit("resident=256", 256, 4), (ExpertSplit{256, 0}));
  // A third of ten.
  EXPECT_EQ(*ParseExpertSplit("host=33%", 10, 4), (ExpertSplit{7, 3}));
}

TEST(ExpertSplit, ReadsCachedOnesAndRoomForThem) {
  EXPECT_EQ(*ParseExpertSplit("cached=192", 256, 10), (ExpertSplit{.resident = 64, .cached = 192}));
  EXPECT_EQ(*ParseExpertSplit("cached=50%,host=25%", 256, 10),
            (ExpertSplit{.resident = 64, .host = 64, .cached = 128}));
  EXPECT_EQ(*ParseExpertSplit("resident=0,cached=256,slots=1000", 256, 10),
            (ExpertSplit{.cached = 256, .slots = 1000}));
  EXPECT_EQ(*ParseExpertSplit("slots=50%,cached=100", 256, 10),
            (ExpertSplit{.resident = 156, .cached = 100, .slots = 500}));
  EXPECT_FALSE((ExpertSplit{.resident = 255, .cached = 1}).all_resident());
}

TEST(ExpertSplit, RefusesRoomForLessThanALayer) {
  for (const char* text :
       {"slots=10", "host=4,slots=10", "cached=16,slots=15", "cached=16,slots=101%",
        "cached=16,slots=", "cached=16,slots=x", "cached=16,slots=20,slots=20", "cached=16,slots=5%"}) {
    const auto split = ParseExpertSplit(text, 256, 10);
    ASSERT_FALSE(split.has_value()) << text;
    EXPECT_EQ(split.error().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(ParseExpertSplit("cached=16,slots=15", 256, 10).error().message(),
              HasSubstr("want 16 at least"));
  EXPECT_EQ(ParseExpertSplit("cached=16,slots=161", 256, 10)->slots, 160);
}

TEST(ExpertSplit, RefusesOtherWordsAndSums) {
  for (const char* text :
       {"", "host", "host=", "host=x", "host=-1", "host=257", "host=101%", "disk=3", "host=1,",
        "host=1,host=2", "host=1 ", "resident=64", "cached=200,host=57", "cached=257"}) {
    const auto split = ParseExpertSplit(text, 256, 4);
    ASSERT_FALSE(split.has_value()) << text;
    EXPECT_EQ(split.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(split.error().message(), HasSubstr("a layer's 256 experts")) << text;
  }
  EXPECT_THAT(ParseExpertSplit("resident=64,host=191", 256, 4).error().message(),
              HasSubstr("255 experts in all"));
}

TEST(ExpertSplit, IsWrittenAsItIsRead) {
  for (const ExpertSplit& split :
       {ExpertSplit{64, 192}, ExpertSplit{.resident = 64, .cached = 192}, ExpertSplit{256, 0},
        ExpertSplit{.resident = 1, .host = 2, .cached = 253, .slots = 300}}) {
    EXPECT_EQ(*ParseExpertSplit(ToString(split), 256, 4), split) << ToString(split);
  }
}

TEST(ExpertSplit, TheFirstOfTheOrderAreResident) {
  EXPECT_THAT(TiersOf({1, 2}, {}), ElementsAre(WeightTier::kResident, WeightTier::kHost, WeightTier::kHost));
  EXPECT_THAT(TiersOf({1, 2}, {2, 0, 1}),
              ElementsAre(WeightTier::kHost, WeightTier::kHost, WeightTier::kResident));
  EXPECT_THAT(TiersOf({.resident = 1, .host = 1, .cached = 1}, {2, 0, 1}),
              ElementsAre(WeightTier::kCached, WeightTier::kHost, WeightTier::kResident));
}

}  // namespace
}  // namespace dsv4::model
