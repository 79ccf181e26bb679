// Ranks find each other through environment variables and a port; what does not fit is said on both sides.
#include "comm/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

namespace dsv4::comm {
namespace {

using ::testing::HasSubstr;
using Joined = Result<std::unique_ptr<Communicator>>;

class EnvironmentTest : public ::testing::Test {
 protected:
  EnvironmentTest() { Clear(); }
  ~EnvironmentTest() override { Clear(); }
  static void Clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
      ::unsetenv(name);
  }
  static void Set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static void ExpectRefused(const char* text) {
    const auto environment = ReadRankEnvironment();
    ASSERT_FALSE(environment.has_value()) << text;
    EXPECT_EQ(environment.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(environment.error().message(), HasSubstr(text));
  }
};

TEST_F(EnvironmentTest, SaysWhoIsWho) {
  EXPECT_EQ(ReadRankEnvironment()->has_value(), false);
  Set("RANK", "2");
  Set("WORLD_SIZE", "4");
  Set("MASTER_PORT", "29500");
  auto environment = ReadRankEnvironment();
  ASSERT_TRUE(environment.has_value() && environment->has_value());
  EXPECT_EQ((*environment)->rank, 2);
  EXPECT_EQ((*environment)->size, 4);
  EXPECT_EQ((*environment)->local_rank, 2);
  EXPECT_EQ((*environment)->address, "127.0.0.1");
  EXPECT_EQ((*environment)->port, 29500);
  Set("LOCAL_RANK", "0");
  Set("MASTER_ADDR", "host");
  environment = ReadRankEnvironment();
  EXPECT_EQ((*environment)->local_rank, 0);
  EXPECT_EQ((*environment)->address, "host");
  Set("RANK", "0");
  Set("WORLD_SIZE", "1");
  EXPECT_EQ(ReadRankEnvironment()->has_value(), false);
}

TEST_F(EnvironmentTest, NonsenseIsNamed) {
  Set("RANK", "1");
  ExpectRefused("RANK is set and WORLD_SIZE is not");
  Set("WORLD_SIZE", "2");
  ExpectRefused("MASTER_PORT: not set");
  Set("MASTER_PORT", "70000");
  ExpectRefused("MASTER_PORT: got '70000', want 1 to 65535");
  Set("MASTER_PORT", "29500");
  Set("RANK", "2");
  ExpectRefused("RANK: got '2', want 0 to 1");
  Set("RANK", "1x");
  ExpectRefused("RANK: got '1x'");
  Set("RANK", "1");
  Set("LOCAL_RANK", "");
  ExpectRefused("LOCAL_RANK: got ''");
  Set("LOCAL_RANK", "1");
  Set("WORLD_SIZE", "1000");
  ExpectRefused("WORLD_SIZE: got '1000'");
}

// Rank 0 and guests (what they say of rank, size and agreement), all at once.
struct Guest {
  int rank;
  int size;
  std::string agreement;
};
std::vector<Joined> Meet(int size, const std::vector<Guest>& guests,
                         std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  auto door = Door::Open("127.0.0.1", 0);
  EXPECT_TRUE(door.has_value());
  const int port = door->port();
  std::vector<Joined> joined(guests.size() + 1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < guests.size(); ++i) {
    threads.emplace_back([&, i] {
      joined[i + 1] = JoinRanks({.rank = guests[i].rank, .size = guests[i].size, .port = port}, std::nullopt,
                                {.timeout = timeout, .agreement = guests[i].agreement, .still_wanted = {}});
    });
  }
  joined[0] = JoinRanks({.rank = 0, .size = size, .port = port}, std::move(*door),
                        {.timeout = timeout, .agreement = "tiny", .still_wanted = {}});
  for (std::thread& thread : threads) thread.join();
  return joined;
}

void ExpectAllRefused(const std::vector<Joined>& joined, StatusCode code, const char* text) {
  for (const Joined& group : joined) {
    ASSERT_FALSE(group.has_value()) << text;
    EXPECT_EQ(group.error().code(), code) << group.error().ToString();
    EXPECT_THAT(group.error().message(), HasSubstr(text));
  }
}

TEST(JoinRanks, AllMeet) {
  const std::vector<Joined> joined = Meet(3, {{2, 3, "tiny"}, {1, 3, "tiny"}});
  for (const Joined& group : joined) ASSERT_TRUE(group.has_value()) << group.error().ToString();
  EXPECT_EQ((*joined[0])->rank(), 0);
  EXPECT_EQ((*joined[1])->rank(), 2);
  EXPECT_EQ((*joined[2])->rank(), 1);
  std::vector<std::thread> threads;
  for (const Joined& group : joined) threads.emplace_back([&] { EXPECT_TRUE((*group)->Barrier().ok()); });
  for (std::thread& thread : threads) thread.join();
}

TEST(JoinRanks, MisfitsAreNamedOnAllSides) {
  ExpectAllRefused(Meet(2, {{1, 3, "tiny"}}), StatusCode::kInvalidArgument,
                   "rank 1 of 3 came to rank 0 of 2: WORLD_SIZE differs");
  ExpectAllRefused(Meet(3, {{1, 3, "tiny"}, {1, 3, "tiny"}}), StatusCode::kInvalidArgument,
                   "two processes say they are rank 1");
  ExpectAllRefused(Meet(2, {{1, 2, "flash"}}), StatusCode::kInvalidArgument,
                   "rank 1 runs 'flash', rank 0 'tiny'");
}

TEST(JoinRanks, WhoDoesNotComeIsNamed) {
  const std::vector<Joined> joined = Meet(3, {{2, 3, "tiny"}}, std::chrono::milliseconds(300));
  ASSERT_FALSE(joined[0].has_value());
  EXPECT_EQ(joined[0].error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(joined[0].error().message(), HasSubstr("ranks 1 of 3 did not come to 127.0.0.1 port"));
}

TEST(JoinRanks, WithoutRankZeroThereIsAnError) {
  int port = 0;
  {
    auto door = Door::Open("127.0.0.1", 0);
    ASSERT_TRUE(door.has_value());
    port = door->port();
  }
  const Joined group =
      JoinRanks({.rank = 1, .size = 2, .port = port}, std::nullopt,
                {.timeout = std::chrono::milliseconds(100), .agreement = "", .still_wanted = {}});
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(group.error().message(), HasSubstr("rank 1: no rank 0"));
}

TEST(JoinRanks, RankZeroStopsWaitingWhenTold) {
  auto door = Door::Open("127.0.0.1", 0);
  ASSERT_TRUE(door.has_value());
  const Joined group = JoinRanks({.rank = 0, .size = 2, .port = door->port()}, std::move(*door),
                                 {.timeout = std::chrono::seconds(10), .agreement = "", .still_wanted = [] {
                                    return Cancelled("the child ended");
                                  }});
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().message(), "the child ended");
}

}  // namespace
}  // namespace dsv4::comm
