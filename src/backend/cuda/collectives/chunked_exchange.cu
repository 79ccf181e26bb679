// Kernel that exchanges long pieces between GPUs: warps that write parts, warps that take and add, and one
// that raises flags.

#include "backend/cuda/collectives/chunked_exchange.h"
#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/collectives/peer_mailbox.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kMovers = kStreamTaskWarps * 32;  // Threads that send, and that take.
constexpr int kAhead = 4;                // Units that a thread asks for before it stores the first of them.
constexpr int kSumAhead = 2;             // As many of each rank.
constexpr int64_t kPartAlignment = 128;  // Whole lines cross the link.

// A block's, in shared memory: how many parts every warp has done.
struct Progress {
  uint32_t sent[kStreamTaskWarps];
  uint32_t taken[kStreamTaskWarps];
  // By rank, how many parts of this launch its block has sent here, and taken of what is sent there.
  uint32_t there[kMaxPeers];
  uint32_t taken_there[kMaxPeers];
  int stopped;  // A wait was ended: no further wait begins.
};
__device__ bool IsStopped(const Progress& progress) {
  return *const_cast<const volatile int*>(&progress.stopped) != 0;
}
__device__ void Stop(Progress& progress) { *const_cast<volatile int*>(&progress.stopped) = 1; }

__device__ void StoreCount(uint32_t* count, uint32_t value) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(SharedAddress(count)), "r"(value) : "memory");
}
// By a warp: what its lanes have written and read before belongs to what is counted.
__device__ void Count(uint32_t* count, int value) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) StoreCount(count, static_cast<uint32_t>(value));
}
__device__ uint32_t LookAtCount(const uint32_t* count) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(SharedAddress(count)) : "memory");
  return value;
}

// Waits, by a warp, until all others' counts of one kind are at least `num_parts`; whether they are.
__device__ bool Reach(const PeerLinks& links, const uint32_t (&counts)[kMaxPeers], int num_parts,
                      const Progress& progress) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  bool there = lane >= links.size || lane == links.rank;
  while (!there) {
    const bool stopped = IsStopped(progress);
    there = LookAtCount(&counts[lane]) >= static_cast<uint32_t>(num_parts);
    if (stopped) break;
  }
  there = __all_sync(kWholeWarp, there);
  __syncwarp();  // Parts known to be there by one lane are known by all.
  return there;
}

// How many rounds must have been taken before a launch ends: all but the last.
__device__ int PartsTakenAtEnd(const StreamParams& p) {
  return static_cast<int>((p.num_parts - 1) / kPartsOfRound * kPartsOfRound);
}

// By a warp: looks at the flags that others raise, for all of the block. Were all warps to look, those of a
// rank that is early would keep its second cache from what they wait for.
__device__ void WatchFlags(const StreamParams& p, uint64_t first_part, Progress& progress) {
  constexpr int kFirstOfTaken = 16;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = lane % kFirstOfTaken;
  const bool of_taken = lane >= kFirstOfTaken;
  const auto wanted = static_cast<uint32_t>(of_taken ? PartsTakenAtEnd(p) : p.num_parts);
  if (rank >= p.size || rank == p.rank || wanted == 0) return;
  const MailboxFlags& flags = FlagsOf(p.mailboxes[p.rank], rank);
  const uint64_t* const flag = of_taken ? &flags.parts_taken[blockIdx.x] : &flags.parts_there[blockIdx.x];
  uint32_t* const count = of_taken ? &progress.taken_there[rank] : &progress.there[rank];
  uint32_t seen = 0;
  const bool whole = WaitUntil(p, [&] {
    const uint64_t last = LoadAcquire(flag);  // A flag of this launch or of one before.
    const uint32_t now = last < first_part ? 0 : static_cast<uint32_t>(last - first_part) + 1;
    if (now != seen) {
      seen = now;
      StoreCount(count, now);
    }
    return seen >= wanted || IsStopped(progress) ? -1 : rank;
  });
  if (!whole) Stop(progress);
}

// Address of part number `part` of this block's.
__device__ std::byte* PartPlace(std::byte* mailbox, uint64_t part, int source) {
  constexpr int64_t kBytes = kSlotBytes / kPartsOfRound;
  return Slot(mailbox, part / kPartsOfRound, source) + static_cast<int64_t>(part % kPartsOfRound) * kBytes +
         blockIdx.x * kMaxPartBytes;
}

// Range of a piece of `num_bytes` that is this block's as part k of the launch.
struct Stretch {
  int64_t begin;
  int size;
};
__device__ Stretch StretchOf(const StreamParams& p, int64_t num_bytes, int k) {
  const int64_t begin = min(num_bytes, (static_cast<int64_t>(k) * gridDim.x + blockIdx.x) * p.share);
  return {begin, static_cast<int>(min(p.share, num_bytes - begin))};
}

// The words of a piece, counted without its gaps, that are a thread's: every kStep bytes from `at` on,
// without a division each.
template <int kStep>
class Places {
 public:
  __device__ Places(const ExchangePiece& piece, int64_t at) : place_(piece.data + at) {
    if (piece.stride == piece.row_bytes || piece.row_bytes == 0) return;
    const auto row_bytes = static_cast<uint64_t>(piece.row_bytes);
    const uint64_t row = static_cast<uint64_t>(at) / row_bytes;
    const uint32_t rows_of_step = row_bytes > kStep ? 0 : kStep / static_cast<uint32_t>(row_bytes);
    gap_ = piece.stride - piece.row_bytes;
    place_ += static_cast<int64_t>(row) * gap_;
    step_ = kStep + rows_of_step * gap_;
    // No stretch gets to the end of a row that is longer than this.
    constexpr int64_t kLongRow = int64_t{1} << 30;
    row_bytes_ = static_cast<int>(min(kLongRow, piece.row_bytes));
    left_ = static_cast<int>(min(kLongRow, piece.row_bytes - (at - static_cast<int64_t>(row * row_bytes))));
    columns_of_step_ = kStep - static_cast<int>(rows_of_step) * row_bytes_;
  }
  __device__ std::byte* Next() {
    std::byte* const place = place_;
    place_ += step_;
    left_ -= columns_of_step_;
    if (left_ <= 0) {
      left_ += row_bytes_;
      place_ += gap_;
    }
    return place;
  }

 private:
  std::byte* place_;
  int64_t step_ = kStep;
  int64_t gap_ = 0;          // Between rows; 0 for a piece without.
  int left_ = 1;             // Bytes to the end of the row.
  int columns_of_step_ = 0;  // Less than a row.
  int row_bytes_ = 0;
};

template <typename Unit>
struct Stream {
  static constexpr int kBytes = sizeof(Unit);
  static constexpr int kStep = kMovers * kBytes;
  using PlacesOfPiece = Places<kStep>;

  __device__ static int Offset() { return static_cast<int>(threadIdx.x) % kMovers * kBytes; }

  // Loads from a slot that others have written: not by way of the first cache.
  __device__ static Unit FromSlot(const std::byte* place) {
    return __ldcg(reinterpret_cast<const Unit*>(place));
  }

  __device__ static void Send(const StreamParams& p, uint64_t first_part, Progress& progress) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int num_parts = static_cast<int>(p.num_parts);
    for (int k = 0; k < num_parts; ++k) {
      const uint64_t part = first_part + static_cast<uint64_t>(k);
      bool has_room = k < 2 * kPartsOfRound && k != kPartsOfRound;
      for (int i = 1; i < p.size; ++i) {
        const int peer = (p.rank + i) % p.size;  // Not all to the same one first.
        const ExchangePiece& piece = p.send[peer];
        const Stretch stretch = StretchOf(p, piece.row_bytes * p.num_rows, k);
        PlacesOfPiece from(piece, stretch.begin + Offset());
        std::byte* slot = PartPlace(p.mailboxes[peer], part, p.rank) + Offset();
        // The same for all threads, which wait together.
        for (int before = 0; before == 0 || before < stretch.size; before += kAhead * kStep) {
          const int left = stretch.size - before;
          Unit units[kAhead];
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            const std::byte* const place = from.Next();
            if (Offset() + j * kStep < left) units[j] = *reinterpret_cast<const Unit*>(place);
          }
          if (!has_room) {
            has_room = k == kPartsOfRound
                           ? Reach(p, progress.there, 1, progress)
                           : Reach(p, progress.taken_there, k + 1 - 2 * kPartsOfRound, progress);
            if (!has_room) return;
          }
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            if (Offset() + j * kStep < left) *reinterpret_cast<Unit*>(slot + j * kStep) = units[j];
          }
          slot += kAhead * kStep;
        }
      }
      Count(&progress.sent[warp], k + 1);
    }
    Reach(p, progress.taken_there, PartsTakenAtEnd(p), progress);
  }

  __device__ static void TakeCopies(const StreamParams& p, uint64_t first_part, Progress& progress) {
    std::byte* const mailbox = p.mailboxes[p.rank];
    const int warp = static_cast<int>(threadIdx.x) / 32 - kStreamTaskWarps;
    const int num_parts = static_cast<int>(p.num_parts);
    for (int k = 0; k < num_parts; ++k) {
      const uint64_t part = first_part + static_cast<uint64_t>(k);
      const auto copy = [&](const Stretch& stretch, const ExchangePiece& to, const auto& load) {
        PlacesOfPiece places(to, stretch.begin + Offset());
        for (int at = Offset(); at < stretch.size; at += kAhead * kStep) {
          Unit units[kAhead];
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            if (at + j * kStep < stretch.size) units[j] = load(at + j * kStep);
          }
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            std::byte* const place = places.Next();
            if (at + j * kStep < stretch.size) *reinterpret_cast<Unit*>(place) = units[j];
          }
        }
      };
      // This rank's own, while the others' is on its way.
      const ExchangePiece& own = p.send[p.rank];
      if (own.data != p.receive[p.rank].data) {
        const Stretch stretch = StretchOf(p, own.row_bytes * p.num_rows, k);
        PlacesOfPiece from(own, stretch.begin + Offset());
        copy(stretch, p.receive[p.rank], [&](int) { return *reinterpret_cast<const Unit*>(from.Next()); });
      }
      if (!Reach(p, progress.there, k + 1, progress)) return;
      for (int i = 1; i < p.size; ++i) {
        const int source = (p.rank + i) % p.size;
        const ExchangePiece& piece = p.receive[source];
        const std::byte* const slot = PartPlace(mailbox, part, source);
        copy(StretchOf(p, piece.row_bytes * p.num_rows, k), piece,
             [&](int at) { return FromSlot(slot + at); });
      }
      Count(&progress.taken[warp], k + 1);
    }
  }

  // Sums of floats, one or four a unit.
  __device__ static void TakeSums(const StreamParams& p, uint64_t first_part, Progress& progress) {
    std::byte* const mailbox = p.mailboxes[p.rank];
    const int warp = static_cast<int>(threadIdx.x) / 32 - kStreamTaskWarps;
    const int num_parts = static_cast<int>(p.num_parts);
    for (int k = 0; k < num_parts; ++k) {
      const uint64_t part = first_part + static_cast<uint64_t>(k);
      const Stretch stretch = StretchOf(p, p.send[p.rank].row_bytes, k);
      const std::byte* const mine = p.send[p.rank].data + stretch.begin;
      std::byte* const out = reinterpret_cast<std::byte*>(p.sum) + stretch.begin;
      bool is_there = false;
      for (int before = 0; before == 0 || before < stretch.size; before += kSumAhead * kStep) {
        const int at = before + Offset();
        Unit own[kSumAhead];
#pragma unroll
        for (int j = 0; j < kSumAhead; ++j) {
          if (at + j * kStep < stretch.size) own[j] = *reinterpret_cast<const Unit*>(mine + at + j * kStep);
        }
        if (!is_there && !Reach(p, progress.there, k + 1, progress)) return;
        is_there = true;
        Unit sums[kSumAhead];
        for (int r = 0; r < p.size; ++r) {
          const std::byte* const slot = PartPlace(mailbox, part, r);
          Unit terms[kSumAhead];
#pragma unroll
          for (int j = 0; j < kSumAhead; ++j) {
            terms[j] = own[j];
            if (r != p.rank && at + j * kStep < stretch.size) terms[j] = FromSlot(slot + at + j * kStep);
          }
#pragma unroll
          for (int j = 0; j < kSumAhead; ++j) {
            if (r == 0) {
              sums[j] = terms[j];
            } else {
              AddTo(sums[j], terms[j]);
            }
          }
        }
#pragma unroll
        for (int j = 0; j < kSumAhead; ++j) {
          if (at + j * kStep < stretch.size) *reinterpret_cast<Unit*>(out + at + j * kStep) = sums[j];
        }
      }
      Count(&progress.taken[warp], k + 1);
    }
  }
};

// A warp raises a flag in every other mailbox for parts that all warps have done. It raises several at once
// where they were faster than the fence.
__device__ void RaiseFlags(const StreamParams& p, uint64_t first_part, const uint32_t* done_of_warps,
                           uint64_t (MailboxFlags::*flags)[kMaxExchangeBlocks], const Progress& progress) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint64_t* flag = nullptr;
  if (lane < p.size && lane != p.rank) flag = &(FlagsOf(p.mailboxes[lane], p.rank).*flags)[blockIdx.x];
  const auto num_parts = static_cast<uint32_t>(p.num_parts);
  for (uint32_t raised = 0; raised < num_parts;) {
    const bool stopped = IsStopped(progress);
    const uint32_t done = __reduce_min_sync(
        kWholeWarp, lane < kStreamTaskWarps ? LookAtCount(&done_of_warps[lane]) : num_parts);
    __syncwarp();  // Parts seen to be done by one lane are seen by all.
    if (done > raised) {
      raised = done;
      if (flag != nullptr) StoreRelease(flag, first_part + done - 1);
    } else if (__any_sync(kWholeWarp, stopped)) {
      return;
    }
  }
}

template <typename Unit, bool kSum>
__global__ void __launch_bounds__(kChunkedExchangeThreads, 1)
    ChunkedExchangeKernel(const __grid_constant__ StreamParams p) {
  __shared__ Progress progress;
  __shared__ int broken;
  BeginKernel();
  const int t = static_cast<int>(threadIdx.x);
  const uint64_t round = p.state->round + 1;
  if (t < kStreamTaskWarps) {
    progress.sent[t] = 0;
    progress.taken[t] = 0;
  }
  if (t < kMaxPeers) {
    progress.there[t] = 0;
    progress.taken_there[t] = 0;
  }
  if (t == 0) {
    progress.stopped = 0;
    broken = p.state->broken;
  }
  __syncthreads();
  if (broken != 0) return;  // Before this kernel began, so all blocks return.

  const uint64_t first_part = round * kPartsOfRound;
  const int warp = t / 32;
  if (warp < kStreamTaskWarps) {
    Stream<Unit>::Send(p, first_part, progress);
  } else if (warp < 2 * kStreamTaskWarps) {
    if constexpr (kSum) {
      Stream<Unit>::TakeSums(p, first_part, progress);
    } else {
      Stream<Unit>::TakeCopies(p, first_part, progress);
    }
  } else if (warp == 2 * kStreamTaskWarps) {
    RaiseFlags(p, first_part, progress.sent, &MailboxFlags::parts_there, progress);
  } else if (warp == 2 * kStreamTaskWarps + 1) {
    RaiseFlags(p, first_part, progress.taken, &MailboxFlags::parts_taken, progress);
  } else {
    WatchFlags(p, first_part, progress);
  }
  __syncthreads();
  if (t == 0)
    EndBlock(p, round + static_cast<uint64_t>((p.num_parts - 1) / kPartsOfRound), progress.stopped != 0);
}

}  // namespace

StreamParams PlanStream(const ExchangeParams& exchange, int64_t most, int num_blocks) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  StreamParams p = {exchange};
  p.num_parts = up(most, num_blocks * kMaxPartBytes);
  p.share = up(up(most, p.num_parts * num_blocks), kPartAlignment) * kPartAlignment;
  return p;
}

StreamKernel StreamKernelFor(int unit, bool sum) {
  switch (unit) {
    case 16:
      return sum ? ChunkedExchangeKernel<uint4, true> : ChunkedExchangeKernel<uint4, false>;
    case 8:
      return sum ? ChunkedExchangeKernel<uint32_t, true> : ChunkedExchangeKernel<uint2, false>;
    case 4:
      return sum ? ChunkedExchangeKernel<uint32_t, true> : ChunkedExchangeKernel<uint32_t, false>;
    default:
      return ChunkedExchangeKernel<uint8_t, false>;
  }
}

}  // namespace dsv4::backend::cuda
