// Compressors in row_tracks.cu: the entry that a block pools in registers, and the rows that go to the rings. What is where comes from the
// host; remainders of positions are taken there.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/cp_async.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/rows/row_registers.cuh"
#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

// The last element of an ascending list that is at most `number`; element(i) gives the list, and its first
// is. All threads of the block look, one element each. One after the other the lists of many sequences would
// take longer than the pooling itself.
template <typename Element>
__device__ __forceinline__ int64_t LastUpTo(int64_t size, int64_t number, Element&& element) {
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += blockDim.x) {
    const int64_t i = first + threadIdx.x;
    count += __syncthreads_count(i < size && element(i) <= number);
  }
  return count - 1;
}

// The raw rows that an entry is made of. With overlap they are those of the block in front, whose first
// channels it takes, then the block's own.
class EntryTokens {
 public:
  // Tokens of entry `entry` of the step, a block's.
  __device__ EntryTokens(const DeviceArray<CompressorHistory>& histories, int64_t entry, int ratio,
                         bool overlap) {
    sequence_ =
        histories[LastUpTo(histories.size, entry, [&](int64_t i) { return histories[i].first_entry; })];
    const int block = static_cast<int>(entry - sequence_.first_entry);
    ratio_ = ratio;
    num_previous_ = overlap && (sequence_.has_previous != 0 || block > 0) ? ratio : 0;
    first_row_ = block * ratio - sequence_.phase - num_previous_;
  }

  __device__ int count() const { return num_previous_ + ratio_; }
  __device__ bool IsPrevious(int token) const { return token < num_previous_; }
  // Whether the step brings it, so that its scores still lack ape; the others are in the rings.
  __device__ bool IsNew(int token) const { return first_row_ + token >= 0; }
  __device__ int RowOfApe(int token) const { return IsPrevious(token) ? token : token - num_previous_; }

  // `values`, `scores`: the step's, in rows of `width`.
  __device__ const float* Values(const float* values, int64_t width, int token) const {
    return IsNew(token)
               ? values + (sequence_.token_begin + first_row_ + token) * width
               : sequence_.values + Slot(sequence_.value_slot, sequence_.value_capacity, token) * width;
  }
  __device__ const float* Scores(const float* scores, int64_t width, int token) const {
    return IsNew(token)
               ? scores + (sequence_.token_begin + first_row_ + token) * width
               : sequence_.scores + Slot(sequence_.score_slot, sequence_.score_capacity, token) * width;
  }

 private:
  // Slot of a token before the step's, at most `capacity` of them.
  __device__ int64_t Slot(int slot, int capacity, int token) const {
    const int i = slot + first_row_ + token;
    return i < 0 ? i + capacity : i;
  }

  CompressorHistory sequence_;
  int ratio_;
  int num_previous_;
  int first_row_;  // Counted from the sequence's first of this step.
};

// Entries of few tokens (kMaxPooledInRows), pooled by a block as a RegisterRow has its columns. All that they are made of is brought to
// shared memory at once, by 16 bytes. Rows are a multiple of four columns wide.
constexpr size_t PooledRowBytes(int64_t width) {
  return 3 * kMaxPooledInRows * static_cast<size_t>(width) * sizeof(float);
}
static_assert(kMaxPooledWidth == kMaxRegisterRow);
class PooledRow {
 public:
  // kept: PooledRowBytes.
  __device__ PooledRow(const RowsOperand& rows, const RowStep& step, int64_t entry, float* kept)
      : rows_(rows),
        step_(step),
        tokens_(step.histories, entry, step.num_columns, step.group != 0),
        scores_(kept),
        values_(kept + kMaxPooledInRows * width()),
        ape_(kept + 2 * kMaxPooledInRows * width()) {}

  // The first of the histories, which the constructor waits for.
  __device__ static void Prefetch(const RowStep& step) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(&step.histories[0]));
  }

  // Weights, before the kernels in front have ended.
  __device__ void AskForApe() const {
    if (step_.weight == nullptr) return;
    ForQuarters([&](int t, int column, int place) {
      if (tokens_.IsNew(t)) Ask(ape_ + place, step_.weight + tokens_.RowOfApe(t) * rows_.in_stride + column);
    });
  }

  // The entry, as a RegisterRow has it.
  __device__ float4 Pool() const {
    const auto* const values = static_cast<const float*>(rows_.in);
    ForQuarters([&](int t, int column, int place) {
      Ask(scores_ + place, tokens_.Scores(step_.scores, rows_.in_stride, t) + column);
      Ask(values_ + place, tokens_.Values(values, rows_.in_stride, t) + column);
    });
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();  // A thread reads what others have brought.
    RegisterRow::Values max;
#pragma unroll
    for (float& m : max) m = -INFINITY;
#pragma unroll 1
    for (int t = 0; t < tokens_.count(); ++t) {
#pragma unroll
      for (int k = 0; k < kRegisterColumns; ++k) {
        const float score = Score(t, k);
        max[k] = max[k] < score ? score : max[k];
      }
    }
    double weighted[kRegisterColumns] = {};
    double total[kRegisterColumns] = {};
#pragma unroll 1
    for (int t = 0; t < tokens_.count(); ++t) {
#pragma unroll
      for (int k = 0; k < kRegisterColumns; ++k) {
        const double weight = exp(static_cast<double>(Score(t, k)) - static_cast<double>(max[k]));
        weighted[k] += weight * static_cast<double>(values_[t * width() + Column(k)]);
        total[k] += weight;
      }
    }
    RegisterRow::Values pooled;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      pooled[k] = RegisterRow::Column(k) < width() ? RowValue(weighted[k] / total[k], true) : 0.0F;
    return make_float4(pooled[0], pooled[1], pooled[2], pooled[3]);
  }

 private:
  __device__ int width() const { return static_cast<int>(rows_.width); }
  // Indices outside the row become its last.
  __device__ int Column(int k) const { return min(RegisterRow::Column(k), width() - 1); }

  // Calls visit(token, column, place) for columns of the tokens' rows, four at a time and all threads side by
  // side. Columns begin at the first channel that the entry takes; `place` is an index into [tokens, width].
  template <typename Visit>
  __device__ __forceinline__ void ForQuarters(Visit&& visit) const {
    const int quarters = width() / 4;
    int token = 0;
    int quarter = static_cast<int>(threadIdx.x);
#pragma unroll 1
    while (true) {
      for (; quarter >= quarters; quarter -= quarters) ++token;
      if (token >= tokens_.count()) return;
      const int own = step_.group != 0 && !tokens_.IsPrevious(token) ? width() : 0;
      visit(token, own + quarter * 4, token * width() + quarter * 4);
      quarter += RegisterRow::kThreads;
    }
  }
  // Four floats.
  __device__ static void Ask(float* kept, const float* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return CopyAsync(kept, from);
#pragma unroll 1
    for (int i = 0; i < 4; ++i) CopyWordAsync(kept + i, from + i);
  }
  // An fp32 sum, as it is in the rings: an entry must not depend on where the chunks were cut.
  __device__ float Score(int token, int k) const {
    const int i = token * width() + Column(k);
    return tokens_.IsNew(token) && step_.weight != nullptr ? scores_[i] + ape_[i] : scores_[i];
  }

  const RowsOperand& rows_;
  const RowStep& step_;
  const EntryTokens tokens_;
  float* const scores_;  // [tokens, width]
  float* const values_;
  float* const ape_;
};

// This step's last tokens into the compressors' rings, the scores with ape, where there is one.
template <int kThreads>
__device__ void StoreHistory(const RowsOperand& rows, const RowStep& step, int64_t token) {
  const CompressorHistory s = step.histories[LastUpTo(
      step.histories.size, token, [&](int64_t i) { return step.histories[i].token_begin; })];
  const auto width = static_cast<int>(rows.width);
  const auto row = static_cast<uint32_t>(token - s.token_begin);
  const auto place = [row](int first, int size) {
    return static_cast<int64_t>((static_cast<uint32_t>(first) + row) % static_cast<uint32_t>(size));
  };
  const int64_t behind = s.num_tokens - row;  // This token among them.
  const bool keeps_value = behind <= s.value_capacity;
  const bool keeps_score = behind <= s.score_capacity;
  float* const kept_values = s.values + place(s.value_slot, s.value_capacity) * width;
  float* const kept_scores = s.scores + place(s.score_slot, s.score_capacity) * width;
  const float* const values = static_cast<const float*>(rows.in) + token * rows.in_stride;
  const float* const scores = step.scores + token * width;
  const bool has_ape = step.weight != nullptr;
  const float* const ape = has_ape ? step.weight + place(s.phase, step.num_columns) * width : nullptr;
  // Weights come from the host, and no kernel in flight writes them.
  RowWeights bias = {};
  if (has_ape) AskForWeights<kThreads>(bias, ape, width);
  WaitForKernelsBefore();
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < width; first += kRowAtOnce * kThreads) {
    const int skipped = first - static_cast<int>(threadIdx.x);
    if (skipped > 0 && has_ape) AskForWeights<kThreads>(bias, ape + skipped, width - skipped);
    float value[kRowAtOnce];
    float score[kRowAtOnce];
    LoadAtOnce<kThreads>(value, values, first, width);
    LoadAtOnce<kThreads>(score, scores, first, width);
#pragma unroll
    for (int k = 0; k < kRowAtOnce; ++k) {
      const int c = first + k * kThreads;
      if (c >= width) break;
      if (keeps_value) kept_values[c] = value[k];
      if (keeps_score) kept_scores[c] = has_ape ? score[k] + bias.values[k] : score[k];
    }
  }
}

}  // namespace dsv4::backend::cuda
