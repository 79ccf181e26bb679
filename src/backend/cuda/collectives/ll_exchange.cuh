// Device side of kernels that exchange LL words with other ranks (ll_exchange.h), also as part of other work.
#pragma once

#include "backend/cuda/collectives/ll_exchange.h"

namespace dsv4::backend::cuda {

__device__ __forceinline__ int64_t Nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Not 0, which is a cleared word's.
__device__ __forceinline__ uint32_t MarkOf(uint64_t round) {
  return static_cast<uint32_t>(round) | 0x80000000U;
}

// Two words of four bytes, each with its round, which arrive each as a whole.
__device__ __forceinline__ void StorePacked(std::byte* place, uint2 words, uint32_t mark) {
  const uint64_t low = uint64_t{mark} << 32 | words.x;
  const uint64_t high = uint64_t{mark} << 32 | words.y;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(place), "l"(low), "l"(high) : "memory");
}
__device__ __forceinline__ bool LoadPacked(const std::byte* place, uint32_t mark, uint2& words) {
  uint64_t low;
  uint64_t high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(low), "=l"(high)
               : "l"(place)
               : "memory");
  words = {static_cast<uint32_t>(low), static_cast<uint32_t>(high)};
  return static_cast<uint32_t>(low >> 32) == mark && static_cast<uint32_t>(high >> 32) == mark;
}
__device__ __forceinline__ std::byte* LlSlot(std::byte* mailbox, uint64_t round, int source) {
  return mailbox + source * kSourceBytes + kLlBegin + static_cast<int64_t>(round % 2) * kLlSlotBytes;
}

// Word number `i` of what `source` has sent.
__device__ __forceinline__ std::byte* WordPlace(std::byte* mailbox, uint64_t round, int source, int64_t i) {
  return LlSlot(mailbox, round, source) + i * static_cast<int64_t>(sizeof(uint64_t));
}
__device__ __forceinline__ void PushWord(std::byte* place, uint32_t word, uint32_t mark) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place), "l"(uint64_t{mark} << 32 | word)
               : "memory");
}
__device__ __forceinline__ uint64_t LookAtWord(const std::byte* place) {
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}

// Looks until `missing`, which gives a rank that is waited for, gives -1; false where the wait was ended.
template <typename Missing>
__device__ __forceinline__ bool WaitUntil(const PeerLinks& links, const Missing& missing) {
  int64_t begin = 0;
  for (uint32_t looks = 1;; ++looks) {
    const int source = missing();
    if (source < 0) return true;
    if (looks % 1024 != 0) continue;  // The host's memory is far.
    if (begin == 0) begin = Nanoseconds();
    if (links.words->abort != 0) return false;
    if (Nanoseconds() - begin > links.deadline_ns) {
      links.words->late = static_cast<uint32_t>(source) + 1;
      __threadfence_system();
      return false;
    }
  }
}

// A sum over ranks in rank order, float by float, as part of a kernel. All threads of all blocks have one,
// which begins after WaitForKernelsBefore. Each float is pushed once, here or by the kernel in front, and
// taken once, by one thread. Every block ends its part. Where there is no exchange (links.size is 0), or it
// is broken, sums are what this rank has.
class SumOverRanks {
 public:
  __device__ explicit SumOverRanks(const PeerLinks& links)
      : links_(links),
        round_(links.size > 0 ? links.state->round + 1 : 0),
        active_(links.size > 0 && links.state->broken == 0) {}

  // To all others, this rank's float number `i`, unless that has been done.
  __device__ void Push(int64_t i, float mine) const {
    if (!active_ || links_.pushed != 0) return;
    for (int k = 1; k < links_.size; ++k) {
      const int peer = (links_.rank + k) % links_.size;  // Not all to the same one first.
      PushWord(WordPlace(links_.mailboxes[peer], round_, links_.rank, i), __float_as_uint(mine),
               MarkOf(round_));
    }
  }
  // The sum of all ranks.
  __device__ float Take(int64_t i, float mine) {
    if (!active_ || !whole_) return mine;
    std::byte* const mailbox = links_.mailboxes[links_.rank];
    uint64_t words[kMaxPeers];
    // All at once: each is a way to the second cache and back.
    const auto missing = [&] {
      int source = -1;
#pragma unroll
      for (int r = 0; r < kMaxPeers; ++r) {
        if (r >= links_.size || r == links_.rank) continue;
        words[r] = LookAtWord(WordPlace(mailbox, round_, r, i));
      }
#pragma unroll
      for (int r = 0; r < kMaxPeers; ++r) {
        if (r >= links_.size || r == links_.rank) continue;
        if (static_cast<uint32_t>(words[r] >> 32) != MarkOf(round_)) source = r;
      }
      return source;
    };
    whole_ = WaitUntil(links_, missing);
    if (!whole_) return mine;
    float sum = 0.0F;
#pragma unroll
    for (int r = 0; r < kMaxPeers; ++r) {
      if (r >= links_.size) continue;
      const float part = r == links_.rank ? mine : __uint_as_float(static_cast<uint32_t>(words[r]));
      sum = r == 0 ? part : sum + part;
      if (r != links_.rank) *reinterpret_cast<uint64_t*>(WordPlace(mailbox, round_, r, i)) = 0;
    }
    return sum;
  }
  // The same of floats i to i + kCount - 1, two at a time; `i` is even.
  template <int kCount>
  __device__ void PushRun(int64_t i, const float (&mine)[kCount]) const {
    if (!active_ || links_.pushed != 0) return;
    for (int k = 1; k < links_.size; ++k) {
      const int peer = (links_.rank + k) % links_.size;
      std::byte* const place = WordPlace(links_.mailboxes[peer], round_, links_.rank, i);
#pragma unroll
      for (int j = 0; j < kCount; j += 2) {
        StorePacked(place + j * static_cast<int64_t>(sizeof(uint64_t)),
                    {__float_as_uint(mine[j]), __float_as_uint(mine[j + 1])}, MarkOf(round_));
      }
    }
  }
  template <int kCount>
  __device__ void TakeRun(int64_t i, float (&values)[kCount]) {
    static_assert(kCount % 2 == 0);
    if (!active_) return;
    float sums[kCount] = {};
    for (int r = 0; r < links_.size && whole_; ++r) {
      uint2 words[kCount / 2];
      if (r != links_.rank) {
        std::byte* const place = WordPlace(links_.mailboxes[links_.rank], round_, r, i);
        const auto word_pair = [&](int j) { return place + 2 * j * static_cast<int64_t>(sizeof(uint64_t)); };
        whole_ = WaitUntil(links_, [&] {
          bool there[kCount / 2];
#pragma unroll
          for (int j = 0; j < kCount / 2; ++j) there[j] = LoadPacked(word_pair(j), MarkOf(round_), words[j]);
          bool all = true;
#pragma unroll
          for (int j = 0; j < kCount / 2; ++j) all = all && there[j];
          return all ? -1 : r;
        });
        if (!whole_) break;
#pragma unroll
        for (int j = 0; j < kCount / 2; ++j) *reinterpret_cast<uint4*>(word_pair(j)) = {};
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const uint32_t word = k % 2 == 0 ? words[k / 2].x : words[k / 2].y;
        const float part = r == links_.rank ? values[k] : __uint_as_float(word);
        sums[k] = r == 0 ? part : sums[k] + part;
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = sums[k];
  }
  // Whether everything that this thread took was there.
  __device__ bool whole() const { return whole_; }
  // When no thread of the block takes anything more; `whole`: for all of them. What it gives to thread 0 is
  // for EndRound, which may be a good while later: it is on its way.
  __device__ int LeaveBlock(bool whole) const {
    if (threadIdx.x != 0 || !active_) return 0;
    if (!whole) atomicExch(&links_.state->broken, 1);
    return atomicAdd(&links_.state->num_done, 1);
  }
  __device__ void EndRound(int left_before) const {
    if (threadIdx.x != 0 || !active_) return;
    if (left_before != static_cast<int>(gridDim.x * gridDim.y * gridDim.z) - 1) return;
    links_.state->num_done = 0;
    links_.state->round = round_;
  }

 private:
  const PeerLinks& links_;
  const uint64_t round_;
  const bool active_;
  bool whole_ = true;
};

}  // namespace dsv4::backend::cuda
