// The exchange of long pieces by one launch. In ll_exchange.h blocks write, wait and read in turn, and the
// link would stand still meanwhile. Here a block's warps have one task each, and no task waits for another of
// its rank:
//
//   send   writes part after part of this block's bytes into the others' slots
//   take   waits for the others' parts, and copies or adds them up
//   there  raises the block's flag in the others' mailboxes for parts that all warps have sent. Its
//          fence lasts until everything before it has crossed the link, and no writer waits for it
//   taken  the same for parts that all warps have taken
//   watch  looks at the flags that others raise, and tells the others of the block
//
// A round is kPartsOfRound parts, and uses the halves of slots in turn like any other. A launch counts as
// many rounds as it needs, alike on all ranks. Parts are numbered over all launches, round * kPartsOfRound
// on, so flags only grow. In a half a block has a region of its own, which only its namesakes of other ranks
// write or read. So it depends on no other block. It writes to a rank
//
//   the first round   at once: a kernel that begins knows that all have done with that half, as ever;
//   the second        when that rank's first part is there: so its kernel before has ended, which may have
//   read from any address;
//   the others        a part, when that rank has taken the one which was there two rounds before,
//
// and ends when all have taken all rounds but the last, which is what the end of a round says of the one
// before.
#pragma once

#include "backend/cuda/collectives/ll_exchange.h"

namespace dsv4::backend::cuda {

inline constexpr int kPartsOfRound = 2;
inline constexpr int64_t kMaxPartBytes = kSlotBytes / kPartsOfRound / kMaxExchangeBlocks;  // A block.
inline constexpr int kStreamTaskWarps = 8;  // Warps that send, and as many that take.
inline constexpr int kChunkedExchangeThreads = (2 * kStreamTaskWarps + 3) * 32;
// Pieces up to here are better off with one exchange by flags: no thread has a second load to wait for.
inline constexpr int64_t kMaxUnstreamedBytes = int64_t{1} << 20;

// `begin` is 0, `share` a part's bytes of a block. Sums: what is sent to others is not where the sum goes.
struct StreamParams : ExchangeParams {
  int64_t num_parts = 0;
};
static_assert(std::has_unique_object_representations_v<StreamParams>);

// Plan of what `exchange` has, of pieces of up to `most` bytes, more than 0; by these ranks plan, and alike.
// For a launch of `num_blocks`.
StreamParams PlanStream(const ExchangeParams& exchange, int64_t most, int num_blocks);

// As ExchangeKernelFor has it; blocks of kChunkedExchangeThreads, as many as planned for.
using StreamKernel = void (*)(StreamParams);
StreamKernel StreamKernelFor(int unit, bool sum);

}  // namespace dsv4::backend::cuda
