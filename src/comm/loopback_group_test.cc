// Data of ranks that do the same as this one.
#include "comm/loopback_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "comm/collectives.h"

namespace dsv4::comm {
namespace {

using ::testing::ElementsAre;
using Bytes = std::vector<uint8_t>;

std::span<const std::byte> Read(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }
std::span<std::byte> Write(Bytes& bytes) { return std::as_writable_bytes(std::span(bytes)); }

TEST(LoopbackGroup, GathersThisRanksPieces) {
  const auto group = MirrorGroup(3);
  // Two rows; the others' pieces are as long, longer and shorter.
  const std::vector<int64_t> row_bytes{2, 3, 1};
  Bytes all(12, 9);
  ASSERT_TRUE(group->AllGather(Read({1, 2, 3, 4}), 2, row_bytes, Write(all)).ok());
  EXPECT_THAT(all, ElementsAre(1, 2, 1, 2, 0, 1, 3, 4, 3, 4, 0, 3));
  // In place.
  Bytes own{5, 6, 7, 8};
  const std::vector<int64_t> even{2, 2};
  ASSERT_TRUE(MirrorGroup(2)->AllGather(Read(own).first(2), 1, even, Write(own)).ok());
  EXPECT_THAT(own, ElementsAre(5, 6, 5, 6));
}

TEST(LoopbackGroup, GetsFromARankWhatItSendsToIt) {
  const std::vector<int64_t> row_bytes{2, 1};
  Bytes parts(8, 9);
  ASSERT_TRUE(MirrorGroup(2)->AllToAll(Read({1, 2, 3, 4, 5, 6}), 2, row_bytes, Write(parts)).ok());
  EXPECT_THAT(parts, ElementsAre(1, 2, 4, 5, 3, 0, 6, 0));
}

TEST(LoopbackGroup, SumsAreMultiples) {
  const auto group = MirrorGroup(4);
  std::vector<float> values{1.0F, -2.5F};
  ASSERT_TRUE(group->AllReduceSum(values).ok());
  EXPECT_THAT(values, ElementsAre(4.0F, -10.0F));
  std::vector<float> mine(1);
  const std::vector<int64_t> counts{1, 1, 0, 0};
  ASSERT_TRUE(group->ReduceScatterSum(values, counts, mine).ok());
  EXPECT_THAT(mine, ElementsAre(16.0F));
}

TEST(LoopbackGroup, AgreesAndFails) {
  const auto group = MirrorGroup(2);
  EXPECT_TRUE(IsLoopback(*group));
  EXPECT_TRUE(IsLoopback(**group->Split(0)));
  EXPECT_TRUE(Agree(*group, {}).ok());
  EXPECT_FALSE(Agree(*group, Status(StatusCode::kUnavailable, "gone")).ok());
  std::vector<std::byte> data(1);
  EXPECT_EQ(group->Send(data, 1).code(), StatusCode::kUnimplemented);
  group->Fail({StatusCode::kUnavailable, "first"});
  group->Fail({StatusCode::kUnavailable, "second"});
  EXPECT_EQ(group->Check().message(), "first");
  EXPECT_EQ(group->Barrier().message(), "first");
  EXPECT_FALSE(Agree(*group, {}).ok());
}

}  // namespace
}  // namespace dsv4::comm
