// Kernels of the one-shot exchange between GPUs: flags for whole pieces, and LL words that carry data and
// round together.
#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/collectives/peer_mailbox.cuh"
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/runtime/device_queue.h"

namespace dsv4::backend::cuda {
namespace {

// This block's part of a piece, which a slot has from p.begin on.
struct Share {
  int64_t begin;
  int64_t end;
};
__device__ Share ShareOf(const ExchangeParams& p, int64_t num_bytes) {
  const int64_t begin = min(num_bytes, p.begin + blockIdx.x * p.share);
  return {begin, min(num_bytes, min(begin + p.share, p.begin + kSlotBytes))};
}

// Address of byte `at` of a piece, counted without its gaps.
__device__ std::byte* Place(const ExchangePiece& piece, int64_t at) {
  if (piece.stride == piece.row_bytes) return piece.data + at;
  return piece.data + at / piece.row_bytes * piece.stride + at % piece.row_bytes;
}

// Whether `source` has raised its flag for the round.
__device__ bool WaitForFlag(const ExchangeParams& p, int source, uint64_t round) {
  const uint64_t* const flag = &FlagsOf(p.mailboxes[p.rank], source).rounds[blockIdx.x];
  return WaitUntil(p, [&] { return LoadAcquire(flag) >= round ? -1 : source; });
}

// `slot` is where the piece's first byte would lie, also where that has gone before.
template <typename Unit>
struct Mover {
  static constexpr int64_t kBytes = sizeof(Unit);

  __device__ static void Send(const ExchangePiece& piece, Share share, std::byte* slot) {
    for (int64_t at = share.begin + threadIdx.x * kBytes; at < share.end; at += kExchangeThreads * kBytes)
      *reinterpret_cast<Unit*>(slot + at) = *reinterpret_cast<const Unit*>(Place(piece, at));
  }
  // From a slot, which others have written: not by way of the first cache.
  __device__ static void Take(const std::byte* slot, Share share, const ExchangePiece& piece) {
    for (int64_t at = share.begin + threadIdx.x * kBytes; at < share.end; at += kExchangeThreads * kBytes)
      *reinterpret_cast<Unit*>(Place(piece, at)) = __ldcg(reinterpret_cast<const Unit*>(slot + at));
  }
  __device__ static void Keep(const ExchangePiece& from, Share share, const ExchangePiece& to) {
    if (from.data == to.data) return;  // It is there.
    for (int64_t at = share.begin + threadIdx.x * kBytes; at < share.end; at += kExchangeThreads * kBytes)
      *reinterpret_cast<Unit*>(Place(to, at)) = *reinterpret_cast<const Unit*>(Place(from, at));
  }
};

// Words of floats, one or four a unit.
template <typename Unit>
__device__ void Sum(const ExchangeParams& p, uint64_t round, Share share) {
  const std::byte* const mine = p.send[p.rank].data;
  auto* const out = reinterpret_cast<std::byte*>(p.sum);
  constexpr int64_t kBytes = sizeof(Unit);
  for (int64_t at = share.begin + threadIdx.x * kBytes; at < share.end; at += kExchangeThreads * kBytes) {
    Unit sum = {};
    for (int r = 0; r < p.size; ++r) {
      const Unit part =
          r == p.rank
              ? *reinterpret_cast<const Unit*>(mine + at)
              : __ldcg(reinterpret_cast<const Unit*>(Slot(p.mailboxes[p.rank], round, r) - p.begin + at));
      if (r == 0) {
        sum = part;
      } else {
        AddTo(sum, part);
      }
    }
    *reinterpret_cast<Unit*>(out + at) = sum;
  }
}

template <typename Unit, bool kSum>
__global__ void __launch_bounds__(kExchangeThreads)
    LlExchangeStreamKernel(const __grid_constant__ ExchangeParams p) {
  __shared__ int stopped;
  BeginKernel();
  const int t = static_cast<int>(threadIdx.x);
  const uint64_t round = p.state->round + 1;
  if (t == 0) stopped = p.state->broken;
  __syncthreads();
  if (stopped != 0) return;  // Broken before this kernel began, so all blocks return.

  for (int i = 1; i < p.size; ++i) {
    const int peer = (p.rank + i) % p.size;  // Not all to the same one first.
    const ExchangePiece& piece = p.send[peer];
    Mover<Unit>::Send(piece, ShareOf(p, piece.row_bytes * p.num_rows),
                      Slot(p.mailboxes[peer], round, p.rank) - p.begin);
  }
  __threadfence_system();
  __syncthreads();
  if (t < p.size && t != p.rank) {
    StoreRelease(&FlagsOf(p.mailboxes[t], p.rank).rounds[blockIdx.x], round);
    if (!WaitForFlag(p, t, round)) atomicExch(&stopped, 1);
  }
  __syncthreads();
  if (stopped == 0) {
    if constexpr (kSum) {
      Sum<Unit>(p, round, ShareOf(p, p.send[p.rank].row_bytes));
    } else {
      const int64_t kept = p.send[p.rank].row_bytes * p.num_rows;
      Mover<Unit>::Keep(p.send[p.rank], ShareOf(p, kept), p.receive[p.rank]);
      for (int r = 0; r < p.size; ++r) {
        if (r == p.rank) continue;
        const ExchangePiece& piece = p.receive[r];
        Mover<Unit>::Take(Slot(p.mailboxes[p.rank], round, r) - p.begin,
                          ShareOf(p, piece.row_bytes * p.num_rows), piece);
      }
    }
  }
  __syncthreads();
  if (t == 0) EndBlock(p, round, stopped != 0);
}

constexpr int64_t kPackedUnit = sizeof(uint2);

// Two words of a piece, from and to where they may not be aligned.
template <typename Unit>
__device__ uint2 LoadWords(const std::byte* from) {
  uint2 words = {};
  if constexpr (std::is_same_v<Unit, uint2>) {
    words = *reinterpret_cast<const uint2*>(from);
  } else {
    for (int i = 0; i < 4; ++i) {
      words.x |= static_cast<uint32_t>(from[i]) << (8 * i);
      words.y |= static_cast<uint32_t>(from[i + 4]) << (8 * i);
    }
  }
  return words;
}
template <typename Unit>
__device__ void StoreWords(std::byte* to, uint2 words) {
  if constexpr (std::is_same_v<Unit, uint2>) {
    *reinterpret_cast<uint2*>(to) = words;
  } else {
    for (int i = 0; i < 4; ++i) {
      to[i] = static_cast<std::byte>(words.x >> (8 * i));
      to[i + 4] = static_cast<std::byte>(words.y >> (8 * i));
    }
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kExchangeThreads)
    LlExchangeKernel(const __grid_constant__ ExchangeParams p) {
  BeginKernel();
  const uint64_t round = p.state->round + 1;
  if (__syncthreads_or(p.state->broken) != 0) return;
  const uint32_t mark = MarkOf(round);
  constexpr int64_t kStep = kExchangeThreads * kPackedUnit;
  const int64_t first = threadIdx.x * kPackedUnit;

  for (int i = 1; i < p.size; ++i) {
    const int peer = (p.rank + i) % p.size;  // Not all to the same one first.
    const ExchangePiece& piece = p.send[peer];
    const Share share = ShareOf(p, piece.row_bytes * p.num_rows);
    std::byte* const slot = LlSlot(p.mailboxes[peer], round, p.rank);
    for (int64_t at = share.begin + first; at < share.end; at += kStep)
      StorePacked(slot + 2 * at, LoadWords<Unit>(Place(piece, at)), mark);
  }

  bool whole = true;
  const int64_t kept = p.send[p.rank].row_bytes * p.num_rows;
  Mover<Unit>::Keep(p.send[p.rank], ShareOf(p, kept), p.receive[p.rank]);
  // A unit of every rank's at once: each is a way to the second cache and back.
  const int64_t share_begin = p.begin + blockIdx.x * p.share;
  for (int64_t at = share_begin + first; at < share_begin + p.share && whole; at += kStep) {
    uint2 words[kMaxPeers];
    const auto sends = [&](int r) {
      return r < p.size && r != p.rank && at < p.receive[r].row_bytes * p.num_rows;
    };
    const auto place = [&](int r) { return LlSlot(p.mailboxes[p.rank], round, r) + 2 * at; };
    whole = WaitUntil(p, [&] {
      bool there[kMaxPeers];
#pragma unroll
      for (int r = 0; r < kMaxPeers; ++r) there[r] = !sends(r) || LoadPacked(place(r), mark, words[r]);
      int source = -1;
#pragma unroll
      for (int r = 0; r < kMaxPeers; ++r) {
        if (!there[r]) source = r;
      }
      return source;
    });
    if (!whole) break;
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (!sends(r)) continue;
      *reinterpret_cast<uint4*>(place(r)) = {};
      StoreWords<Unit>(Place(p.receive[r], at), words[r]);
    }
  }
  const int stopped = __syncthreads_or(whole ? 0 : 1);
  if (threadIdx.x == 0) EndBlock(p, round, stopped != 0);
}

// A float a thread.
constexpr int kSumThreads = 256;
__global__ void __launch_bounds__(kSumThreads) LlExchangeSumKernel(const __grid_constant__ LlSum p) {
  BeginKernel();
  SumOverRanks ranks(p.links);
  const int64_t i = blockIdx.x * int64_t{kSumThreads} + threadIdx.x;
  if (i < p.count) {
    const float mine = p.added == nullptr ? p.routed[i] : p.added[i] + p.routed[i];
    ranks.Push(i, mine);
    const float sum = ranks.Take(i, mine);
    p.sum[i] = sum;
    if (p.rounded != nullptr)
      static_cast<Bf16*>(p.rounded)[i] = FromFloat<Bf16>(0.0F + sum);  // As moe_combine has it: no -0.
  }
  ranks.EndRound(ranks.LeaveBlock(__syncthreads_or(ranks.whole() ? 0 : 1) == 0));
}

}  // namespace

ExchangeKernel ExchangeKernelFor(int unit, bool sum) {
  switch (unit) {
    case 16:
      return sum ? LlExchangeStreamKernel<uint4, true> : LlExchangeStreamKernel<uint4, false>;
    case 8:
      return sum ? LlExchangeStreamKernel<uint32_t, true> : LlExchangeStreamKernel<uint2, false>;
    case 4:
      return sum ? LlExchangeStreamKernel<uint32_t, true> : LlExchangeStreamKernel<uint32_t, false>;
    default:
      return LlExchangeStreamKernel<uint8_t, false>;
  }
}

ExchangeKernel LlKernelFor(int unit) {
  return unit >= kPackedUnit ? LlExchangeKernel<uint2> : LlExchangeKernel<uint8_t>;
}

void LaunchLlSum(DeviceQueue& queue, const LlSum& sum) {
  const auto blocks = static_cast<unsigned>((sum.count + kSumThreads - 1) / kSumThreads);
  queue.Launch(LlExchangeSumKernel, blocks, kSumThreads, 0, sum);
}

}  // namespace dsv4::backend::cuda
