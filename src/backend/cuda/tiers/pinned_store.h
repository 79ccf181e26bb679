// PinnedStore: pinned memory for very many weights, and the copies into it. Both go on behind the thread that
// loads: some threads touch and pin blocks ahead of it, others copy, many weights side by side. So a start
// takes as long as the slowest of the three.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime/device_queue.h"

namespace dsv4::backend::cuda {

// One thread places, copies and settles; Holds is for it too.
class PinnedStore {
 public:
  // The queue outlives it. `num_threads`: that copy; 0: one a core, 32 at most.
  explicit PinnedStore(DeviceQueue& queue, int num_threads = 0);
  // Copies that have not begun are left out.
  ~PinnedStore() { Stop(); }
  PinnedStore(const PinnedStore&) = delete;
  PinnedStore& operator=(const PinnedStore&) = delete;

  // Room for a weight, which keeps the block that it lies in. Waits for one; ResourceExhausted where no more
  // memory can be pinned.
  Result<Buffer> Place(size_t num_bytes);
  // Queues a copy into it, and waits where too many are queued; the source stays until Settle. `reorder`:
  // NVFP4's codes are reordered (weights/e2m1_order.h).
  void Copy(std::byte* to, const std::byte* from, size_t num_bytes, bool reorder);
  // All copies are done.
  void Settle();
  // Settles, and gives back threads and memory that were for more.
  void Finish();
  // The same where no weight is left: counters begin anew.
  void Forget();
  // Whether an address lies in a block.
  bool Holds(const std::byte* address) const;

  PinnedLoad counters() const;

 private:
  struct Piece {
    std::byte* to;
    const std::byte* from;
    size_t num_bytes;
    bool reorder;
  };

  int64_t PinnedBytes() const;
  Result<std::shared_ptr<const Buffer>> TakeBlock(size_t num_bytes);
  // Threads, where there are none; ResourceExhausted.
  Status Start();
  void Stop();
  void MakeBlocks();
  void CopyPieces();

  DeviceQueue& queue_;
  const int num_threads_;
  std::shared_ptr<const Buffer> block_;  // Position at which the next weight goes,
  size_t block_used_ = 0;                // behind so many bytes.
  // Blocks go with the weights in them; by where they begin.
  std::map<const std::byte*, std::weak_ptr<const Buffer>> blocks_;

  mutable std::mutex mutex_;  // Guard of what follows.
  std::condition_variable changed_;
  std::condition_variable pieces_come_;
  bool stopping_ = false;
  bool waiting_ = false;           // For a block.
  bool ahead_fails_ = false;       // Memory ran out where nothing waited for it.
  std::optional<Status> refused_;  // Answer to the waiting thread.
  int num_taken_ = 0;              // Blocks.
  int num_in_making_ = 0;
  std::vector<Buffer> ready_;
  std::deque<Piece> pieces_;
  int num_copying_ = 0;  // Threads.
  PinnedLoad counters_;
  std::vector<std::jthread> threads_;  // Last.
};

}  // namespace dsv4::backend::cuda
