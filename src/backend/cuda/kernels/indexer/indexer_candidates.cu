// indexer_candidates and merge_candidates: what ranks choose together that have a part of the entries each.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/indexer/indexer_candidates.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 512;

// ops::ScoreOrder, whose contract this is.
__device__ uint32_t DeviceScoreOrder(float score) {
  const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Grid: parts of the list, tokens. Candidates are put in order by counting, for each, those that are greater;
// a block counts for its part.
constexpr int kParts = 8;
constexpr int kLanes = 8;  // Threads that count for one candidate.
__global__ void __launch_bounds__(kThreads)
    IndexerCandidatesKernel(const __grid_constant__ SequenceTable table, const CandidateParams p) {
  extern __shared__ __align__(16) uint64_t list[];  // List of an even length.
  __shared__ int count;
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.y;
  const SequenceRows& sequence = table.Of(token);
  const int64_t position = sequence.first_position - p.shift + token - sequence.token_begin;
  const bool scored = (position + 1) / p.ratio > p.top_k;  // Positions over all ranks.
  uint64_t* const candidates = p.candidates + token * p.top_k;
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) count = 0;
  __syncthreads();
  for (int i = t; i < p.top_k + p.top_k % 2; i += kThreads) {
    const int32_t row = i < p.top_k ? p.rows[token * p.top_k + i] : -1;
    uint64_t candidate = 0;
    if (row >= 0) {
      const float score = scored ? p.scores[blockIdx.y * p.max_visible + row] : 0.0F;
      const auto entry = static_cast<uint32_t>(row * p.shard_count + p.shard_index);
      candidate = uint64_t{DeviceScoreOrder(score)} << 32 | (UINT32_MAX - entry);
      atomicMax(&count, i + 1);
    }
    list[i] = candidate;
  }
  __syncthreads();
  const auto part = static_cast<int>(CeilDiv(p.top_k, int64_t{kParts}));
  const int begin = static_cast<int>(blockIdx.x) * part;
  const int end = static_cast<int>(min(p.top_k, int64_t{begin} + part));
  // All lanes of a candidate, and all warps, go around together.
  for (int base = begin; base < end; base += kThreads / kLanes) {
    const int i = base + t / kLanes;
    const uint64_t mine = i < end ? list[i] : 0;
    int greater = 0;
    for (int other = t % kLanes * 2; scored && other < count; other += 2 * kLanes) {
      const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(list + other);
      greater += (two.x > mine ? 1 : 0) + (two.y > mine ? 1 : 0);
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      greater += __shfl_xor_sync(kWholeWarp, greater, offset);
    if (i >= end || t % kLanes != 0) continue;
    // Absent ones are behind all rows that there are, and without scores rows are in order.
    candidates[mine == 0 || !scored ? i : greater] = mine;
  }
}

// How many of a descending list are greater than `value`.
__device__ int CountGreater(const uint64_t* list, int count, uint64_t value) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2;
    if (list[middle] > value) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

constexpr int kMergeThreads = 1024;
// A bit for each of so many entries at a time puts those that are chosen in order.
constexpr int kWords = kMergeWords;
constexpr int64_t kWindow = int64_t{kWords} * 32;

// One block a token. A candidate is chosen if fewer than top_k are greater: those before it in its own list,
// and of the others'.
__global__ void __launch_bounds__(kMergeThreads)
    IndexerCandidatesMergeKernel(const uint64_t* candidates, int32_t* all_selected, const int num_lists,
                                 const int top_k) {
  extern __shared__ __align__(16) uint64_t lists[];  // [num_lists, top_k], then bits and those chosen
  __shared__ int in_warp[kMergeThreads / 32];
  __shared__ int num_chosen;
  __shared__ int past_chosen;
  BeginKernel();
  const int num_candidates = num_lists * top_k;
  auto* const bits = reinterpret_cast<uint32_t*>(lists + num_candidates);
  auto* const chosen = reinterpret_cast<int32_t*>(bits + kWords);
  const int64_t token = blockIdx.x;
  int32_t* const selected = all_selected + token * top_k;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < num_candidates; i += kMergeThreads) lists[i] = candidates[token * num_candidates + i];
  if (t == 0) num_chosen = 0;
  if (t == 0) past_chosen = 0;
  __syncthreads();
  for (int i = t; i < num_candidates; i += kMergeThreads) {
    const uint64_t candidate = lists[i];
    if (candidate == 0) continue;  // None.
    int before = i % top_k;
    for (int list = 0; list < num_lists && before < top_k; ++list) {
      if (list != i / top_k) before += CountGreater(lists + list * top_k, top_k, candidate);
    }
    if (before >= top_k) continue;
    const auto entry = static_cast<int32_t>(UINT32_MAX - static_cast<uint32_t>(candidate));
    const int place = atomicAdd(&num_chosen, 1);
    if (place >= top_k || entry < 0) continue;  // Never, unless the lists are not as they should be.
    chosen[place] = entry;
    atomicMax(&past_chosen, entry + 1);
  }
  __syncthreads();
  const int count = min(num_chosen, top_k);
  int written = 0;
  for (int64_t window = 0; window < past_chosen; window += kWindow) {
    const auto num_words = static_cast<int>(min(int64_t{kWords}, CeilDiv(past_chosen - window, int64_t{32})));
    for (int i = t; i < num_words; i += kMergeThreads) bits[i] = 0;
    __syncthreads();
    for (int i = t; i < count; i += kMergeThreads) {
      const int64_t bit = chosen[i] - window;
      if (0 <= bit && bit < kWindow) atomicOr(&bits[bit / 32], 1U << bit % 32);
    }
    __syncthreads();
    // Each thread some words that follow each other, behind those of the threads before it.
    const int words_of_thread = CeilDiv(num_words, kMergeThreads);
    const int first = min(num_words, t * words_of_thread);
    const int last = min(num_words, first + words_of_thread);
    int own = 0;
    for (int i = first; i < last; ++i) own += __popc(bits[i]);
    int up_to = own;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kWholeWarp, up_to, offset);
      if (t % 32 >= offset) up_to += other;
    }
    if (t % 32 == 31) in_warp[t / 32] = up_to;
    __syncthreads();
    int place = written + up_to - own;
    for (int warp = 0; warp < kMergeThreads / 32; ++warp) {
      if (warp < t / 32) place += in_warp[warp];
      written += in_warp[warp];
    }
    for (int i = first; i < last; ++i) {
      for (uint32_t word = bits[i]; word != 0; word &= word - 1)
        selected[place++] = static_cast<int32_t>(window + i * 32 + __ffs(static_cast<int>(word)) - 1);
    }
    __syncthreads();
  }
  for (int i = written + t; i < top_k; i += kMergeThreads) selected[i] = -1;
}

}  // namespace

void LaunchIndexerCandidates(LaunchContext& context, const SequenceTable& table,
                             const CandidateParams& params, unsigned num_tokens) {
  context.Launch(IndexerCandidatesKernel, dim3(kParts, num_tokens), kThreads,
                 CandidatesSharedBytes(params.top_k), table, params);
}

void LaunchMergeCandidates(LaunchContext& context, const ops::MergeCandidatesArgs& args) {
  const int64_t num_candidates = args.candidates.shape[1];
  const int64_t top_k = args.selected.shape[1];
  context.Launch(IndexerCandidatesMergeKernel, static_cast<unsigned>(args.candidates.shape[0]), kMergeThreads,
                 MergeSharedBytes(num_candidates, top_k), args.candidates.as<const uint64_t>(),
                 args.selected.as<int32_t>(), static_cast<int>(num_candidates / top_k),
                 static_cast<int>(top_k));
}

}  // namespace dsv4::backend::cuda
