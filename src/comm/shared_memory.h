// A group of processes (or threads) of one machine that meet in shared memory.
//
// The memory is an anonymous file (memfd): it has no name, so nothing is left behind however the ranks end.
// The others open it through /proc/PID/fd of the rank that made it, so they run under the same user and in
// the same process namespace.
//
//   header    the group's failure, if any
//   control   one per rank: how far it is, its bell (a futex), its process
//   buffers   two per rank, used in turn
//   mailboxes one per ordered pair, rings of bytes for Send and Recv
// In round n a rank writes buffer n mod 2, announces n, and reads the buffers that the others announced. A
// rank that announces n + 1 has read everything of round n. A buffer is free again when all announced the
// round after it was written. So a round has one wait, and no second one for "read".
//
// A waiting rank spins for a moment, then sleeps on its bell. Every 20 ms it looks whether all processes live
// (pidfd), which is why a killed rank is noticed long before the deadline.
#pragma once

#include <sys/types.h>

#include <memory>

#include "comm/communicator.h"

namespace dsv4::comm {

inline constexpr int kMaxSharedMemoryRanks = 64;

class SharedMemory {
 public:
  // For `size` ranks. ResourceExhausted without memory, InvalidArgument for a size outside 1 to
  // kMaxSharedMemoryRanks.
  static Result<std::shared_ptr<SharedMemory>> Create(int size);
  // Memory that process `creator` made and has open as `fd`. Unavailable when it is gone or may not be
  // opened; InvalidArgument when it is not such memory or for another number of ranks.
  static Result<std::shared_ptr<SharedMemory>> Open(pid_t creator, int fd, int size);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  int fd() const { return fd_; }
  std::byte* data() const { return data_; }

 private:
  SharedMemory(int fd, std::byte* data, size_t num_bytes) : fd_(fd), data_(data), num_bytes_(num_bytes) {}

  int fd_;
  std::byte* data_;
  size_t num_bytes_;
};

// Takes part as `rank`, and waits until the processes of all ranks are known. `timeout` is the deadline of
// this and of every later wait, from the moment that the waiting begins. Errors: DeadlineExceeded names the
// ranks that did not come.
Result<std::unique_ptr<Communicator>> JoinSharedMemory(std::shared_ptr<SharedMemory> memory, int rank,
                                                       int size, std::chrono::milliseconds timeout);

}  // namespace dsv4::comm
