// For tests: a group of ranks as threads of this process. What passes between them is the same as between
// processes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <ostream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/shared_memory_layout.h"
#include "comm/socket_group.h"

namespace dsv4::comm::testing {

// Network for the ranks' data.
enum class Network : uint8_t { kSharedMemory, kTcp };
inline constexpr Network kNetworks[] = {Network::kSharedMemory, Network::kTcp};

inline std::ostream& operator<<(std::ostream& out, Network network) {
  return out << (network == Network::kTcp ? "Tcp" : "SharedMemory");
}

// Two ends of a connection on the loopback interface.
inline std::pair<Socket, Socket> ConnectedSockets() {
  const auto listener = ListenAt({.family = AF_INET, .port = 0, .address = {127, 0, 0, 1}});
  EXPECT_TRUE(listener.has_value()) << listener.error().ToString();
  auto called = ConnectTo(LocalEnd(*listener).value(), std::chrono::seconds(60));
  EXPECT_TRUE(called.has_value()) << called.error().ToString();
  return {std::move(*called), Socket(::accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC))};
}

// Form of a group before its ranks are there, as threads or as processes that are forked later. Every rank
// takes its part once.
class Meeting {
 public:
  Meeting(int size, Network network) : size_(size) {
    if (network == Network::kSharedMemory) {
      auto memory = SharedMemory::Create(size);
      EXPECT_TRUE(memory.has_value()) << memory.error().ToString();
      memory_ = std::move(*memory);
      return;
    }
    for (int r = 0; r < size; ++r) links_.emplace_back(static_cast<size_t>(size));
    for (size_t a = 0; a < links_.size(); ++a) {
      for (size_t b = a + 1; b < links_.size(); ++b) {
        std::tie(links_[a][b].data, links_[b][a].data) = ConnectedSockets();
        std::tie(links_[a][b].notices, links_[b][a].notices) = ConnectedSockets();
        links_[a][b].process = links_[b][a].process = ::getpid();
      }
    }
  }

  // All ranks are threads of this process. No thread waits for them at first: a short timeout is not spent on
  // threads that a busy machine starts late.
  void AllAreHere() {
    for (int r = 0; memory_ != nullptr && r < size_; ++r) {
      Layout(memory_->data(), size_).control(r).process.store(::getpid());
    }
  }
  // In a process of its own, whose number all others know by `processes`: what is not of this rank is closed.
  std::unique_ptr<Communicator> Join(int rank, std::chrono::milliseconds timeout) {
    if (memory_ == nullptr)
      return MakeSocketGroup(std::move(links_[static_cast<size_t>(rank)]), rank, timeout);
    auto group = JoinSharedMemory(memory_, rank, size_, timeout);
    EXPECT_TRUE(group.has_value()) << group.error().ToString();
    return group ? std::move(*group) : nullptr;
  }
  // Closes what belongs to all ranks but `rank`: a process that has forked keeps open what others have ended.
  void CloseAllBut(int rank) {
    for (size_t r = 0; r < links_.size(); ++r) {
      if (static_cast<int>(r) != rank) links_[r].clear();
    }
  }

 private:
  int size_;
  std::shared_ptr<SharedMemory> memory_;
  std::vector<std::vector<Link>> links_;  // By rank, then by the other.
};

// Calls work(group) on `size` threads, each with its own rank, and returns when all have returned.
inline void RunRanks(int size, const std::function<void(Communicator&)>& work,
                     std::chrono::milliseconds timeout = std::chrono::seconds(120),
                     Network network = Network::kSharedMemory) {
  Meeting meeting(size, network);
  meeting.AllAreHere();
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      // Kept until all are done: a rank that leaves ends the group.
      std::unique_ptr<Communicator>& group = groups[static_cast<size_t>(rank)];
      group = meeting.Join(rank, timeout);
      ASSERT_NE(group, nullptr);
      work(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dsv4::comm::testing
