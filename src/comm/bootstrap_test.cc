// Ranks find each other through environment variables and a port; what does not fit is said on both sides.
#include "comm/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "comm/machine.h"

namespace dsv4::comm {
namespace {

using ::testing::HasSubstr;
using Joined = Result<std::unique_ptr<Communicator>>;

class EnvironmentTest : public ::testing::Test {
 protected:
  EnvironmentTest() { Clear(); }
  ~EnvironmentTest() override { Clear(); }
  static void Clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                             "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}) {
      ::unsetenv(name);
    }
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
  EXPECT_EQ((*environment)->local_size, 0);
  Set("LOCAL_WORLD_SIZE", "3");
  EXPECT_EQ((*ReadRankEnvironment())->local_size, 3);
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

// The agent of torchrun keeps a server of its own on MASTER_PORT, and says so.
TEST_F(EnvironmentTest, ThePortOfTorchrunIsItsOwn) {
  Set("RANK", "0");
  Set("WORLD_SIZE", "2");
  Set("MASTER_PORT", "29500");
  Set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ((*ReadRankEnvironment())->port, 29501);
  Set("MASTER_PORT", "65535");
  ExpectRefused("MASTER_PORT: got '65535', want 1 to 65534");
  Set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_EQ((*ReadRankEnvironment())->port, 65535);
}

// For what does not wait: a slow machine is in no hurry.
constexpr std::chrono::milliseconds kLong = std::chrono::seconds(120);

// Rank 0 and the ranks that join (what they say of rank, size and agreement), all at once.
struct JoiningRank {
  int rank;
  int size;
  std::string agreement;
};
std::vector<Joined> Meet(int size, const std::vector<JoiningRank>& joining, bool always_tcp,
                         std::chrono::milliseconds timeout = kLong) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  EXPECT_TRUE(listener.has_value());
  const int port = listener->port();
  std::vector<Joined> joined(joining.size() + 1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < joining.size(); ++i) {
    threads.emplace_back([&, i] {
      joined[i + 1] =
          JoinRanks({.rank = joining[i].rank, .size = joining[i].size, .port = port}, std::nullopt,
                    {.timeout = timeout, .agreement = joining[i].agreement, .still_wanted = {}});
    });
  }
  joined[0] =
      JoinRanks({.rank = 0, .size = size, .port = port}, std::move(*listener),
                {.timeout = timeout, .agreement = "tiny", .always_tcp = always_tcp, .still_wanted = {}});
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

sockaddr_in Loopback(int port) {
  return {.sin_family = AF_INET,
          .sin_port = ::htons(static_cast<uint16_t>(port)),
          .sin_addr = {::htonl(INADDR_LOOPBACK)},
          .sin_zero = {}};
}

void ExpectMissing(const std::vector<Joined>& joined, const char* text) {
  ASSERT_FALSE(joined[0].has_value());
  EXPECT_EQ(joined[0].error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(joined[0].error().message(), HasSubstr(text));
}

class Join : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OverTcp, Join, ::testing::Bool());

TEST_P(Join, AllMeet) {
  const std::vector<Joined> joined = Meet(3, {{2, 3, "tiny"}, {1, 3, "tiny"}}, GetParam());
  for (const Joined& group : joined) ASSERT_TRUE(group.has_value()) << group.error().ToString();
  EXPECT_EQ((*joined[0])->rank(), 0);
  EXPECT_EQ((*joined[1])->rank(), 2);
  EXPECT_EQ((*joined[2])->rank(), 1);
  std::vector<std::thread> threads;
  for (const Joined& group : joined) threads.emplace_back([&] { EXPECT_TRUE((*group)->Barrier().ok()); });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Join, MisfitsAreNamedOnAllSides) {
  ExpectAllRefused(Meet(2, {{1, 3, "tiny"}}, GetParam()), StatusCode::kInvalidArgument,
                   "rank 1 of 3 came to rank 0 of 2: WORLD_SIZE differs");
  ExpectAllRefused(Meet(3, {{1, 3, "tiny"}, {1, 3, "tiny"}}, GetParam()), StatusCode::kInvalidArgument,
                   "two processes say they are rank 1");
  ExpectAllRefused(Meet(2, {{1, 2, "flash"}}, GetParam()), StatusCode::kInvalidArgument,
                   "rank 1 runs 'flash', rank 0 'tiny'");
}

TEST(JoinRanks, WhoDoesNotComeIsNamed) {
  // No rank comes in so short a time, or rank 2 alone does in a longer one.
  ExpectMissing(Meet(3, {}, false, std::chrono::milliseconds(1)),
                "ranks 1, 2 of 3 did not come to 127.0.0.1 port");
  std::chrono::milliseconds timeout(300);
  std::vector<Joined> joined = Meet(3, {{2, 3, "tiny"}}, false, timeout);
  while (!joined[0].has_value() && joined[0].error().message().starts_with("ranks 1, 2") && timeout < kLong) {
    joined = Meet(3, {{2, 3, "tiny"}}, false, timeout *= 2);  // The machine was busy.
  }
  ExpectMissing(joined, "ranks 1 of 3 did not come to 127.0.0.1 port");
}

TEST(JoinRanks, WithoutRankZeroThereIsAnError) {
  // A port that is taken, so that no other process gets it, and that has no listener.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const Joined group =
      JoinRanks({.rank = 1, .size = 2, .port = ::ntohs(address.sin_port)}, std::nullopt,
                {.timeout = std::chrono::milliseconds(100), .agreement = "", .still_wanted = {}});
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(group.error().message(), HasSubstr("rank 1: no rank 0"));
  ::close(socket);
}

// Socket that this process, a child, introduces itself with.
void AllowOneMoreFile() {
  const int free = ::dup(0);
  ::close(free);
  const rlimit files{.rlim_cur = static_cast<rlim_t>(free) + 1, .rlim_max = static_cast<rlim_t>(free) + 1};
  if (free < 0 || ::setrlimit(RLIMIT_NOFILE, &files) != 0) ::_exit(2);
}

// Rank 1 says that it is there and then ends, before it has opened the shared memory. It may open no more
// files than the socket that it says this with.
TEST(JoinRanks, WhoEndsWhileTheGroupIsMadeIsNamed) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.has_value());
  const int port = listener->port();
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    AllowOneMoreFile();
    const Joined group = JoinRanks({.rank = 1, .size = 2, .port = port}, std::nullopt,
                                   {.timeout = kLong, .agreement = "", .still_wanted = {}});
    ::_exit(!group && group.error().message().find("shared memory") != std::string::npos ? 0 : 1);
  }
  const auto begin = std::chrono::steady_clock::now();
  const Joined group = JoinRanks({.rank = 0, .size = 2, .port = port}, std::move(*listener),
                                 {.timeout = kLong, .agreement = "", .still_wanted = {}});
  ASSERT_TRUE(group.has_value()) << group.error().ToString();
  const Status met = (*group)->Barrier();
  EXPECT_EQ(met.code(), StatusCode::kUnavailable);
  EXPECT_EQ(met.message(), "rank 1 of 2 (process " + std::to_string(process) + ") ended");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
  int state = 0;
  ASSERT_EQ(::waitpid(process, &state, 0), process);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
}

// Over TCP a rank that ends while all connect is missed by rank 0, and the others hear of it. This rank may
// open no more files, so that it cannot listen.
TEST(JoinRanks, WhoCannotConnectIsNamed) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.has_value());
  const int port = listener->port();
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    AllowOneMoreFile();
    const Joined group = JoinRanks({.rank = 1, .size = 3, .port = port}, std::nullopt,
                                   {.timeout = kLong, .agreement = "", .still_wanted = {}});
    ::_exit(!group && group.error().message().find("rank 1: listening") != std::string::npos ? 0 : 1);
  }
  Joined other;
  std::thread third([&] {
    other = JoinRanks({.rank = 2, .size = 3, .port = port}, std::nullopt,
                      {.timeout = kLong, .agreement = "", .still_wanted = {}});
  });
  const Joined group = JoinRanks({.rank = 0, .size = 3, .port = port}, std::move(*listener),
                                 {.timeout = kLong, .agreement = "", .always_tcp = true, .still_wanted = {}});
  third.join();
  for (const Joined* joined : {&group, static_cast<const Joined*>(&other)}) {
    ASSERT_FALSE(joined->has_value());
    EXPECT_THAT(joined->error().message(), HasSubstr("rank 1: listening: 127.0.0.1 port 0"));
  }
  int state = 0;
  ASSERT_EQ(::waitpid(process, &state, 0), process);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
}

int OpenSocket(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

// A rank may be kept from speaking for seconds (a busy machine, a frozen container) and is then heard;
// meanwhile the others are.
TEST(JoinRanks, WhoIsSilentIsNotSentAwayAndKeepsNobodyWaiting) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.has_value());
  const int port = listener->port();
  const int silent = OpenSocket(port);
  std::atomic<bool> stop = false;
  const RankEnvironment environment{.rank = 0, .size = 3, .port = port};
  std::thread rank_zero([&] {
    const Joined group =
        JoinRanks(environment, std::move(*listener), {.timeout = kLong, .agreement = "", .still_wanted = [&] {
                                                        return stop ? Cancelled("told") : Status();
                                                      }});
    EXPECT_EQ(group.error().message(), "told");
  });
  pollfd left{.fd = silent, .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&left, 1, 2500), 0);
  stop = true;
  rank_zero.join();
  EXPECT_EQ(::poll(&left, 1, -1), 1);
  ::close(silent);
}

// Port scanners, web browsers and others that find the port: sent away or left standing, and the ranks meet.
TEST_P(Join, StrangersDoNoHarm) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.has_value());
  const int port = listener->port();
  const std::string noise(100000, 'x');
  const std::string request = "GET / HTTP/1.1\r\nHost: dsv4\r\n\r\n";
  std::vector<int> strangers;
  for (const std::string* text : {&noise, &request}) {
    for (int i = 0; i < 3; ++i) {
      strangers.push_back(OpenSocket(port));
      (void)::send(strangers.back(), text->data(), text->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    ::close(strangers[strangers.size() - 2]);  // One of them leaves.
    strangers.erase(strangers.end() - 2);
  }
  Joined joiner;
  std::thread second([&] {
    joiner = JoinRanks({.rank = 1, .size = 2, .port = port}, std::nullopt,
                       {.timeout = kLong, .agreement = "", .still_wanted = {}});
    if (joiner) {
      EXPECT_TRUE((*joiner)->Barrier().ok());
    }
  });
  const Joined group =
      JoinRanks({.rank = 0, .size = 2, .port = port}, std::move(*listener),
                {.timeout = kLong, .agreement = "", .always_tcp = GetParam(), .still_wanted = {}});
  ASSERT_TRUE(group.has_value()) << group.error().ToString();
  EXPECT_TRUE((*group)->Barrier().ok());
  second.join();
  EXPECT_TRUE(joiner.has_value());
  for (const int stranger : strangers) ::close(stranger);
}

TEST(JoinRanks, RankZeroStopsWaitingWhenTold) {
  auto listener = RankListener::Open("127.0.0.1", 0);
  ASSERT_TRUE(listener.has_value());
  const Joined group = JoinRanks(
      {.rank = 0, .size = 2, .port = listener->port()}, std::move(*listener),
      {.timeout = kLong, .agreement = "", .still_wanted = [] { return Cancelled("the child ended"); }});
  ASSERT_FALSE(group.has_value());
  EXPECT_EQ(group.error().message(), "the child ended");
}

TEST(SlowNetwork, IsSaidWhereRdmaIsNotUsed) {
  EXPECT_THAT(SlowNetwork(false, false, {}),
              HasSubstr("over TCP, not by RDMA (this machine has no RDMA device)"));
  EXPECT_THAT(SlowNetwork(false, false, {"mlx5_0", "mlx5_1"}), HasSubstr("mlx5_0, mlx5_1, not used"));
  EXPECT_THAT(SlowNetwork(true, false, {}), HasSubstr("over TCP, unless NCCL has a plugin"));
  EXPECT_THAT(SlowNetwork(true, true, {"mlx5_0"}), HasSubstr("NCCL_IB_DISABLE forbids RDMA"));
  EXPECT_EQ(SlowNetwork(true, false, {"mlx5_0"}), "");
}

TEST(RdmaDevices, AreTheNamesInTheFolder) {
  const std::string folder = ::testing::TempDir() + "/infiniband";
  std::filesystem::create_directories(folder + "/mlx5_1");
  std::filesystem::create_directories(folder + "/mlx5_0");
  EXPECT_EQ(RdmaDevices(folder), (std::vector<std::string>{"mlx5_0", "mlx5_1"}));
  EXPECT_TRUE(RdmaDevices(folder + "/none").empty());
}

}  // namespace
}  // namespace dsv4::comm
