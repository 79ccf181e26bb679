// Communicator: a group of ranks (processes that run one model together) and the ways they exchange numbers.
//
// Every member calls the same functions in the same order with matching arguments; a member that does not is
// found out only by the deadline. Sums are taken in rank order, ((x0 + x1) + x2) + ..., in fp32, so they are
// the same on every rank and from run to run. Data lies in memory that the implementation can reach: the
// host's (shared_memory.h) or a device's (nccl_group.h). Buffers may be used again when a call returns; on a
// device, by what its stream does after.
//
// Failure: a member that ends, that does not come within the deadline, or that calls Fail, ends the group.
// The call that finds out and all calls after it, on every rank, return one error that names the rank:
// Unavailable for a rank that ended or left, DeadlineExceeded for one that is late, what was given to Fail
// otherwise. A group that failed stays failed. Threads: one at a time; Check and Fail from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace dsv4::comm {

enum class Wait : uint8_t {
  kDeadline,  // The group's.
  kForever,  // Until the others come or end: for work that takes as long as it takes (the next request, loading).
};

class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns when every rank has called it.
  virtual Status Barrier(Wait wait = Wait::kDeadline) = 0;
  // Every rank's `data` becomes that of `root`; of one size. The root does not wait for the others to have
  // it.
  virtual Status Broadcast(std::span<std::byte> data, int root, Wait wait = Wait::kDeadline) = 0;
  // Matrices side by side: rank r brings [num_rows, row_bytes[r]] and every rank gets all [num_rows, sum of
  // row_bytes], each row the ranks' rows in order. With one row it is the plain all-gather of pieces of any
  // sizes, 0 included.
  virtual Status AllGather(std::span<const std::byte> mine, int64_t num_rows,
                           std::span<const int64_t> row_bytes, std::span<std::byte> all) = 0;
  // The way back: every rank brings [num_rows, sum of row_bytes] and rank r gets its columns of all ranks',
  // [size, num_rows, row_bytes[r]] in rank order.
  virtual Status AllToAll(std::span<const std::byte> mine, int64_t num_rows,
                          std::span<const int64_t> row_bytes, std::span<std::byte> parts) = 0;
  // In place; of one size.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  // `values` is counts[0] + counts[1] + ... long on every rank; rank r gets the sum of its counts[r] of them.
  virtual Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                                  std::span<float> mine) = 0;
  // Point to point, in order for each pair. Send returns when the bytes are on their way, which for many of
  // them means that the other has begun to take them. Sending to oneself is a bug.
  virtual Status Send(std::span<const std::byte> data, int to) = 0;
  virtual Status Recv(std::span<std::byte> data, int from) = 0;

  // Whether the group is whole, without waiting.
  virtual Status Check() = 0;
  // Ends the group: this rank cannot go on.
  virtual void Fail(const Status& why) = 0;

  // Groups of the ranks that gave the same colour, in rank order; all ranks call it. What ends a part ends
  // the whole.
  virtual Result<std::unique_ptr<Communicator>> Split(int colour) = 0;
};

}  // namespace dsv4::comm
