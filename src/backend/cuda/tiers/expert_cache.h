// ExpertCache: experts of ops::WeightTier::kCached. They stay in memory of the host that the device reads, in
// the layout of its kernels. They are brought to slots in the device's memory when they are chosen
// (kernels/moe/expert_cache.h). The cache's content changes no bit.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "backend/cuda/kernels/moe/expert_cache.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/tiers/expert_stream.h"
#include "backend/cuda/tiers/pinned_store.h"
#include "ops/routed_experts.h"

namespace dsv4::backend::cuda {

class ExpertCache {
 public:
  explicit ExpertCache(CudaContext& context) : context_(context), store_(context.queue()), stream_(context) {}

  // Copies a weight to where it stays, behind the caller until Settle; weights of an expert one after the
  // other. `slots`: how many experts the device is to have room for. `reorder`: NVFP4's codes are reordered
  // as on the device (weights/e2m1_order.h). ResourceExhausted where no more memory can be pinned.
  Result<Weight> Keep(const Weight& source, int64_t slots, bool reorder);
  // Reads of what Keep was given are done.
  void Settle() { store_.Settle(); }
  PinnedLoad load_counters() const { return store_.counters(); }
  // Whether an expert's weight lies here.
  bool Has(const ops::ExpertWeights& expert) const;
  bool empty() const { return num_weights_ == 0; }

  // Forgets which experts are where, and makes room; ResourceExhausted where the device has none. Before the
  // first layer after Keep.
  Status Restart();
  // From now on the device has room for so many, and they come again as they are chosen. ResourceExhausted
  // where it has no memory for them: then for as many as there were, or none, which are read from where they
  // stay. The queue has no records of steps.
  Status Resize(int64_t slots);
  // No weight is left, and nothing is in flight: as before the first one, counters too.
  void Forget();
  // Cached ones among `experts`. Until Restart.
  Result<CachedLayer> AddLayer(std::span<const ops::ExpertWeights> experts);
  // Queues what brings those that `call` has chosen.
  void Bring(const ExpertCacheCall& call) {
    stream_.Forget();
    LaunchBringExperts(context_, state_, call);
  }
  // Whether a call with so many choices brings all of a layer's experts ahead of the router. Not where all
  // have room: then they are brought once.
  bool Streams(int64_t num_choices, int64_t num_places) const;
  // Queues that (ExpertStream::Run).
  Status Stream(const CachedLayer& layer, DeviceWeight* table,
                const std::function<Status(int begin, int end)>& multiply) {
    return stream_.Run({state_, numbered_, num_prepared_}, layer, table, multiply);
  }

  ExpertCacheWords counters() const;
  // From any thread.
  int64_t num_slots() const { return num_slots_.load(std::memory_order_relaxed); }

 private:
  // Forgets which experts are where.
  Status MakeRoom(int64_t num_slots);
  template <typename T>
  Status Make(int64_t count, Buffer* buffer, T** data);

  CudaContext& context_;
  PinnedStore store_;
  int64_t num_weights_ = 0;   // Ever.
  int64_t expert_bytes_ = 0;  // Bytes of the expert that comes,
  int64_t slot_bytes_ = 0;    // and of the largest.
  int64_t slots_ = 0;         // Slots that are wanted.

  ExpertCacheState state_;
  std::atomic<int64_t> num_slots_ = 0;  // state_.num_slots
  int64_t num_prepared_ = 0;            // Experts when it began,
  std::vector<CachedExpert> numbered_;  // and those of layers that came since, from number 1 on.
  Buffer slots_memory_;
  Buffer keys_;
  Buffer used_;
  Buffer owners_;
  Buffer slot_of_;
  Buffer experts_;
  Buffer jobs_;
  Buffer clock_;
  Buffer words_;         // The host's.
  ExpertStream stream_;  // Last: it ends before the memory goes.
};

}  // namespace dsv4::backend::cuda
