// For tests: a group of ranks as threads of this process. What passes between them is the same as between processes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/shared_memory_layout.h"

namespace dsv4::comm::testing {

// Calls work(group) on `size` threads, each with its own rank, and returns when all have returned.
inline void RunRanks(int size, const std::function<void(Communicator&)>& work,
                     std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
  const auto memory = SharedMemory::Create(size);
  ASSERT_TRUE(memory.has_value()) << memory.error().ToString();
  // All are known from the start, so that a short timeout is not spent on threads that a busy machine starts late.
  for (int rank = 0; rank < size; ++rank) {
    Layout((*memory)->data(), size).control(rank).process.store(::getpid());
  }
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = JoinSharedMemory(*memory, rank, size, timeout);
      ASSERT_TRUE(group.has_value()) << group.error().ToString();
      // Kept until all are done: who leaves ends the group.
      Communicator& joined = *(groups[static_cast<size_t>(rank)] = std::move(*group));
      work(joined);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dsv4::comm::testing
