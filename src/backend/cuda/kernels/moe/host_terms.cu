// Kernels that ask the host for its experts' outputs through pinned memory, and that wait for the answer.
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/moe/gemv_experts.h"
#include "backend/cuda/kernels/moe/host_terms.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads >= kMaxTopK);

struct AskParams {
  const uint8_t* x;
  const int32_t* indices;
  const float* weights;
  const int32_t* places;
  int32_t* device_indices;
  uint8_t* to_x;
  int32_t* to_indices;
  float* to_weights;
  tiers::ExchangeWords* words;
  HostTermsState* state;
  Fault* fault;
  int64_t row_bytes;
  int32_t layer;
  int32_t payload;
  int num_experts;
  int num_device;
  int num_host;
  int top_k;
  float limit;
};

// Bytes of a row, all threads of a block; words of 16 bytes where both sides allow them. A row of the host is
// read past the caches.
__device__ __forceinline__ void CopyRow(const uint8_t* from, uint8_t* to, int64_t num_bytes) {
  const bool wide =
      (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | num_bytes) % sizeof(uint4) == 0;
  if (wide) {
    for (int64_t i = threadIdx.x; i < num_bytes / static_cast<int64_t>(sizeof(uint4)); i += kThreads)
      reinterpret_cast<uint4*>(to)[i] = __ldcv(reinterpret_cast<const uint4*>(from) + i);
    return;
  }
  for (int64_t i = threadIdx.x; i < num_bytes; i += kThreads) to[i] = __ldcv(from + i);
}

// One block a row. The last to have written its part tells the host.
__global__ void __launch_bounds__(kThreads) HostTermsAskKernel(const __grid_constant__ AskParams p) {
  BeginKernel();
  const int64_t row = blockIdx.x;
  const int slot = static_cast<int>(threadIdx.x);
  bool mine = false;
  if (slot < p.top_k) {
    const int64_t i = row * p.top_k + slot;
    const int32_t expert = p.indices[i];
    int32_t place = p.num_device;  // For an expert that does not exist: none.
    if (expert < 0 || expert >= p.num_experts) {
      ReportFault(p.fault, FaultKind::kExpertIndex, row, slot, expert, p.num_experts);
    } else {
      place = p.places[expert];
      mine = place < 0;
    }
    p.device_indices[i] = place < 0 ? p.num_device : place;
    p.to_indices[i] = place < 0 ? ~place : p.num_host;
    p.to_weights[i] = p.weights[i];
  }
  const bool any = __syncthreads_or(mine) != 0;
  if (any) CopyRow(p.x + row * p.row_bytes, p.to_x + row * p.row_bytes, p.row_bytes);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (any) atomicOr(&p.state->any, 1U);
  __threadfence();
  if (atomicAdd(&p.state->blocks, 1U) != gridDim.x - 1) return;
  p.state->blocks = 0;
  if (atomicExch(&p.state->any, 0U) == 0) return;
  const uint32_t number = ++p.state->number;
  volatile tiers::ExchangeWords& words = *p.words;
  words.layer = p.layer;
  words.num_rows = static_cast<int32_t>(gridDim.x);
  words.payload = p.payload;
  words.limit = p.limit;
  __threadfence_system();
  words.asked = number;
}

__global__ void __launch_bounds__(kThreads)
    HostTermsPlacesKernel(const int32_t* indices, int64_t count, const int32_t* places, int num_experts,
                          int num_device, int32_t* device_indices) {
  BeginKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int32_t expert = indices[i];
  // One that does not exist is told of by the kernel that asks.
  const int32_t place = expert < 0 || expert >= num_experts ? num_device : places[expert];
  device_indices[i] = place < 0 ? num_device : place;
}

__device__ __forceinline__ int64_t Nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void HostTermsAwaitKernel(const tiers::ExchangeWords* words, const HostTermsState* state,
                                     int32_t layer, int num_rows, int64_t deadline_ns, Fault* fault) {
  BeginKernel();
  const uint32_t number = state->number;
  const volatile tiers::ExchangeWords& seen = *words;
  const int64_t begin = Nanoseconds();
  while (seen.answered != number) {
    // After a request that came too late the rest of the step does not wait as long again.
    if (fault->kind == FaultKind::kHostExpertsLate) return;
    if (Nanoseconds() - begin > deadline_ns) {
      ReportFault(fault, FaultKind::kHostExpertsLate, layer, num_rows, number, deadline_ns / 1'000'000);
      return;
    }
    __nanosleep(100);
  }
  __threadfence_system();
  if (number != 0 && seen.failed == number)
    ReportFault(fault, FaultKind::kHostExpertsFailed, layer, num_rows, number, 0);
}

// One block a choice.
__global__ void __launch_bounds__(kThreads)
    HostTermsTakeKernel(const int32_t* indices, const int32_t* places, int num_experts, const uint8_t* from,
                        uint8_t* terms, int64_t row_bytes) {
  BeginKernel();
  const int64_t i = blockIdx.x;
  const int32_t expert = indices[i];
  if (expert < 0 || expert >= num_experts || places[expert] >= 0) return;
  CopyRow(from + i * row_bytes, terms + i * row_bytes, row_bytes);
}

}  // namespace

void LaunchPlaces(LaunchContext& context, const HostTermsWork& work) {
  const int64_t count = work.num_rows * work.payload.top_k;
  context.Launch(HostTermsPlacesKernel, static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                 work.indices, count, work.places, work.num_experts, work.num_device, work.device_indices);
}

void LaunchAskHost(LaunchContext& context, const HostTermsWork& work) {
  const tiers::Payload& payload = work.payload;
  const AskParams params = {.x = static_cast<const uint8_t*>(work.x),
                            .indices = work.indices,
                            .weights = work.weights,
                            .places = work.places,
                            .device_indices = work.device_indices,
                            .to_x = static_cast<uint8_t*>(payload.x),
                            .to_indices = payload.indices,
                            .to_weights = payload.weights,
                            .words = work.words,
                            .state = work.state,
                            .fault = context.fault(),
                            .row_bytes = payload.dim * ElementBytes(payload.dtype),
                            .layer = work.layer,
                            .payload = payload.index,
                            .num_experts = work.num_experts,
                            .num_device = work.num_device,
                            .num_host = work.num_host,
                            .top_k = static_cast<int>(payload.top_k),
                            .limit = work.limit};
  context.Launch(HostTermsAskKernel, static_cast<unsigned>(work.num_rows), kThreads, 0, params);
}

void LaunchTakeHostTerms(LaunchContext& context, const HostTermsWork& work) {
  const tiers::Payload& payload = work.payload;
  context.Launch(HostTermsAwaitKernel, 1, 1, 0, static_cast<const tiers::ExchangeWords*>(work.words),
                 static_cast<const HostTermsState*>(work.state), work.layer, work.num_rows, work.deadline_ns,
                 context.fault());
  context.Launch(HostTermsTakeKernel, static_cast<unsigned>(work.num_rows * payload.top_k), kThreads, 0,
                 work.indices, work.places, work.num_experts, static_cast<const uint8_t*>(payload.terms),
                 static_cast<uint8_t*>(work.terms), payload.dim * ElementBytes(payload.dtype));
}

}  // namespace dsv4::backend::cuda
