// Tests of rotary frequencies against the release's table, plain and YaRN, and small rotary parts.
#include "model/config/rope_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace dsv4::model {
namespace {

RopeConfig CompressRope() {
  return {.theta = 160000,
          .yarn = true,
          .factor = 16,
          .original_max_position_embeddings = 65536,
          .beta_fast = 32,
          .beta_slow = 1};
}

// The check values of model.md 9.
TEST(RopeFrequencies, YarnTableOfTheRelease) {
  constexpr std::array<double, 32> kWant = {
      1.0,          .68765602,    .47287080,    .32517246,    .22360680,    .15376456,    .10573713,
      .072710772,   .05,          .034382801,   .023643540,   .016258623,   .011180340,   .0076882281,
      .0052868563,  .0036355386,  .0022656250,  .0013968013,  8.4968973e-4, 5.0808196e-4, 2.9697778e-4,
      1.6817999e-4, 9.0867843e-5, 4.5444232e-5, 1.9531250e-5, 5.3723127e-6, 3.6943032e-6, 2.5404098e-6,
      1.7469281e-6, 1.2012856e-6, 8.2607130e-7, 5.6805290e-7};
  const std::vector<float> got = RopeFrequencies(CompressRope(), 64);
  ASSERT_EQ(got.size(), kWant.size());
  for (size_t i = 0; i < kWant.size(); ++i) EXPECT_NEAR(got[i], kWant[i], 1e-7 * kWant[i]) << i;
}

TEST(RopeFrequencies, PlainTable) {
  const std::vector<float> got = RopeFrequencies({.theta = 10000}, 64);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_FLOAT_EQ(got[i], static_cast<float>(std::pow(10.0, -double(i) / 8)));
}

TEST(RopeFrequencies, SmallRotaryPartHasItsOwnRamp) {
  // For 32 dims the ramp runs from pair 7 to pair 13.
  const std::vector<float> got = RopeFrequencies(CompressRope(), 32);
  const auto plain = [](int i) { return std::pow(160000.0, -i / 16.0); };
  ASSERT_EQ(got.size(), 16U);
  EXPECT_FLOAT_EQ(got[7], static_cast<float>(plain(7)));
  EXPECT_FLOAT_EQ(got[8], static_cast<float>(plain(8) * (5.0 / 6 + 1.0 / 6 / 16)));
  EXPECT_FLOAT_EQ(got[13], static_cast<float>(plain(13) / 16));
}

TEST(RopeFrequencies, EqualRampEndsAreAStep) {
  RopeConfig config = CompressRope();
  config.original_max_position_embeddings = 1;  // Both ends clamp below pair 0.
  for (const float frequency : RopeFrequencies(config, 8)) EXPECT_TRUE(std::isfinite(frequency));
}

}  // namespace
}  // namespace dsv4::model
