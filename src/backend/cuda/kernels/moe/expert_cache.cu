// Kernels of the expert cache: slots for chosen experts, copies of missing ones over the link, and tables of
// pointers.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/moe/cache_policy.h"
#include "backend/cuda/kernels/moe/expert_cache.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kWarps = kPlanThreads / 32;
// The host's memory is read by few threads at the rate of its link; more of them wait for each other.
constexpr int kFetchThreads = 512;
constexpr unsigned kFetchBlocks = 64;
constexpr int kLoads = 8;  // A thread's, in flight.
constexpr int kPieceBytes = kFetchThreads * kLoads * static_cast<int>(sizeof(uint4));

// A slot that may be taken, by its index; of all the first in order, and of equal ones the lowest slot.
struct Least {
  uint64_t order = ~uint64_t{0};
  int slot = -1;
};

__device__ __forceinline__ Least LesserOf(Least a, Least b) {
  if (b.slot < 0) return a;
  if (a.slot < 0) return b;
  return b.order < a.order || (b.order == a.order && b.slot < a.slot) ? b : a;
}

__device__ Least LeastOfWarp(Least mine) {
  for (int step = 16; step > 0; step /= 2) {
    Least other;
    other.order = __shfl_xor_sync(~0U, mine.order, step);
    other.slot = __shfl_xor_sync(~0U, mine.slot, step);
    mine = LesserOf(mine, other);
  }
  return mine;
}

// Least of a thread's slots: every kPlanThreads-th one that this call has not taken.
__device__ Least LeastOfThread(const ExpertCacheState& cache, uint64_t call) {
  const int first_reserved =
      call < cache.clock->reserved_until ? cache.clock->first_reserved : cache.num_slots;
  Least least;
  for (int slot = static_cast<int>(threadIdx.x); slot < cache.num_slots; slot += kPlanThreads) {
    if (cache.used[slot] == static_cast<uint32_t>(call)) continue;
    const uint64_t key = cache.keys[slot];
    least = LesserOf(least, {slot < first_reserved ? key : CacheOrderOfReserved(key), slot});
  }
  return least;
}

// The table says from now on that an expert is in a slot, or where it stays.
__device__ void Point(const ExpertCacheState& cache, DeviceWeight* table, int place, int expert, int slot) {
  for (int i = 0; i < 3; ++i) {
    const CachedWeight& weight = cache.experts[expert - 1].weights[i];
    const uint8_t* const base =
        slot < 0 ? weight.source : cache.slots + slot * cache.slot_bytes + weight.slot_begin;
    DeviceWeight& entry = table[place * 3 + i];
    entry.data = base;
    if (weight.scale_begin > 0) entry.scale = base + weight.scale_begin;
  }
}

// One thread.
__device__ void Count(const ExpertCacheState& cache, const ExpertCacheWords& more) {
  ExpertCacheWords& words = cache.clock->words;
  words.hits += more.hits;
  words.misses += more.misses;
  words.bytes += more.bytes;
  volatile ExpertCacheWords& seen = *cache.words;
  seen.hits = words.hits;
  seen.misses = words.misses;
  seen.bytes = words.bytes;
}

// One block.
__global__ void __launch_bounds__(kPlanThreads)
    ExpertCachePlanKernel(const __grid_constant__ ExpertCacheState cache,
                          const __grid_constant__ ExpertCacheCall of) {
  BeginKernel();
  __shared__ uint32_t chosen[kMaxCachedPlaces / 32];
  __shared__ int missing[kMaxCachedPlaces];  // Places.
  __shared__ int num_missing;
  __shared__ int num_hits;
  __shared__ Least of_warps[kWarps];
  __shared__ Least victim;
  __shared__ uint64_t age;
  __shared__ uint64_t bytes;
  const int t = static_cast<int>(threadIdx.x);
  const uint64_t call = cache.clock->call + 1;
  if (t < kMaxCachedPlaces / 32) chosen[t] = 0;
  if (t == 0) {
    num_missing = num_hits = 0;
    age = cache.clock->age;
    bytes = 0;
  }
  __syncthreads();
  for (int64_t i = t; i < of.num_choices; i += kPlanThreads) {
    const int32_t place = of.indices[i];
    if (place >= 0 && place < of.num_places) atomicOr(&chosen[place / 32], 1U << place % 32);
  }
  __syncthreads();
  for (int place = t; place < of.num_places; place += kPlanThreads) {
    if ((chosen[place / 32] >> place % 32 & 1U) == 0) continue;
    const int expert = of.experts[place];
    if (expert == 0) continue;
    const int slot = cache.slot_of[expert - 1] - 1;
    if (slot < 0) {
      missing[atomicAdd(&num_missing, 1)] = place;
      continue;
    }
    cache.used[slot] = static_cast<uint32_t>(call);
    if (!of.passing) cache.keys[slot] = CacheKeyOfChosen(cache.keys[slot], age, call);
    Point(cache, of.table, place, expert, slot);
    atomicAdd(&num_hits, 1);
  }
  __syncthreads();
  int num_jobs = 0;
  if (num_missing > 0) {
    Least mine = LeastOfThread(cache, call);
    for (int i = 0; i < num_missing; ++i) {
      const Least of_warp = LeastOfWarp(mine);
      if (t % 32 == 0) of_warps[t / 32] = of_warp;
      __syncthreads();
      if (t < 32) {
        const Least of_all = LeastOfWarp(of_warps[t]);
        if (t == 0) victim = of_all;
      }
      __syncthreads();
      const int slot = victim.slot;
      const int place = missing[i];
      const int expert = of.experts[place];
      if (slot < 0) {  // This call has them all.
        if (t == 0) Point(cache, of.table, place, expert, -1);
      } else if (t == slot % kPlanThreads) {  // Its thread.
        const int before = cache.owners[slot];
        if (before > 0) {
          cache.slot_of[before - 1] = 0;
          age = max(age, CacheRank(cache.keys[slot]));
        }
        cache.owners[slot] = expert;
        cache.slot_of[expert - 1] = slot + 1;
        cache.used[slot] = static_cast<uint32_t>(call);
        cache.keys[slot] = of.passing ? CacheKeyOfPassing(call) : CacheKeyOfNew(age, call);
        cache.jobs[num_jobs] = {expert, slot};
        Point(cache, of.table, place, expert, slot);
        for (const CachedWeight& weight : cache.experts[expert - 1].weights) bytes += weight.num_bytes;
        mine = LeastOfThread(cache, call);
      }
      if (slot >= 0) ++num_jobs;
      __syncthreads();
    }
  }
  if (t != 0) return;
  CacheClock& clock = *cache.clock;
  clock.call = call;
  clock.age = age;
  clock.num_jobs = num_jobs;
  Count(cache, {.hits = static_cast<uint64_t>(num_hits),
                .misses = static_cast<uint64_t>(num_missing),
                .bytes = bytes});
}

__global__ void __launch_bounds__(kPlanThreads)
    ExpertCacheEmptyKernel(const __grid_constant__ ExpertCacheState cache, int first) {
  BeginKernel();
  for (int slot = first + static_cast<int>(threadIdx.x); slot < cache.num_slots; slot += kPlanThreads) {
    const int owner = cache.owners[slot];
    if (owner > 0) cache.slot_of[owner - 1] = 0;
    cache.owners[slot] = 0;
    cache.keys[slot] = 0;
  }
  if (threadIdx.x != 0) return;
  cache.clock->first_reserved = first;
  cache.clock->reserved_until = cache.clock->call + kReservedCalls;
}

__global__ void __launch_bounds__(kPlanThreads)
    ExpertCachePointKernel(const __grid_constant__ ExpertCacheState cache, const int32_t* experts,
                           const int32_t* slots, int num_places, DeviceWeight* table) {
  BeginKernel();
  for (int place = static_cast<int>(threadIdx.x); place < num_places; place += kPlanThreads) {
    if (experts[place] > 0) Point(cache, table, place, experts[place], slots[place]);
  }
}

__global__ void __launch_bounds__(kPlanThreads)
    ExpertCacheKeepKernel(const __grid_constant__ ExpertCacheState cache, const CacheJob* experts,
                          int num_experts, const __grid_constant__ ExpertCacheWords counted) {
  BeginKernel();
  const uint64_t call = cache.clock->call + 1;
  for (int i = static_cast<int>(threadIdx.x); i < num_experts; i += kPlanThreads) {
    const CacheJob job = experts[i];
    cache.owners[job.slot] = job.expert;
    cache.slot_of[job.expert - 1] = job.slot + 1;
    cache.used[job.slot] = static_cast<uint32_t>(call);
    cache.keys[job.slot] = CacheKeyOfPassing(call);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  cache.clock->call = call;
  Count(cache, counted);
}

__device__ __forceinline__ void CopyPiece(const uint8_t* from, uint8_t* to, int num_bytes) {
  const auto* const source = reinterpret_cast<const uint4*>(from);
  auto* const target = reinterpret_cast<uint4*>(to);
  const int count = num_bytes / static_cast<int>(sizeof(uint4));
  const int t = static_cast<int>(threadIdx.x);
  uint4 words[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (t + i * kFetchThreads < count) words[i] = __ldcs(source + t + i * kFetchThreads);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (t + i * kFetchThreads < count) target[t + i * kFetchThreads] = words[i];
  }
}

// Blocks share the pieces of all jobs.
__global__ void __launch_bounds__(kFetchThreads)
    ExpertCacheFetchKernel(const __grid_constant__ ExpertCacheState cache, int pieces_of_expert) {
  BeginKernel();
  const int num_pieces = cache.clock->num_jobs * pieces_of_expert;
  for (int piece = static_cast<int>(blockIdx.x); piece < num_pieces; piece += static_cast<int>(gridDim.x)) {
    const CacheJob job = cache.jobs[piece / pieces_of_expert];
    int rest = piece % pieces_of_expert;
    for (const CachedWeight& weight : cache.experts[job.expert - 1].weights) {
      const int of_weight = static_cast<int>((weight.num_bytes + kPieceBytes - 1) / kPieceBytes);
      if (rest >= of_weight) {
        rest -= of_weight;
        continue;
      }
      const int64_t begin = int64_t{rest} * kPieceBytes;
      CopyPiece(weight.source + begin, cache.slots + job.slot * cache.slot_bytes + weight.slot_begin + begin,
                static_cast<int>(min(static_cast<int64_t>(kPieceBytes), weight.num_bytes - begin)));
      break;
    }
  }
}

}  // namespace

void LaunchBringExperts(LaunchContext& context, const ExpertCacheState& cache, const ExpertCacheCall& call) {
  context.Launch(ExpertCachePlanKernel, 1, kPlanThreads, 0, cache, call);
  // Each weight's last piece may be a part of one.
  const auto pieces = static_cast<int>(cache.slot_bytes / kPieceBytes) + 3;
  context.Launch(ExpertCacheFetchKernel, kFetchBlocks, kFetchThreads, 0, cache, pieces);
}

void LaunchEmptySlots(LaunchContext& context, const ExpertCacheState& cache, int first) {
  context.Launch(ExpertCacheEmptyKernel, 1, kPlanThreads, 0, cache, first);
}

void LaunchPointExperts(LaunchContext& context, const ExpertCacheState& cache, const int32_t* experts,
                        const int32_t* slots, int num_places, DeviceWeight* table) {
  context.Launch(ExpertCachePointKernel, 1, kPlanThreads, 0, cache, experts, slots, num_places, table);
}

void LaunchKeepExperts(LaunchContext& context, const ExpertCacheState& cache, const CacheJob* experts,
                       int num_experts, const ExpertCacheWords& counted) {
  context.Launch(ExpertCacheKeepKernel, 1, kPlanThreads, 0, cache, experts, num_experts, counted);
}

}  // namespace dsv4::backend::cuda
