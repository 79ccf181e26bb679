// One-shot exchange. Every rank writes its pieces for the others into their memory, raises a flag there, and
// waits for the flags in its own. A kernel like any other: collected, and replayed in graphs.
//
//   mailbox  one a rank, mapped by all. Every source has, side by side, a flag a block, and two
//            halves of a slot, used in turn. A rank raises the flags of round n + 1 after its kernel of round
//            n has ended. So a rank that sees them may overwrite the words of round n: one wait a round, as
//            in shared memory on the host.
//   round    counted in device memory, so that the kernel's arguments are the same every time
//
// Small pieces take the LL protocol: every four bytes with their round beside them, as one 64-bit store that
// arrives as a whole. So a reader needs no flag, and a writer no fence, which would wait until everything
// before it had crossed the link. LL words have slots of their own, where nothing else is ever written.
// Kernels that sum clear the words that they have read. Others leave them, since no mark comes again. An LL
// word also says that its sender's last kernel has ended. So every rank must have something for every other.
//
// A long piece goes by one launch of many rounds, whose parts are on their way one behind the other
// (chunked_exchange.h).
//
// A wait ends when the flag is there, when the host says so (the abort word, mapped host memory), or after
// the deadline. The last two break the exchange for good: later kernels return at once, and the host finds
// the late word written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/collectives/peer_links.h"

namespace dsv4::backend::cuda {

class DeviceQueue;

inline constexpr int kMaxExchangeBlocks = 128;
inline constexpr int kExchangeThreads = 512;
inline constexpr int64_t kSlotBytes = int64_t{4} << 20;

// Flags of a source, one a block.
struct alignas(256) MailboxFlags {
  uint64_t rounds[kMaxExchangeBlocks] = {};  // The last round whose data is there.
  // Progress of streams (chunked_exchange.h): the source's last part that is there, and this rank's last that
  // the source has taken.
  uint64_t parts_there[kMaxExchangeBlocks] = {};
  uint64_t parts_taken[kMaxExchangeBlocks] = {};
};
inline constexpr int64_t kLlSlotBytes = 2 * kMaxLlRowsBytes;
static_assert(kMaxLlRowsBytes >= kMaxLlSumBytes && kMaxLlRowsBytes >= kMaxLlBytes);
// A source's part of a mailbox: flags, halves of its slot, and of its slot for LL words.
inline constexpr int64_t kSlotBegin = sizeof(MailboxFlags);
inline constexpr int64_t kLlBegin = kSlotBegin + 2 * kSlotBytes;
inline constexpr int64_t kSourceBytes = kLlBegin + 2 * kLlSlotBytes;
inline constexpr int64_t kMailboxBytes = kMaxPeers * kSourceBytes;

// State of one rank's group, in its own device memory.
struct ExchangeState {
  uint64_t round = 0;  // Round of the last exchange that ended.
  int32_t num_done = 0;
  int32_t broken = 0;
};

// Mapped host memory.
struct ExchangeWords {
  uint32_t abort = 0;  // The host's: 1 ends every wait.
  uint32_t late = 0;   // The device's: 1 + the rank that was not there within the deadline.
};

// The kernel that moves `unit` bytes at once (16, 8, 4 or 1; for sums 16 or 4). Every address, stride and
// length is a multiple of `unit`.
ExchangeKernel ExchangeKernelFor(int unit, bool sum);
// The same with LL words, for rows of more than 0 bytes, multiples of 8, and pieces of at most
// kMaxLlRowsBytes. A sender with one `unit` is understood by a receiver with another.
ExchangeKernel LlKernelFor(int unit);

// The LL sum, in place, of up to kMaxLlSumBytes of floats: `routed` and, if it is not null, `added` on every
// rank. Kernels behind it may do it as part of their own work (lowering/fusion_rules.h): a float travels as
// 64 bits at its number, from whichever rank.
struct LlSum {
  PeerLinks links = {};
  const float* routed = nullptr;
  const float* added = nullptr;
  float* sum = nullptr;     // May be one of them.
  void* rounded = nullptr;  // The sum in bf16; null: not wanted.
  int64_t count = 0;
};
static_assert(std::has_unique_object_representations_v<LlSum>);
void LaunchLlSum(DeviceQueue& queue, const LlSum& sum);

}  // namespace dsv4::backend::cuda
