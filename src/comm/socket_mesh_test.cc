// Behaviour that only sockets have: calls that differ, notices that overtake data, callers that are not of
// the group.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "comm/ranks_testing.h"
#include "comm/socket_links.h"

namespace dsv4::comm {
namespace {

using testing::ConnectedSockets;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(120);

TEST(SocketMesh, CallsThatDifferAreNamedAtOnce) {
  testing::RunRanks(
      2,
      [](Communicator& group) {
        std::vector<std::byte> bytes(8);
        const Status status = group.rank() == 0 ? group.Barrier() : group.Broadcast(bytes, 0);
        EXPECT_EQ(status.code(), StatusCode::kInternal) << status.ToString();
        // The rank that finds it out first tells the other.
        EXPECT_THAT(
            status.message(),
            ::testing::AnyOf(HasSubstr("rank 1: got a barrier of 0 bytes (group 1) from rank 0, want a "
                                       "broadcast of 8 bytes (group 1)"),
                             HasSubstr("rank 0: got ")));
      },
      kLong, testing::Network::kTcp);
}

// Passes on what comes on one socket to the other, from when it is let go.
class Detour {
 public:
  Detour(Socket from, Socket to) : from_(std::move(from)), to_(std::move(to)) {
    thread_ = std::thread([this] {
      open_.wait(false);
      std::array<std::byte, 4096> bytes;
      ssize_t count = 0;
      while ((count = ::recv(from_.fd(), bytes.data(), bytes.size(), 0)) > 0)
        (void)::send(to_.fd(), bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL);
    });
  }
  ~Detour() {
    LetGo();
    ::shutdown(from_.fd(), SHUT_RDWR);
    thread_.join();
  }
  void LetGo() {
    open_ = true;
    open_.notify_all();
  }

 private:
  Socket from_;
  Socket to_;
  std::atomic<bool> open_ = false;
  std::thread thread_;
};

// Three ranks meet for the last time. The bytes of rank 1 for rank 0 take a detour, and rank 2 has ended
// before they arrive. Rank 0 knows of the end, and meets the others all the same.
TEST(SocketMesh, AnEndThatOvertakesDataDoesNotUndoIt) {
  std::vector<std::vector<Link>> links;
  for (int r = 0; r < 3; ++r) links.emplace_back(3);
  for (const auto& [a, b] : {std::pair(0, 2), std::pair(1, 2)}) {
    auto& one = links[static_cast<size_t>(a)][static_cast<size_t>(b)];
    auto& other = links[static_cast<size_t>(b)][static_cast<size_t>(a)];
    std::tie(one.data, other.data) = ConnectedSockets();
    std::tie(one.notices, other.notices) = ConnectedSockets();
  }
  std::tie(links[0][1].notices, links[1][0].notices) = ConnectedSockets();
  auto [from, from_far] = ConnectedSockets();
  auto [to, to_far] = ConnectedSockets();
  links[1][0].data = std::move(from_far);
  links[0][1].data = std::move(to_far);
  Socket back_from(::dup(to.fd()));
  Socket back_to(::dup(from.fd()));
  Detour slow(std::move(from), std::move(to));
  Detour fast(std::move(back_from), std::move(back_to));
  fast.LetGo();

  std::vector<std::unique_ptr<Communicator>> groups;
  for (int r = 0; r < 3; ++r)
    groups.push_back(MakeSocketGroup(std::move(links[static_cast<size_t>(r)]), r, kLong));
  std::thread zero([&] { EXPECT_TRUE(groups[0]->Barrier().ok()) << groups[0]->Check().ToString(); });
  std::thread one([&] { EXPECT_TRUE(groups[1]->Barrier().ok()); });
  EXPECT_TRUE(groups[2]->Barrier().ok());
  one.join();
  groups[2]->Fail(Cancelled("has ended"));
  groups[2].reset();
  while (groups[0]->Check().ok()) std::this_thread::yield();
  slow.LetGo();
  zero.join();
  EXPECT_EQ(groups[0]->Barrier().message(), "rank 2: has ended");
}

// Not having come to an exchange is another matter: a rank that waits for it hears of the end at once.
TEST(SocketMesh, AnEndInTheMiddleIsToldAtOnce) {
  testing::RunRanks(
      3,
      [](Communicator& group) {
        EXPECT_TRUE(group.Barrier().ok());
        if (group.rank() == 2) group.Fail(Cancelled("has ended"));
        EXPECT_EQ(group.Barrier(Wait::kForever).message(), "rank 2: has ended");
      },
      kLong, testing::Network::kTcp);
}

// Connects the ranks as the map says, each with its own view of the map and the socket it listens at.
std::vector<Result<std::vector<Link>>> ConnectAll(const std::vector<RankMap>& maps,
                                                  const std::vector<Socket>& listeners,
                                                  std::chrono::milliseconds timeout = kLong) {
  std::vector<Result<std::vector<Link>>> links(maps.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < maps.size(); ++r) {
    threads.emplace_back([&, r] {
      links[r] = ConnectRanks(maps[r], static_cast<int>(r), static_cast<int>(maps.size()), listeners[r].fd(),
                              std::chrono::steady_clock::now() + timeout, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return links;
}

class Connect : public ::testing::Test {
 protected:
  Connect() {
    map_.token = MakeGroupToken().value();
    for (int r = 0; r < 3; ++r) {
      listeners_.push_back(ListenAt({.family = AF_INET, .port = 0, .address = {127, 0, 0, 1}}).value());
      map_.ranks[static_cast<size_t>(r)].endpoint = LocalEnd(listeners_.back()).value();
      map_.ranks[static_cast<size_t>(r)].machine = r / 2;
      Put(map_.ranks[static_cast<size_t>(r)].host, fmt::format("node{}", r / 2));
    }
  }
  RankMap map_;
  std::vector<Socket> listeners_;
};

TEST_F(Connect, EveryPairHasTwoConnectionsWhateverStrangersSay) {
  std::vector<Socket> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(
        ConnectTo(map_.ranks[static_cast<size_t>(i % 3)].endpoint, std::chrono::seconds(60)).value());
    std::array<char, 1000> noise;
    noise.fill(static_cast<char>(i));
    if (i % 4 > 0) (void)strangers.back().Write(noise);
  }
  auto links = ConnectAll({map_, map_, map_}, listeners_);
  std::vector<std::unique_ptr<Communicator>> groups;
  for (size_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(links[r].has_value()) << links[r].error().ToString();
    EXPECT_EQ((*links[r])[2].host, "node1");
    EXPECT_EQ((*links[r])[0].host, "node0");
    EXPECT_EQ((*links[r])[0].here, r < 2);
    groups.push_back(MakeSocketGroup(std::move(*links[r]), static_cast<int>(r), kLong));
  }
  std::vector<std::thread> threads;
  for (auto& group : groups) threads.emplace_back([&] { EXPECT_TRUE(group->Barrier().ok()); });
  for (std::thread& thread : threads) thread.join();
}

// A rank of another group knows another token: it is not let in, and missed.
TEST_F(Connect, ARankOfAnotherGroupIsNotLetIn) {
  RankMap other = map_;
  other.token[0] ^= 1;
  const auto links = ConnectAll({map_, map_, other}, listeners_, std::chrono::milliseconds(300));
  for (const int r : {0, 1}) {
    ASSERT_FALSE(links[static_cast<size_t>(r)].has_value());
    EXPECT_EQ(links[static_cast<size_t>(r)].error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(links[static_cast<size_t>(r)].error().message(), HasSubstr("did not connect in time"));
  }
}

TEST_F(Connect, WhoIsNotReachedIsNamed) {
  const Endpoint absent = map_.ranks[1].endpoint;
  listeners_[1] = Socket();
  const auto links = ConnectRanks(map_, 2, 3, listeners_[2].fd(),
                                  std::chrono::steady_clock::now() + std::chrono::seconds(120), {});
  ASSERT_FALSE(links.has_value());
  EXPECT_EQ(links.error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(links.error().message(),
            fmt::format("rank 2 does not reach rank 1 on node0: 127.0.0.1 port {}: Connection refused",
                        absent.port));
}

}  // namespace
}  // namespace dsv4::comm
