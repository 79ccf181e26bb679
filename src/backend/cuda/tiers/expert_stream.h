// ExpertStream: brings a layer's cached experts part by part while those of the part before are multiplied.
// It uses a stream of its own with the device's DMA engine (tiers/stream_plan.h says which experts, and where
// to). The host queues passes faster than the device works. The first parts of a layer come while the layer
// before and this one's attention are computed.
//
// Every copy is followed at once by a wait of the queue's stream for it. Work that is queued behind a part
// needs to know nothing of this, whatever fails.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "backend/cuda/kernels/moe/expert_cache.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/tiers/stream_plan.h"

namespace dsv4::backend::cuda {

// A layer's experts in the cache (ExpertCacheCall::experts), here and on the device.
struct CachedLayer {
  std::vector<int32_t> numbers;
  Buffer on_device;  // Empty: none is cached.
};

// Contents of a cache.
struct CachedExperts {
  const ExpertCacheState& state;
  std::span<const CachedExpert> known;  // From number 1 on.
  int64_t num_experts;                  // As state.slot_of has; not all are known yet.
};

class ExpertStream {
 public:
  // Queues what multiplies the experts in rows [begin, end) of a table.
  using Multiply = std::function<Status(int begin, int end)>;

  explicit ExpertStream(CudaContext& context) : context_(context) {}
  ~ExpertStream();
  ExpertStream(const ExpertStream&) = delete;
  ExpertStream& operator=(const ExpertStream&) = delete;

  // The cache begins anew.
  void Restart(int num_slots) {
    plan_ = StreamPlan(num_slots);
    Forget();
  }
  bool has_room() const { return plan_.has_room(); }
  // The cache moves experts by itself.
  void Forget() { known_ = false; }

  // Queues a layer: for each part what brings its experts, and then what `multiply` queues, which finds them
  // by `table`.
  Status Run(const CachedExperts& cache, const CachedLayer& layer, DeviceWeight* table,
             const Multiply& multiply);

 private:
  Status Start();
  // Learns where experts are, unless nothing can have moved them since.
  Status Look(const CachedExperts& cache);
  Status Bring(const CachedExperts& cache, const StreamedPart& part);
  Status RunParts(const CachedExperts& cache, const CachedLayer& layer, DeviceWeight* table,
                  const Multiply& multiply);

  CudaContext& context_;
  StreamPlan plan_{0};
  bool known_ = false;
  int64_t replayed_ = 0;  // Steps that were replayed until it was known: what they do is not seen here.
  Buffer landing_;        // The host's.
  cudaStream_t copies_ = nullptr;
  cudaEvent_t brought_ = nullptr;
  std::array<cudaEvent_t, 2> read_ = {};  // Event behind the reads of what was in a buffer.
};

}  // namespace dsv4::backend::cuda
