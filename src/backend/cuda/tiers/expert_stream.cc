// Stream of a layer's cached experts in parts by DMA, beside the multiplication of the part before.
#include "backend/cuda/tiers/expert_stream.h"

#include "backend/cuda/runtime/pinned_memory.h"

namespace dsv4::backend::cuda {
namespace {

constexpr const char* kWhat = "experts of a prompt";

// Copies that lie behind each other on both sides, with what is between them, are one.
class Copies {
 public:
  explicit Copies(cudaStream_t stream) : stream_(stream) {}

  cudaError_t Add(uint8_t* to, const uint8_t* from, size_t num_bytes) {
    // Weights lie on such boundaries.
    constexpr size_t kMostBetween = 256;
    const auto between = static_cast<size_t>(from - (from_ + num_bytes_));
    if (num_bytes_ > 0 && from >= from_ + num_bytes_ && between < kMostBetween &&
        to == to_ + num_bytes_ + between) {
      num_bytes_ += between + num_bytes;
      return cudaSuccess;
    }
    const cudaError_t error = Queue();
    to_ = to;
    from_ = from;
    num_bytes_ = num_bytes;
    return error;
  }
  cudaError_t Queue() {
    if (num_bytes_ == 0) return cudaSuccess;
    const cudaError_t error = cudaMemcpyAsync(to_, from_, num_bytes_, cudaMemcpyHostToDevice, stream_);
    num_bytes_ = 0;
    return error;
  }

 private:
  cudaStream_t stream_;
  uint8_t* to_ = nullptr;
  const uint8_t* from_ = nullptr;
  size_t num_bytes_ = 0;
};

std::span<const CachedWeight> WeightsOf(const CachedExperts& cache, const StreamedExpert& expert) {
  return cache.known[static_cast<size_t>(expert.expert - 1)].weights;
}

}  // namespace

// Errors have no reader here, and at the end of the process the driver may already be gone.
ExpertStream::~ExpertStream() {
  if (copies_ == nullptr || cudaSetDevice(context_.queue().device().index) != cudaSuccess) return;
  cudaStreamSynchronize(copies_);
  for (const cudaEvent_t event : {brought_, read_[0], read_[1]}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaStreamDestroy(copies_);
}

Status ExpertStream::Start() {
  if (copies_ != nullptr) return {};
  return context_.queue().CallOnStream(kWhat, [&](cudaStream_t) {
    cudaError_t error = cudaSuccess;
    for (cudaEvent_t* const event : {&brought_, read_.data(), &read_[1]}) {
      if (error == cudaSuccess && *event == nullptr)
        error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    }
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking);
    return error;
  });
}

Status ExpertStream::Look(const CachedExperts& cache) {
  const int64_t replayed = context_.queue().replay_counters().replayed;
  if (known_ && replayed == replayed_) return {};
  const auto num_experts = static_cast<size_t>(cache.num_experts);
  const size_t num_bytes = num_experts * sizeof(int32_t);
  if (landing_.num_bytes() < num_bytes) {
    DSV4_ASSIGN_OR_RETURN_STATUS(landing_, AllocatePinned(context_.queue(), num_bytes));
  }
  LaunchEmptySlots(context_, cache.state, plan_.first_buffer_slot());
  // Work that reads slots ends with it, and so the DMA engine may write to them.
  DSV4_RETURN_IF_ERROR(context_.queue().CallOnStream(kWhat, [&](cudaStream_t stream) {
    const cudaError_t error =
        cudaMemcpyAsync(landing_.data(), cache.state.slot_of, num_bytes, cudaMemcpyDeviceToHost, stream);
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
  }));
  plan_.Begin({static_cast<const int32_t*>(landing_.data()), num_experts});
  known_ = true;
  replayed_ = replayed;
  return {};
}

Status ExpertStream::Bring(const CachedExperts& cache, const StreamedPart& part) {
  if (part.brought.empty()) return {};
  return context_.queue().CallOnStream(kWhat, [&](cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    if (part.buffer >= 0) error = cudaStreamWaitEvent(copies_, read_[static_cast<size_t>(part.buffer)], 0);
    Copies copies(copies_);
    for (const StreamedExpert& brought : part.brought) {
      uint8_t* const slot = cache.state.slots + brought.slot * cache.state.slot_bytes;
      for (const CachedWeight& weight : WeightsOf(cache, brought)) {
        if (error == cudaSuccess)
          error = copies.Add(slot + weight.slot_begin, weight.source, weight.num_bytes);
      }
    }
    if (error == cudaSuccess) error = copies.Queue();
    // Whatever was queued of them: nothing may read or write these slots before.
    const cudaError_t recorded = cudaEventRecord(brought_, copies_);
    const cudaError_t awaited = cudaStreamWaitEvent(stream, brought_, 0);
    if (error != cudaSuccess) return error;
    return recorded == cudaSuccess ? awaited : recorded;
  });
}

Status ExpertStream::RunParts(const CachedExperts& cache, const CachedLayer& layer, DeviceWeight* table,
                              const Multiply& multiply) {
  DSV4_RETURN_IF_ERROR(Look(cache));
  const StreamedLayer streamed = plan_.Next(layer.numbers);
  const auto* const numbers = static_cast<const int32_t*>(layer.on_device.data());
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<int32_t> slots,
                               context_.Stage(std::span<const int32_t>(streamed.slots)));
  LaunchPointExperts(context_, cache.state, numbers, slots.data, static_cast<int>(layer.numbers.size()),
                     table);
  std::vector<CacheJob> stay;
  uint64_t num_bytes = 0;
  for (const StreamedPart& part : streamed.parts) {
    DSV4_RETURN_IF_ERROR(Bring(cache, part));
    DSV4_RETURN_IF_ERROR(multiply(part.begin, part.end));
    if (part.buffer >= 0) {
      DSV4_RETURN_IF_ERROR(context_.queue().CallOnStream(kWhat, [&](cudaStream_t stream) {
        return cudaEventRecord(read_[static_cast<size_t>(part.buffer)], stream);
      }));
    }
    for (const StreamedExpert& brought : part.brought) {
      if (brought.stays) stay.push_back({brought.expert, brought.slot});
      for (const CachedWeight& weight : WeightsOf(cache, brought)) num_bytes += weight.num_bytes;
    }
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<CacheJob> stayed,
                               context_.Stage(std::span<const CacheJob>(stay)));
  LaunchKeepExperts(context_, cache.state, stayed.data, static_cast<int>(stay.size()),
                    {.hits = static_cast<uint64_t>(streamed.num_hits),
                     .misses = static_cast<uint64_t>(streamed.num_brought),
                     .bytes = num_bytes});
  return {};
}

Status ExpertStream::Run(const CachedExperts& cache, const CachedLayer& layer, DeviceWeight* table,
                         const Multiply& multiply) {
  DSV4_RETURN_IF_ERROR(Start());
  const Status status = RunParts(cache, layer, table, multiply);
  // The device may not know of experts that were to stay.
  if (!status.ok()) Forget();
  return status;
}

}  // namespace dsv4::backend::cuda
