#include "model/placement/expert_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::model {
namespace {

using ops::WeightTier;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertSplit, ReadsNumbersAndShares) {
  EXPECT_EQ(*ParseExpertSplit("host=192", 256), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("resident=64,host=192", 256), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("host=75%", 256), (ExpertSplit{64, 192}));
  EXPECT_EQ(*ParseExpertSplit("host=100%", 256), (ExpertSplit{0, 256}));
  EXPECT_EQ(*ParseExpertSplit("host=0", 256), (ExpertSplit{256, 0}));
  EXPECT_EQ(*ParseExpertSplit("resident=256", 256), (ExpertSplit{256, 0}));
  // A third of ten.
  EXPECT_EQ(*ParseExpertSplit("host=33%", 10), (ExpertSplit{7, 3}));
}

TEST(ExpertSplit, RefusesOtherWordsAndSums) {
  for (const char* text : {"", "host", "host=", "host=x", "host=-1", "host=257", "host=101%", "disk=3",
                           "host=1,", "host=1,host=2", "host=1 ", "resident=64"}) {
    const auto split = ParseExpertSplit(text, 256);
    ASSERT_FALSE(split.has_value()) << text;
    EXPECT_EQ(split.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(split.error().message(), HasSubstr("a layer's 256 experts")) << text;
  }
  EXPECT_THAT(ParseExpertSplit("resident=64,host=191", 256).error().message(),
              HasSubstr("255 experts in all"));
}

TEST(ExpertSplit, IsWrittenAsItIsRead) {
  const ExpertSplit split{64, 192};
  EXPECT_EQ(*ParseExpertSplit(ToString(split), 256), split);
}

TEST(ExpertSplit, TheFirstOfTheOrderAreResident) {
  EXPECT_THAT(TiersOf({1, 2}, {}), ElementsAre(WeightTier::kResident, WeightTier::kHost, WeightTier::kHost));
  EXPECT_THAT(TiersOf({1, 2}, {2, 0, 1}),
              ElementsAre(WeightTier::kHost, WeightTier::kHost, WeightTier::kResident));
}

}  // namespace
}  // namespace dsv4::model
