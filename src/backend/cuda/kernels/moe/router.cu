// router: a block a token; blocks behind those may do a swiglu.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/numeric/swiglu.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/moe/router.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 256;  // An expert each, of the release's smaller model.
constexpr int kWarps = kThreads / 32;

using Params = RouterParams;

__device__ double Affinity(float logit, float temperature) {
  const double x = static_cast<double>(logit) / static_cast<double>(temperature);
  return sqrt(x > 20.0 ? x : log1p(exp(x)));
}

// Unsigned keys in the order of the scores; NaN counts as the lowest.
__device__ __forceinline__ uint64_t OrderedKey(double score) {
  const double ordered = isnan(score) ? -INFINITY : score + 0.0;  // -0 becomes +0.
  const auto bits = static_cast<uint64_t>(__double_as_longlong(ordered));
  return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
}

// Higher key first, equal keys by lowest index. No candidate: {0, num_experts}, lower than any score's.
struct Candidate {
  uint64_t key;
  int expert;
};
__device__ __forceinline__ bool Better(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.expert < b.expert);
}

// The best of a warp's candidates, for every lane. Most differ in the high half of their keys already.
__device__ __forceinline__ int BestExpert(const Candidate& mine) {
  const auto high = static_cast<uint32_t>(mine.key >> 32);
  bool best = high == __reduce_max_sync(kWholeWarp, high);
  const unsigned equal = __ballot_sync(kWholeWarp, best);
  if (__popc(equal) > 1) {
    const uint32_t low = best ? static_cast<uint32_t>(mine.key) : 0;
    const uint32_t highest = __reduce_max_sync(kWholeWarp, low);
    best = best && low == highest;
    const auto expert = static_cast<uint32_t>(best ? mine.expert : INT32_MAX);
    return static_cast<int>(__reduce_min_sync(kWholeWarp, expert));
  }
  return __shfl_sync(kWholeWarp, mine.expert, __ffs(static_cast<int>(equal)) - 1);
}

// In dynamic shared memory.
struct Shared {
  double* affinities;  // [num_experts]
  uint64_t* keys;      // [num_experts], of the steered scores.
  int* of_warp;        // [kWarps, min(top_k, most experts of a warp)], each warp's best in order.
  int* chosen;         // [top_k]
};

// At most so many experts are a warp's.
constexpr int WarpShare(int num_experts) { return (num_experts + kThreads - 1) / kThreads * 32; }
constexpr int ListLength(int num_experts, int top_k) {
  return top_k < WarpShare(num_experts) ? top_k : WarpShare(num_experts);
}
constexpr size_t SharedBytes(int num_experts, int top_k) {
  return static_cast<size_t>(num_experts) * (sizeof(double) + sizeof(uint64_t)) +
         static_cast<size_t>(kWarps * ListLength(num_experts, top_k) + top_k) * sizeof(int);
}

// Each warp lists its best experts, then one warp, a list a lane, takes the best head of a list until it has enough. Every warp
// calls it with all affinities and keys of its own threads written.
__device__ void ChooseByScore(const Params& p, const Shared& m) {
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int length = ListLength(p.num_experts, p.top_k);
  const Candidate none = {0, p.num_experts};
  // Best of a thread's experts that comes behind `last`.
  const auto next_of_mine = [&](const Candidate& last) {
    Candidate best = none;
#pragma unroll 1
    for (int e = t; e < p.num_experts; e += kThreads) {
      const Candidate candidate = {m.keys[e], e};
      if (Better(last, candidate) && Better(candidate, best)) best = candidate;
    }
    return best;
  };
  Candidate mine = next_of_mine({~uint64_t{0}, -1});
#pragma unroll 1
  for (int k = 0; k < length; ++k) {
    const int best = BestExpert(mine);
    if (t % 32 == 0) m.of_warp[warp * length + k] = best;
    if (best == mine.expert && best < p.num_experts)
      mine = p.num_experts <= kThreads ? none : next_of_mine(mine);
  }
  __syncthreads();
  if (warp != 0) return;
  int taken = 0;
  const auto head = [&] {
    if (t >= kWarps || taken >= length) return none;
    const int expert = m.of_warp[t * length + taken];
    return expert < p.num_experts ? Candidate{m.keys[expert], expert} : none;
  };
  mine = head();
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    const int best = BestExpert(mine);
    if (t == 0) m.chosen[k] = best;
    if (best == mine.expert) {
      ++taken;
      mine = head();
    }
  }
}

// By one warp.
__device__ void ChooseByTable(const Params& p, const Shared& m, int64_t token, int64_t id, Fault* fault) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool exists = id >= 0 && id < p.vocab_size;
  if (!exists && lane == 0) ReportFault(fault, FaultKind::kRouterTokenId, token, 0, id, p.vocab_size);
#pragma unroll 1
  for (int first = 0; first < p.top_k; first += 32) {
    const int k = first + lane;
    int64_t expert = 0;
    if (exists && k < p.top_k) {
      const int64_t place = id * p.top_k + k;
      expert = p.hash_is_i64 ? static_cast<const int64_t*>(p.hash_table)[place]
                             : int64_t{static_cast<const int32_t*>(p.hash_table)[place]};
    }
    const bool wrong = expert < 0 || expert >= p.num_experts;
    const unsigned all_wrong = __ballot_sync(kWholeWarp, wrong);
    // The first of them.
    if (wrong && (all_wrong & ((1U << lane) - 1)) == 0)
      ReportFault(fault, FaultKind::kHashExpert, id, k, expert, p.num_experts);
    if (k < p.top_k) m.chosen[k] = wrong ? 0 : static_cast<int>(expert);
  }
}

// By a block.
__device__ void RouteToken(const Params& p, int64_t token, Fault* fault) {
  extern __shared__ double shared[];
  Shared m = {};
  m.affinities = shared;
  m.keys = reinterpret_cast<uint64_t*>(m.affinities + p.num_experts);
  m.of_warp = reinterpret_cast<int*>(m.keys + p.num_experts);
  m.chosen = m.of_warp + kWarps * ListLength(p.num_experts, p.top_k);
  const int t = static_cast<int>(threadIdx.x);
  const float* const logits = p.logits + token * p.num_experts;
  const int64_t id = p.hash_table == nullptr ? 0 : p.token_ids[token];

#pragma unroll 1
  for (int e = t; e < p.num_experts; e += kThreads) {
    // Both loads in flight before the long way from a logit to its affinity.
    const float logit = logits[e];
    const double bias = p.bias == nullptr ? 0.0 : static_cast<double>(p.bias[e]);
    const double affinity = Affinity(logit, p.temperature);
    m.affinities[e] = affinity;
    m.keys[e] = OrderedKey(affinity + bias);
  }
  if (p.hash_table == nullptr) {
    ChooseByScore(p, m);
  } else {
    if (t < 32) ChooseByTable(p, m, token, id, fault);
    __syncthreads();
  }
  if (t >= 32) return;
  __syncwarp();
  // The bias steers the choice only. Every lane sums, each divides its own.
  double sum = static_cast<double>(p.sum_eps);
#pragma unroll 4
  for (int k = 0; k < p.top_k; ++k) sum += m.affinities[m.chosen[k]];
#pragma unroll 1
  for (int k = t; k < p.top_k; k += 32) {
    const int64_t place = token * p.top_k + k;
    p.indices[place] = m.chosen[k];
    Store(p.weights, place,
          m.affinities[m.chosen[k]] / (p.normalise ? sum : 1.0) * static_cast<double>(p.route_scale));
  }
}

// The bias is a weight: it may be asked for before the kernels before have ended.
__device__ __forceinline__ void BeginRouter(const Params& p) {
  MarkStage(Stage::kBegin);
  LetNextKernelStart();
  const int e = static_cast<int>(threadIdx.x) * 32;  // A line of the cache.
  if (p.bias != nullptr && e < p.num_experts) asm volatile("prefetch.global.L1 [%0];" ::"l"(p.bias + e));
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);
}

__global__ void __launch_bounds__(kThreads) RouterKernel(const Params p, Fault* fault) {
  BeginRouter(p);
  RouteToken(p, blockIdx.x, fault);
  EndStages(StageKernel::kRouter, 0);
}

// Blocks behind those of the tokens do a swiglu that was launched before.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    RouterAndSwigluKernel(const Params p, Fault* fault, const SwigluWork swiglu, int num_tokens) {
  BeginRouter(p);
  const int block = static_cast<int>(blockIdx.x);
  if (block < num_tokens) {
    RouteToken(p, block, fault);
  } else {
    const int64_t i = int64_t{block - num_tokens} * kThreads + threadIdx.x;
    SwigluElement(static_cast<const T*>(swiglu.gate), static_cast<const T*>(swiglu.up), swiglu.row_weights,
                  static_cast<T*>(swiglu.y), i, swiglu.count, swiglu.width, swiglu.limit);
  }
  EndStages(StageKernel::kRouter, 0);
}

}  // namespace

void LaunchRouter(LaunchContext& context, const RouterWork& router, const SwigluWork* swiglu) {
  const Params& params = router.params;
  const size_t shared_bytes = SharedBytes(params.num_experts, params.top_k);
  if (swiglu == nullptr) {
    context.Launch(RouterKernel, static_cast<unsigned>(router.num_tokens), kThreads, shared_bytes, params,
                   context.fault());
    return;
  }
  const auto blocks = static_cast<unsigned>(router.num_tokens + CeilDiv(swiglu->count, kThreads));
  WithElement(swiglu->dtype, [&]<typename T>(T*) {
    context.Launch(RouterAndSwigluKernel<T>, blocks, kThreads, shared_bytes, params, context.fault(), *swiglu,
                   static_cast<int>(router.num_tokens));
  });
}

}  // namespace dsv4::backend::cuda
