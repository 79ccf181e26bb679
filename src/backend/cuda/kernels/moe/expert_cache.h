// Experts that lie in the host's memory and are brought to slots in the device's when they are chosen
// (tiers/expert_cache.h). The device finds which of a call's experts are there and which slots the others
// take, and makes the copies. The kernels that multiply find them in their table.
#pragma once

#include <cstdint>

#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// A weight where it stays: the host's memory that the device reads. Data, and from `scale_begin` on scales,
// lie in a slot as they lie here.
struct CachedWeight {
  const uint8_t* source = nullptr;
  uint32_t num_bytes = 0;    // A multiple of 16.
  uint32_t scale_begin = 0;  // 0: none.
  uint32_t slot_begin = 0;   // The slot's.
};
// In the order of ExpertTable: gate, up, down.
struct CachedExpert {
  CachedWeight weights[3];
};

// Counters for the host, in its memory. The numbers grow.
struct ExpertCacheWords {
  uint64_t hits = 0;    // Choices of an expert that were there: of a call one an expert.
  uint64_t misses = 0;  // Misses: those that were not there.
  uint64_t bytes = 0;   // Brought for them.
};

// An expert on its way.
struct CacheJob {
  int32_t expert;
  int32_t slot;
};
struct CacheClock {
  uint64_t call;  // Number of calls.
  uint64_t age;   // The rank of the expert that went last (kernels/moe/cache_policy.h).
  // Slots from `first_reserved` on are reserved while `call` is less than `reserved_until`.
  uint64_t reserved_until;
  int32_t first_reserved;
  ExpertCacheWords words;
  int32_t num_jobs;
};

// The cache of a queue; device memory but for `words`, zero in the beginning. Experts have numbers from 1 on;
// 0 is none.
struct ExpertCacheState {
  uint8_t* slots = nullptr;
  int64_t slot_bytes = 0;
  int num_slots = 0;
  uint64_t* keys = nullptr;         // [num_slots]: kernels/moe/cache_policy.h.
  uint32_t* used = nullptr;         // [num_slots]: the call that used it last, its lowest bits.
  int32_t* owners = nullptr;        // [num_slots]: the expert there.
  int32_t* slot_of = nullptr;       // [experts], the first is number 1: 1 + its slot; 0: none.
  CachedExpert* experts = nullptr;  // [experts]
  CacheJob* jobs = nullptr;         // [num_slots]
  CacheClock* clock = nullptr;
  ExpertCacheWords* words = nullptr;
};

inline constexpr int kMaxCachedPlaces = 4096;  // A table's.

// Experts of a table that a call has chosen.
struct ExpertCacheCall {
  const int32_t* indices;  // [num_choices]: rows of the table; others are left out.
  int64_t num_choices;
  const int32_t* experts;  // [num_places]: cached experts by row; 0: one that is always there.
  int num_places;          // At most kMaxCachedPlaces.
  bool passing;            // It wants nearly all of them (kernels/moe/cache_policy.h).
  DeviceWeight* table;     // [num_places, 3], written: where chosen experts are.
};

// Afterwards all chosen experts are where `table` says: in slots, or those that find none free of other
// chosen ones where they stay.
void LaunchBringExperts(LaunchContext& context, const ExpertCacheState& cache, const ExpertCacheCall& call);

// A pass of many tokens, whose experts the host has brought (tiers/expert_stream.h).
//
// Empties the slots from `first` on, and reserves them for the passes that may follow (kernels/moe/cache_policy.h).
void LaunchEmptySlots(LaunchContext& context, const ExpertCacheState& cache, int first);
// `table` [num_places, 3] says that its cached experts are in these slots, both by row. What is in which slot
// the cache does not learn.
void LaunchPointExperts(LaunchContext& context, const ExpertCacheState& cache, const int32_t* experts,
                        const int32_t* slots, int num_places, DeviceWeight* table);
// These experts are in their slots, which were empty, and give way first. Counts what the layer has asked
// for.
void LaunchKeepExperts(LaunchContext& context, const ExpertCacheState& cache, const CacheJob* experts,
                       int num_experts, const ExpertCacheWords& counted);

}  // namespace dsv4::backend::cuda
