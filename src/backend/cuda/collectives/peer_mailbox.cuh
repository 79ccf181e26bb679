// How kernels that exchange by flags find their way in mailboxes (ll_exchange.h), and end.
#pragma once

#include "backend/cuda/collectives/ll_exchange.h"

namespace dsv4::backend::cuda {

// Stores a flag of another rank. A thread that sees the flag sees all that this thread has written before,
// and threads that it has met at a barrier. All that they have read before is read.
__device__ __forceinline__ void StoreRelease(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t LoadAcquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

__device__ __forceinline__ MailboxFlags& FlagsOf(std::byte* mailbox, int source) {
  return *reinterpret_cast<MailboxFlags*>(mailbox + source * kSourceBytes);
}
__device__ __forceinline__ std::byte* Slot(std::byte* mailbox, uint64_t round, int source) {
  return mailbox + source * kSourceBytes + kSlotBegin + static_cast<int64_t>(round % 2) * kSlotBytes;
}

// The exchange is over for this block; the last one ends the round, which all have read.
__device__ __forceinline__ void EndBlock(const PeerLinks& links, uint64_t round, bool stopped) {
  if (stopped) atomicExch(&links.state->broken, 1);
  __threadfence();
  if (atomicAdd(&links.state->num_done, 1) == static_cast<int>(gridDim.x) - 1) {
    links.state->num_done = 0;
    links.state->round = round;
  }
}

// Floats, one or four.
__device__ __forceinline__ void AddTo(uint32_t& sum, uint32_t part) {
  sum = __float_as_uint(__uint_as_float(sum) + __uint_as_float(part));
}
__device__ __forceinline__ void AddTo(uint4& sum, uint4 part) {
  AddTo(sum.x, part.x);
  AddTo(sum.y, part.y);
  AddTo(sum.z, part.z);
  AddTo(sum.w, part.w);
}

}  // namespace dsv4::backend::cuda
