// Which cached expert goes when another one wants its slot. Shared by host and device code; a test without a
// device runs it on traces.
//
// The expert that goes is the one whose key is least. A key's upper bits are a rank. An expert begins above
// the rank of the last one that went, and gains one each time it is chosen, up to kMostAhead. So an expert
// that is chosen often stays while many others are chosen once. One that was chosen often long ago goes (LFU
// with dynamic ageing). The lower bits are the number of the call that chose it last: the least recently used
// of equals goes.
//
// A call of many tokens wants nearly every expert of its layer, and the next one those of the next. Experts
// that it brings have no rank, and the last ones go first. A prompt thereby passes through the slots of one
// layer, and leaves the others as they are. Those that it finds keep their keys. Passes that are streamed
// (expert_stream.h) take the last slots besides, and experts in those go. While such passes follow each
// other, the calls between them leave these slots alone as long as another one may go. The next pass would
// send away the experts that they brought there.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DSV4_HOST_DEVICE __host__ __device__
#else
#define DSV4_HOST_DEVICE
#endif

namespace dsv4::backend::cuda {

inline constexpr int kCacheCallBits = 40;
inline constexpr uint64_t kCacheCallMask = (uint64_t{1} << kCacheCallBits) - 1;
inline constexpr uint64_t kMostAhead = 64;

DSV4_HOST_DEVICE constexpr uint64_t CacheRank(uint64_t key) { return key >> kCacheCallBits; }
DSV4_HOST_DEVICE constexpr uint64_t CacheKey(uint64_t rank, uint64_t call) {
  return rank << kCacheCallBits | (call & kCacheCallMask);
}
// `age`: the rank of the last expert that went.
DSV4_HOST_DEVICE constexpr uint64_t CacheKeyOfNew(uint64_t age, uint64_t call) {
  return CacheKey(age + 1, call);
}
DSV4_HOST_DEVICE constexpr uint64_t CacheKeyOfChosen(uint64_t key, uint64_t age, uint64_t call) {
  const uint64_t rank = CacheRank(key) > age ? CacheRank(key) : age;
  return CacheKey(rank < age + kMostAhead ? rank + 1 : rank, call);
}

// Calls for which the buffers of a streamed pass stay reserved behind it: of 43 layers 95 steps.
inline constexpr uint64_t kReservedCalls = 4096;
// Order of a reserved slot: behind all others, and among reserved ones as ever.
DSV4_HOST_DEVICE constexpr uint64_t CacheOrderOfReserved(uint64_t key) { return key | uint64_t{1} << 63; }

// Key for a call of many tokens.
DSV4_HOST_DEVICE constexpr uint64_t CacheKeyOfPassing(uint64_t call) {
  return CacheKey(0, kCacheCallMask - call);
}

}  // namespace dsv4::backend::cuda
