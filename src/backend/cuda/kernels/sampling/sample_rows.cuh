// The blocks of a team choose the token of a row. Each has a piece of the logits, and blocks read each
// other's findings. The team is a cluster, whose blocks keep their pieces in shared memory
// (sample_cluster.cu), or one block (sample.cu). Greedy rows are done when the highest logit is known.
// Filters are selections by digits of eight bits, the high ones first, like top_k's. They go by the number of
// tokens (top-k), and by their weight (top-p). Sums of weights are exact (sampling/choice.h), so that neither
// the pieces nor the order of atomic additions change the draw.
#pragma once

#include <climits>
#include <cstdint>

#include "backend/cuda/device/numeric/ordered_key.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/kernels/sampling/sample_params.h"
#include "ops/sample.h"
#include "sampling/choice.h"

namespace dsv4::backend::cuda::sampling_rows {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBits = 8;
constexpr int kBuckets = 1 << kBits;
// A block counts in several histograms, lane by lane in turn: logits have few exponents.
constexpr int kHistograms = 16;
// Weights are counted in steps of 2^-35, in two numbers of 18 bits each. A histogram gets a sixteenth of an
// eighth of the vocabulary before it is added up, so no sum of either reaches 2^32.
constexpr double kWeightSteps = 0x1p35;
constexpr int kLowBits = 18;
constexpr int kCountedAtOnce = static_cast<int>(sampling::kMaxChoices / 8);
static_assert((int64_t{kCountedAtOnce / kHistograms} << kLowBits) < (int64_t{1} << 32));

// Summary of a loaded piece. The best token is its key, then its complement, so that of equals the first
// wins.
struct Loaded {
  uint64_t best;
  int first_bad;  // INT_MAX: none.
};
__device__ inline uint64_t RankedToken(float logit, int id) {
  return static_cast<uint64_t>(OrderedKey(logit)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline Loaded Join(const Loaded& a, const Loaded& b) {
  return {max(a.best, b.best), min(a.first_bad, b.first_bad)};
}

// A block's share of a row.
struct Piece {
  const float* logits;  // Address at which this block has written them.
  int count;
  float highest;  // The row's.
  float temperature;

  __device__ uint32_t Key(int j) const { return OrderedKey(logits[j]); }
  __device__ float Weight(int j) const { return sampling::WeightOf(logits[j], highest, temperature); }
};

// Tokens with higher keys are kept, and the first `left` of those with this one. 0: all are kept.
struct Threshold {
  uint32_t key = 0;
  int left = 0;
};

// A team has kBlocks blocks, Rank() of a block; Meet() is for all threads of all blocks, and Of(p, rank) is what another block has in
// shared memory as `p`.

// One thread of each block has written *mine; then all[i] is block i's. Of each pair of arguments at most one call.
template <typename Team, typename T>
__device__ void Exchange(T* mine, T* all) {
  Team::Meet();
  if (threadIdx.x < Team::kBlocks) all[threadIdx.x] = *Team::Of(mine, threadIdx.x);
  __syncthreads();
}

// Applies the row's changes to the tokens of its piece.
__device__ inline void Change(const SampleParams& p, int64_t row, int first, int count, float* piece) {
  const sampling::Penalties penalties = p.rules == nullptr ? sampling::Penalties() : p.rules[row].penalties;
  const int end = p.change_begin[row + 1];
  for (int i = p.change_begin[row] + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    const ops::RowChange change = p.changes[i];
    const int j = change.token - first;
    if (j >= 0 && j < count) piece[j] = sampling::Adjusted(piece[j], change.bias, change.count, penalties);
  }
}

// The row's piece to `piece` with its changes, -infinity where a token is not allowed.
__device__ inline Loaded Load(const SampleParams& p, int64_t row, int first, int count, float* piece) {
  __shared__ Loaded of_warp[kWarps];
  const float* const logits = p.logits + row * p.vocab_size + first;
  const uint8_t* const allowed = p.allowed == nullptr ? nullptr : p.allowed + first;
  const int32_t mask_number = p.rules == nullptr ? -1 : p.rules[row].mask;
  const uint64_t* const mask =
      mask_number < 0 ? nullptr : p.masks + int64_t{mask_number} * ((p.vocab_size + 63) / 64);
  Loaded loaded{0, INT_MAX};
#pragma unroll 8
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kThreads) {
    float logit = logits[j];
    const bool bad = isnan(logit) || logit == INFINITY;
    if (allowed != nullptr && allowed[j] == 0) logit = -INFINITY;
    if (mask != nullptr && (mask[(first + j) / 64] >> ((first + j) % 64) & 1) == 0) logit = -INFINITY;
    piece[j] = logit;
    loaded = Join(loaded, {RankedToken(logit, first + j), bad ? first + j : INT_MAX});
  }
  if (p.change_begin != nullptr && p.change_begin[row] < p.change_begin[row + 1]) {
    __syncthreads();
    Change(p, row, first, count, piece);
    __syncthreads();
    loaded.best = 0;
    for (int j = static_cast<int>(threadIdx.x); j < count; j += kThreads)
      loaded.best = max(loaded.best, RankedToken(piece[j], first + j));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    loaded = Join(loaded, {__shfl_xor_sync(kWholeWarp, loaded.best, offset),
                           __shfl_xor_sync(kWholeWarp, loaded.first_bad, offset)});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = loaded;
  __syncthreads();
  loaded = of_warp[0];
  for (int i = 1; i < kWarps; ++i) loaded = Join(loaded, of_warp[i]);
  return loaded;
}

// How far a selection has come: the high bits of the key looked for, and what all keys above weigh.
struct Selected {
  uint32_t key;
  double above;
};

// Shared memory of a block's selection.
struct Selection {
  uint32_t low[kHistograms][kBuckets + 1];  // One more, so that equal buckets lie in different banks.
  uint32_t high[kHistograms][kBuckets + 1];
  double mine[2][kBuckets];  // Read by the other blocks; of this digit and of the last.
  double all[kBuckets];
  Selected next;
};

// The bucket in which, counted from the highest, the sum reaches `wanted`. One warp calls it, eight buckets a lane; one lane writes.
__device__ inline void NextDigit(const double* buckets, int shift, Selected now, double wanted,
                                 Selected* next) {
  constexpr int kEach = kBuckets / 32;
  const int lane = static_cast<int>(threadIdx.x);
  const int highest = kBuckets - 1 - lane * kEach;
  double mine = 0.0;
  for (int i = 0; i < kEach; ++i) mine += buckets[highest - i];
  double up_to_mine = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const double other = __shfl_up_sync(kWholeWarp, up_to_mine, offset);
    if (lane >= offset) up_to_mine += other;
  }
  double above = now.above + up_to_mine - mine;
  if (above < wanted && wanted <= above + mine) {
    int bucket = highest;
    while (above + buckets[bucket] < wanted) above += buckets[bucket--];
    *next = {now.key | static_cast<uint32_t>(bucket) << shift, above};
  }
}

// The highest key for which it and all above it add up to `wanted`, in number or in weight. `wanted` is more
// than 0 and at most the sum of all keys.
template <typename Team, bool kByWeight>
__device__ Selected Select(Selection& s, const Piece& piece, double wanted) {
  const int t = static_cast<int>(threadIdx.x);
  const int histogram = t % kHistograms;
  Selected selected{0, 0.0};
  // Adds up the piece's tokens from `begin` to `end`: bucket t's.
  const auto count = [&](int shift, int begin, int end) {
    for (int i = t; i < kHistograms * kBuckets; i += kThreads) {
      s.low[i / kBuckets][i % kBuckets] = 0;
      if (kByWeight) s.high[i / kBuckets][i % kBuckets] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int j = begin + t; j < end; j += kThreads) {
      const uint32_t key = piece.Key(j);
      if (shift != 32 - kBits && key >> (shift + kBits) != selected.key >> (shift + kBits)) continue;
      const uint32_t bucket = key >> shift & (kBuckets - 1);
      if (kByWeight) {
        const auto steps = static_cast<uint64_t>(static_cast<double>(piece.Weight(j)) * kWeightSteps);
        if (steps == 0) continue;
        atomicAdd(&s.low[histogram][bucket], static_cast<uint32_t>(steps & ((1U << kLowBits) - 1)));
        if (steps >> kLowBits != 0)
          atomicAdd(&s.high[histogram][bucket], static_cast<uint32_t>(steps >> kLowBits));
      } else {
        atomicAdd(&s.low[histogram][bucket], 1U);
      }
    }
    __syncthreads();
    uint64_t sum = 0;
    if (t < kBuckets) {
      for (int h = 0; h < kHistograms; ++h) {
        sum += s.low[h][t];
        if (kByWeight) sum += static_cast<uint64_t>(s.high[h][t]) << kLowBits;
      }
    }
    return sum;
  };
  for (int shift = 32 - kBits, turn = 0; shift >= 0; shift -= kBits, turn ^= 1) {
    uint64_t sum = 0;
    if constexpr (Team::kBlocks >= 8) {
      sum = count(shift, 0, piece.count);
    } else {
      for (int begin = 0; begin < piece.count; begin += kCountedAtOnce) {
        sum += count(shift, begin, min(piece.count, begin + kCountedAtOnce));
        __syncthreads();
      }
    }
    if (t < kBuckets) s.mine[turn][t] = static_cast<double>(sum) / (kByWeight ? kWeightSteps : 1.0);
    Team::Meet();
    if (t < kBuckets) {
      double of_all = 0.0;
      for (unsigned i = 0; i < Team::kBlocks; ++i) of_all += Team::Of(&s.mine[turn][0], i)[t];
      s.all[t] = of_all;
    }
    __syncthreads();
    if (t < 32) NextDigit(s.all, shift, selected, wanted, &s.next);
    __syncthreads();
    selected = s.next;
  }
  return selected;
}

// The sum over the team, by all threads, of sums that are exact in any order.
template <typename Team>
__device__ double SumOverTeam(double value) {
  __shared__ double mine;
  __shared__ double all[Team::kBlocks];
  const double sum = BlockSum(value);
  if (threadIdx.x == 0) mine = sum;
  Exchange<Team>(&mine, all);
  double total = 0.0;
  for (const double part : all) total += part;
  return total;
}

template <typename Team>
__device__ Threshold ThresholdOfTopK(Selection& selection, const Piece& piece, int top_k) {
  const Selected selected = Select<Team, false>(selection, piece, top_k);
  return {selected.key, top_k - static_cast<int>(selected.above)};
}

// The weight of the token that a key stands for. Keys of -0 are those of +0, which weighs as much.
__device__ inline float WeightOfKey(const Piece& piece, uint32_t key) {
  const float logit = __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
  return sampling::WeightOf(logit, piece.highest, piece.temperature);
}

// Selection of what `before` keeps.
template <typename Team>
__device__ Threshold ThresholdOfTopP(Selection& selection, const Piece& piece, float top_p,
                                     Threshold before) {
  double weight = 0.0;
  for (int j = static_cast<int>(threadIdx.x); j < piece.count; j += kThreads) {
    if (piece.Key(j) > before.key) weight += static_cast<double>(piece.Weight(j));
  }
  double total = SumOverTeam<Team>(weight);
  if (before.key != 0) total += before.left * static_cast<double>(WeightOfKey(piece, before.key));
  const double wanted = static_cast<double>(top_p) * total;
  const Selected selected = Select<Team, true>(selection, piece, wanted);
  // As many of those that weigh the same as it takes.
  const auto each = static_cast<double>(WeightOfKey(piece, selected.key));
  int left = max(1, static_cast<int>(ceil((wanted - selected.above) / each)));
  while (selected.above + left * each < wanted) ++left;
  while (left > 1 && selected.above + (left - 1) * each >= wanted) --left;
  return {selected.key, left};
}

// Sum of the values in front of a thread's in the block, and of all.
template <typename T>
struct Scanned {
  T before;
  T total;
};
template <typename T>
__device__ Scanned<T> Scan(T mine) {
  __shared__ T of_warp[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  T sum = mine;
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  Scanned<T> scanned{sum - mine, 0};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) scanned.before += of_warp[i];
    scanned.total += of_warp[i];
  }
  return scanned;
}

// The same over the team.
template <typename Team, typename T>
__device__ Scanned<T> ScanOverTeam(T mine, int rank) {
  __shared__ T block;
  __shared__ T all[Team::kBlocks];
  const Scanned<T> scanned = Scan(mine);
  if (threadIdx.x == 0) block = scanned.total;
  Exchange<Team>(&block, all);
  Scanned<T> over{scanned.before, 0};
  for (int i = 0; i < Team::kBlocks; ++i) {
    if (i < rank) over.before += all[i];
    over.total += all[i];
  }
  return over;
}

// Goes through the ids in order, neighbours by one thread.
template <typename Team>
__device__ void Draw(const Piece& piece, const RowChoice& choice, Threshold threshold, int rank, int first,
                     int32_t* token) {
  const int each = (piece.count + kThreads - 1) / kThreads | 1;  // Odd: threads read different banks.
  const int begin = min(piece.count, static_cast<int>(threadIdx.x) * each);
  const int end = min(piece.count, begin + each);
  int equal_before = 0;
  if (threshold.key != 0) {
    int equal = 0;
    for (int j = begin; j < end; ++j) equal += piece.Key(j) == threshold.key ? 1 : 0;
    equal_before = ScanOverTeam<Team>(equal, rank).before;
  }
  // Calls visit(place, weight) for what is kept, until it returns false.
  const auto for_each_kept = [&](auto visit) {
    int equal = equal_before;
    for (int j = begin; j < end; ++j) {
      const uint32_t key = piece.Key(j);
      const bool in_rank = key > threshold.key || (key == threshold.key && equal++ < threshold.left);
      const float exponent = (piece.logits[j] - piece.highest) / piece.temperature;
      if (in_rank && exponent >= choice.lowest_exponent && !visit(j, static_cast<double>(piece.Weight(j))))
        return;
    }
  };
  double mine = 0.0;
  for_each_kept([&](int, double weight) {
    mine += weight;
    return true;
  });
  const Scanned<double> weights = ScanOverTeam<Team>(mine, rank);
  const double wanted = choice.uniform * weights.total;
  if (weights.before > wanted || weights.before + mine <= wanted) return;
  double sum = weights.before;
  for_each_kept([&](int j, double weight) {
    sum += weight;
    if (sum > wanted) *token = first + j;
    return sum <= wanted;
  });
}

// By all threads of a team. `piece_logits`: room for as many logits as a block of it has.
template <typename Team>
__device__ void SampleRow(const SampleParams& p, int64_t row, float* piece_logits) {
  __shared__ Loaded mine;
  __shared__ Loaded all[Team::kBlocks];
  __shared__ Selection selection;
  const int rank = Team::Rank();
  const int size = (p.vocab_size + Team::kBlocks - 1) / Team::kBlocks;
  const int first = min(p.vocab_size, rank * size);
  const int count = min(p.vocab_size - first, size);
  const Loaded of_block = Load(p, row, first, count, piece_logits);
  if (threadIdx.x == 0) mine = of_block;
  Exchange<Team>(&mine, all);
  Loaded loaded = all[0];
  for (int i = 1; i < Team::kBlocks; ++i) loaded = Join(loaded, all[i]);

  const auto highest_key = static_cast<uint32_t>(loaded.best >> 32);
  const bool none = highest_key <= OrderedKey(-INFINITY);
  const bool wrong = loaded.first_bad != INT_MAX || none;
  const RowChoice choice = p.choices[row];
  if (rank == 0 && threadIdx.x == 0) {
    p.faults[row] = loaded.first_bad != INT_MAX ? loaded.first_bad : none ? p.vocab_size : ops::kNoFault;
    if (wrong) p.tokens[row] = 0;
    if (!wrong && choice.temperature == 0.0F)
      p.tokens[row] = static_cast<int32_t>(~static_cast<uint32_t>(loaded.best));
  }
  if (wrong || choice.temperature == 0.0F) return;

  const float highest =
      __uint_as_float((highest_key & 0x80000000U) != 0 ? highest_key & 0x7FFFFFFFU : ~highest_key);
  const Piece piece{piece_logits, count, highest, choice.temperature};
  Threshold threshold;
  if (choice.top_k > 0 && choice.top_k < p.vocab_size)
    threshold = ThresholdOfTopK<Team>(selection, piece, choice.top_k);
  if (choice.top_p < 1.0F) threshold = ThresholdOfTopP<Team>(selection, piece, choice.top_p, threshold);
  Draw<Team>(piece, choice, threshold, rank, first, &p.tokens[row]);
}

}  // namespace dsv4::backend::cuda::sampling_rows
