// Kernels of hyper-connections: every threshold from both sides.
#include <gtest/gtest.h>

#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

HcPreShape Streams(int64_t num_tokens, int64_t dim = 4096, bool cluster = true) {
  return {.dtype = DType::kBF16,
          .num_tokens = num_tokens,
          .mult = 4,
          .dim = dim,
          .num_rows = 24,
          .streams = AtAddress(4096),
          .fn = AtAddress(8192),
          .u = AtAddress(16384),
          .clusters = cluster ? RoomFor([](int) { return 1; }) : RoomFor([](int) { return 0; })};
}

TEST(ChooseHyperConnection, ByTokensAndWidth) {
  EXPECT_EQ(ChooseHcPre(Streams(8), kH200).kernel, HcPrePath::kCluster);
  EXPECT_EQ(ChooseHcPre(Streams(8, 4096, false), kH200).kernel, HcPrePath::kTokenTiles);
  EXPECT_EQ(ChooseHcPre(Streams(9), kH200).kernel, HcPrePath::kTokenTiles);
  EXPECT_EQ(ChooseHcPre(Streams(256), kH200).kernel, HcPrePath::kTokenTiles);
  EXPECT_EQ(ChooseHcPre(Streams(257), kH200).kernel, HcPrePath::kDotsThenMix);
  EXPECT_EQ(ChooseHcPre(Streams(1, 16384), kH200).kernel, HcPrePath::kDotsThenMix)
      << "neither holds the matrix";
  EXPECT_EQ(ChooseHcPre(Streams(1, 8192), kH200).kernel, HcPrePath::kCluster);
  EXPECT_EQ(ChooseHcPre(Streams(9, 7168), kH200).kernel, HcPrePath::kTokenTiles);
  DeviceLimits small;
  small.shared_bytes = size_t{99} * 1024;
  EXPECT_EQ(ChooseHcPre(Streams(9, 4096), small).kernel, HcPrePath::kDotsThenMix) << "99 KB of shared memory";
  EXPECT_EQ(ChooseHcPre(Streams(1, 4000), kH200).kernel, HcPrePath::kDotsThenMix) << "no runs";
  HcPreShape fp32 = Streams(1);
  fp32.dtype = DType::kF32;
  EXPECT_EQ(ChooseHcPre(fp32, kH200).kernel, HcPrePath::kDotsThenMix);

  EXPECT_EQ(ChooseHcDots(Streams(256), kH200).kernel, HcDotsPath::kRuns);
  EXPECT_EQ(ChooseHcDots(Streams(257), kH200).kernel, HcDotsPath::kManyTokens);
  EXPECT_EQ(ChooseHcDots(Streams(257, 7168), small).kernel, HcDotsPath::kRuns) << "172 KB of the matrix";
  fp32.num_tokens = 257;
  EXPECT_EQ(ChooseHcDots(fp32, kH200).kernel, HcDotsPath::kManyTokens);
  EXPECT_EQ(ChooseHcDots(Streams(257, 4000), kH200).kernel, HcDotsPath::kAny);
  EXPECT_EQ(ChooseHcMix(Streams(1024), kH200).kernel, HcMixPath::kToken);
  EXPECT_EQ(ChooseHcMix(Streams(1025), kH200).kernel, HcMixPath::kManyTokens);
}

TEST(ChooseHyperConnection, PostByStreamsAndPlaces) {
  const auto post = [](int64_t mult) {
    return HcPostShape{.dtype = DType::kBF16,
                       .num_tokens = 1,
                       .mult = mult,
                       .dim = 4096,
                       .y = AtAddress(16),
                       .out = AtAddress(32),
                       .residual = AtAddress(48)};
  };
  EXPECT_EQ(ChooseHcPost(post(4), kH200).kernel, HcPostPath::kOfFour);
  EXPECT_EQ(ChooseHcPost(post(2), kH200).kernel, HcPostPath::kAny);
  HcPostShape crooked = post(4);
  crooked.out = AtAddress(40);
  EXPECT_EQ(ChooseHcPost(crooked, kH200).kernel, HcPostPath::kAny);
}

}  // namespace
}  // namespace dsv4::backend::cuda
