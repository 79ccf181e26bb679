// indexer_candidates and merge_candidates: what ranks choose together that have a part of the entries each.
#include <bit>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/bitonic.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/indexer_scores.h"
#include "backend/cuda/kernels/top_k.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kThreads = 512;
constexpr size_t kMaxSharedBytes = 200 * 1024;

// ops::ScoreOrder, whose contract this is.
__device__ uint32_t DeviceScoreOrder(float score) {
  const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

struct CandidateParams {
  const int32_t* rows;  // [all tokens, top_k]: those chosen of the rows that are here, then -1
  const float* scores;  // [tokens of this launch, max_visible]; null: none was needed
  uint64_t* candidates;
  int64_t first_token;
  int64_t max_visible;
  int64_t top_k;
  // The table says what a query sees as rows that are here: its positions are `shift` further on, for `ratio` times `count`.
  int64_t shift;
  int64_t ratio;
  int64_t shard_index;
  int64_t shard_count;
};

// One block a token.
__global__ void __launch_bounds__(kThreads)
    CandidatesKernel(const __grid_constant__ SequenceTable table, const CandidateParams p, const int padded) {
  extern __shared__ uint64_t list[];
  BeginKernel();
  const int64_t token = p.first_token + blockIdx.x;
  const SequenceRows& sequence = table.Of(token);
  const int64_t position = sequence.first_position - p.shift + token - sequence.token_begin;
  const bool scored = (position + 1) / p.ratio > p.top_k;  // Of what all ranks have.
  for (int i = static_cast<int>(threadIdx.x); i < padded; i += kThreads) {
    const int32_t row = i < p.top_k ? p.rows[token * p.top_k + i] : -1;
    uint64_t candidate = 0;
    if (row >= 0) {
      const float score = scored ? p.scores[blockIdx.x * p.max_visible + row] : 0.0F;
      const auto entry = static_cast<uint32_t>(row * p.shard_count + p.shard_index);
      candidate = uint64_t{DeviceScoreOrder(score)} << 32 | (UINT32_MAX - entry);
    }
    list[i] = candidate;
  }
  __syncthreads();
  BitonicSort<true>(list, padded);
  for (int i = static_cast<int>(threadIdx.x); i < p.top_k; i += kThreads)
    p.candidates[token * p.top_k + i] = list[i];
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

// One block a token. A candidate is chosen if fewer than top_k are greater: those before it in its own list, and of the others'.
__global__ void __launch_bounds__(kThreads)
    MergeCandidatesKernel(const uint64_t* candidates, int32_t* selected, const int num_lists, const int top_k,
                          const int padded) {
  extern __shared__ uint64_t lists[];  // [num_lists, top_k], then the chosen entries [padded]
  __shared__ int num_chosen;
  BeginKernel();
  const int num_candidates = num_lists * top_k;
  auto* const chosen = reinterpret_cast<int32_t*>(lists + num_candidates);
  const int64_t token = blockIdx.x;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < num_candidates; i += kThreads) lists[i] = candidates[token * num_candidates + i];
  for (int i = t; i < padded; i += kThreads) chosen[i] = INT32_MAX;
  if (t == 0) num_chosen = 0;
  __syncthreads();
  for (int i = t; i < num_candidates; i += kThreads) {
    const uint64_t candidate = lists[i];
    if (candidate == 0) continue;  // None.
    int before = i % top_k;
    for (int list = 0; list < num_lists && before < top_k; ++list) {
      if (list != i / top_k) before += CountGreater(lists + list * top_k, top_k, candidate);
    }
    if (before >= top_k) continue;
    const int place = atomicAdd(&num_chosen, 1);
    if (place < top_k)  // Always, unless the lists are not as they should be.
      chosen[place] = static_cast<int32_t>(UINT32_MAX - static_cast<uint32_t>(candidate));
  }
  __syncthreads();
  BitonicSort<false>(chosen, padded);
  for (int i = t; i < top_k; i += kThreads) selected[token * top_k + i] = i < num_chosen ? chosen[i] : -1;
}

}  // namespace

Status IndexerCandidates(CudaContext& context, const ops::IndexerCandidatesArgs& args) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.candidates.shape[1];
  if (num_tokens == 0 || top_k == 0) return {};
  const EntryShard& shard = args.shard;
  // Row j here is entry j * count + index, so of floor((p + 1) / ratio) entries as many rows are here as
  // floor((p + shift + 1) / (ratio * count)): what the kernels for all entries count, told of later positions.
  const int64_t shift = args.ratio * (shard.count - 1 - shard.index);
  SequenceTableBuilder builder;
  int64_t max_entries = 0;  // Of all ranks.
  int64_t max_visible = 0;  // Of those, here.
  for (const ops::IndexerSequence& s : args.sequences) {
    const int64_t entries = (s.first_position + s.num_tokens) / args.ratio;
    const int64_t rows = shard.NumRows(entries);
    builder.Add({.token_begin = s.token_begin,
                 .num_tokens = s.num_tokens,
                 .first_position = s.first_position + shift},
                s.keys, rows);
    if (s.num_tokens == 0) continue;
    max_entries = std::max(max_entries, entries);
    max_visible = std::max(max_visible, rows);
  }
  // As in IndexerSelect: for as many as there may soon be.
  const bool scored = max_entries > top_k;
  max_visible =
      scored
          ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(max_visible, 1024))))
          : top_k;
  const int padded = BitonicSize(top_k);
  if (!CanScore(num_heads, width, max_visible) ||
      static_cast<size_t>(padded) * sizeof(uint64_t) > kMaxSharedBytes) {
    return Unimplemented(
        "op indexer_candidates: q: " + args.q.shape.ToString() + ", " + std::to_string(max_visible) +
        " entries and the best " + std::to_string(top_k) +
        ", this backend takes up to 50000 elements a token, 2097120 entries and 16384 of them");
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const SequenceTable table, builder.Stage(context, width));
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const rows, context.Scratch<int32_t>(num_tokens * top_k));
  constexpr int64_t kMaxScores = int64_t{1} << 24;
  const int64_t tokens_at_once =
      scored ? std::clamp<int64_t>(kMaxScores / max_visible, 1, num_tokens) : num_tokens;
  float* scores = nullptr;
  if (scored) {
    DSV4_ASSIGN_OR_RETURN_STATUS(scores, context.Scratch<float>(tokens_at_once * max_visible));
  }
  for (int64_t begin = 0; begin < num_tokens; begin += tokens_at_once) {
    const auto count = static_cast<unsigned>(std::min(tokens_at_once, num_tokens - begin));
    if (scores != nullptr) {
      ScoreEntries(context, table,
                   {.q = args.q.data,
                    .weights = args.weights.data,
                    .scores = scores,
                    .first_token = begin,
                    .max_visible = max_visible,
                    .top_k = 0,
                    .ratio = args.ratio * shard.count,
                    .num_heads = static_cast<int>(num_heads),
                    .width = static_cast<int>(width)},
                   args.q.dtype, count);
    }
    SelectTopK(context, table,
               {.scores = scores,
                .selected = rows,
                .first_token = begin,
                .max_visible = max_visible,
                .top_k = top_k,
                .ratio = args.ratio * shard.count,
                .rounded = args.q.dtype == DType::kBF16},
               count);
    const CandidateParams params = {.rows = rows,
                                    .scores = scores,
                                    .candidates = args.candidates.as<uint64_t>(),
                                    .first_token = begin,
                                    .max_visible = max_visible,
                                    .top_k = top_k,
                                    .shift = shift,
                                    .ratio = args.ratio,
                                    .shard_index = shard.index,
                                    .shard_count = shard.count};
    context.Launch(CandidatesKernel, count, kThreads, static_cast<size_t>(padded) * sizeof(uint64_t), table,
                   params, padded);
  }
  return {};
}

Status MergeCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args) {
  const int64_t num_tokens = args.candidates.shape[0];
  const int64_t num_candidates = args.candidates.shape[1];
  const int64_t top_k = args.selected.shape[1];
  if (num_tokens == 0 || top_k == 0) return {};
  const int padded = BitonicSize(top_k);
  const size_t shared_bytes =
      static_cast<size_t>(num_candidates) * sizeof(uint64_t) + static_cast<size_t>(padded) * sizeof(int32_t);
  if (shared_bytes > kMaxSharedBytes) {
    return Unimplemented("op merge_candidates: candidates: " + args.candidates.shape.ToString() +
                         ", this backend takes as many as fit into 200 KB with those chosen");
  }
  context.Launch(MergeCandidatesKernel, static_cast<unsigned>(num_tokens), kThreads, shared_bytes,
                 args.candidates.as<const uint64_t>(), args.selected.as<int32_t>(),
                 static_cast<int>(num_candidates / top_k), static_cast<int>(top_k), padded);
  return {};
}

}  // namespace dsv4::backend::cuda
