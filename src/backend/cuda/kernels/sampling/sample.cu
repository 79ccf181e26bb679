// A cluster of blocks chooses the token of a row: each keeps a piece of the logits in shared memory, and what the blocks found in theirs they
// read from each other's. Greedy rows are done when the highest logit is known. Filters are selections by digits of eight bits, the high
// ones first, like top_k's: by how many tokens there are (top-k), and by how much they weigh (top-p). Sums of weights are exact
// (sampling/choice.h), so that neither the pieces nor the order of atomic additions are seen in what is drawn.
#include <cooperative_groups.h>

#include <climits>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/numeric/ordered_key.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "sampling/choice.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kClusterBlocks = 8;
constexpr int kBits = 8;
constexpr int kBuckets = 1 << kBits;
// A block counts in several histograms, lane by lane in turn: logits have few exponents.
constexpr int kHistograms = 16;
// Weights are counted in steps of 2^-35, in two numbers of 18 bits each: a histogram gets a sixteenth of a block's eighth of the
// vocabulary, so no sum of either reaches 2^32.
constexpr double kWeightSteps = 0x1p35;
constexpr int kLowBits = 18;
static_assert((sampling::kMaxChoices / kClusterBlocks / kHistograms << kLowBits) < (int64_t{1} << 32));

// A row's choice as the kernel wants it.
struct RowChoice {
  double uniform;
  float temperature;  // 0: greedy.
  float top_p;
  float lowest_exponent;
  int32_t top_k;  // 0: off.
};

struct Params {
  const float* logits;
  const uint8_t* allowed;  // May be null.
  const RowChoice* choices;
  int32_t* tokens;
  int32_t* faults;
  int vocab_size;
};

// What is known of a piece when it has been loaded. The best token is its key, then its complement, so that of equals the first wins.
struct Loaded {
  uint64_t best;
  int first_bad;  // INT_MAX: none.
};
__device__ uint64_t RankedToken(float logit, int id) {
  return static_cast<uint64_t>(OrderedKey(logit)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ Loaded Join(const Loaded& a, const Loaded& b) {
  return {max(a.best, b.best), min(a.first_bad, b.first_bad)};
}

// A block's share of a row.
struct Piece {
  const float* logits;  // In shared memory.
  int count;
  float highest;  // Of the row.
  float temperature;

  __device__ uint32_t Key(int j) const { return OrderedKey(logits[j]); }
  __device__ float Weight(int j) const { return sampling::WeightOf(logits[j], highest, temperature); }
};

// Tokens with higher keys are kept, and the first `left` of those with this one. 0: all are kept.
struct Threshold {
  uint32_t key = 0;
  int left = 0;
};

// One thread of each block has written *mine; then all[i] is block i's. Of each pair of arguments at most one call.
template <typename T>
__device__ void Exchange(T* mine, T* all) {
  const cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  if (threadIdx.x < kClusterBlocks) all[threadIdx.x] = *cluster.map_shared_rank(mine, threadIdx.x);
  __syncthreads();
}

// The row's piece to shared memory, -infinity where a token is not allowed.
__device__ Loaded Load(const Params& p, int64_t row, int first, int count, float* piece) {
  __shared__ Loaded of_warp[kWarps];
  const float* const logits = p.logits + row * p.vocab_size + first;
  const uint8_t* const allowed = p.allowed == nullptr ? nullptr : p.allowed + first;
  Loaded loaded{0, INT_MAX};
#pragma unroll 8
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kThreads) {
    float logit = logits[j];
    const bool bad = isnan(logit) || logit == INFINITY;
    if (allowed != nullptr && allowed[j] == 0) logit = -INFINITY;
    piece[j] = logit;
    loaded = Join(loaded, {RankedToken(logit, first + j), bad ? first + j : INT_MAX});
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

// What a block selects with, in shared memory.
struct Selection {
  uint32_t low[kHistograms][kBuckets + 1];  // One more, so that equal buckets lie in different banks.
  uint32_t high[kHistograms][kBuckets + 1];
  double mine[2][kBuckets];  // Read by the other blocks; of this digit and of the last.
  double all[kBuckets];
  Selected next;
};

// The bucket in which, counted from the highest, the sum reaches `wanted`. One warp calls it, eight buckets a lane; one lane writes.
__device__ void NextDigit(const double* buckets, int shift, Selected now, double wanted, Selected* next) {
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

// The highest key for which it and all above it come to `wanted`, which is more than 0 and at most what all keys come to: in
// number, or in weight.
template <bool kByWeight>
__device__ Selected Select(Selection& s, const Piece& piece, double wanted) {
  const cg::cluster_group cluster = cg::this_cluster();
  const int t = static_cast<int>(threadIdx.x);
  const int histogram = t % kHistograms;
  Selected selected{0, 0.0};
  for (int shift = 32 - kBits, turn = 0; shift >= 0; shift -= kBits, turn ^= 1) {
    for (int i = t; i < kHistograms * kBuckets; i += kThreads) {
      s.low[i / kBuckets][i % kBuckets] = 0;
      if (kByWeight) s.high[i / kBuckets][i % kBuckets] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int j = t; j < piece.count; j += kThreads) {
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
    if (t < kBuckets) {
      uint64_t sum = 0;
      for (int h = 0; h < kHistograms; ++h) {
        sum += s.low[h][t];
        if (kByWeight) sum += static_cast<uint64_t>(s.high[h][t]) << kLowBits;
      }
      s.mine[turn][t] = static_cast<double>(sum) / (kByWeight ? kWeightSteps : 1.0);
    }
    cluster.sync();
    if (t < kBuckets) {
      double sum = 0.0;
      for (unsigned i = 0; i < kClusterBlocks; ++i) sum += cluster.map_shared_rank(&s.mine[turn][0], i)[t];
      s.all[t] = sum;
    }
    __syncthreads();
    if (t < 32) NextDigit(s.all, shift, selected, wanted, &s.next);
    __syncthreads();
    selected = s.next;
  }
  return selected;
}

// The sum over the block, by all threads, of sums that are exact in any order.
__device__ double SumOverCluster(double value) {
  __shared__ double mine;
  __shared__ double all[kClusterBlocks];
  const double sum = BlockSum(value);
  if (threadIdx.x == 0) mine = sum;
  Exchange(&mine, all);
  double total = 0.0;
  for (const double part : all) total += part;
  return total;
}

__device__ Threshold ThresholdOfTopK(Selection& selection, const Piece& piece, int top_k) {
  const Selected selected = Select<false>(selection, piece, top_k);
  return {selected.key, top_k - static_cast<int>(selected.above)};
}

// The weight of the token that a key stands for. Keys of -0 are those of +0, which weighs as much.
__device__ float WeightOfKey(const Piece& piece, uint32_t key) {
  const float logit = __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
  return sampling::WeightOf(logit, piece.highest, piece.temperature);
}

// Of what `before` keeps.
__device__ Threshold ThresholdOfTopP(Selection& selection, const Piece& piece, float top_p,
                                     Threshold before) {
  double weight = 0.0;
  for (int j = static_cast<int>(threadIdx.x); j < piece.count; j += kThreads) {
    if (piece.Key(j) > before.key) weight += static_cast<double>(piece.Weight(j));
  }
  double total = SumOverCluster(weight);
  if (before.key != 0) total += before.left * static_cast<double>(WeightOfKey(piece, before.key));
  const double wanted = static_cast<double>(top_p) * total;
  const Selected selected = Select<true>(selection, piece, wanted);
  // As many of those that weigh the same as it takes.
  const auto each = static_cast<double>(WeightOfKey(piece, selected.key));
  int left = max(1, static_cast<int>(ceil((wanted - selected.above) / each)));
  while (selected.above + left * each < wanted) ++left;
  while (left > 1 && selected.above + (left - 1) * each >= wanted) --left;
  return {selected.key, left};
}

// What a thread's value has in front of it in the block, and the sum over the block.
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

// The same over the cluster.
template <typename T>
__device__ Scanned<T> ScanOverCluster(T mine, int rank) {
  __shared__ T block;
  __shared__ T all[kClusterBlocks];
  const Scanned<T> scanned = Scan(mine);
  if (threadIdx.x == 0) block = scanned.total;
  Exchange(&block, all);
  Scanned<T> over{scanned.before, 0};
  for (int i = 0; i < kClusterBlocks; ++i) {
    if (i < rank) over.before += all[i];
    over.total += all[i];
  }
  return over;
}

// Goes through the ids in order, neighbours by one thread.
__device__ void Draw(const Piece& piece, const RowChoice& choice, Threshold threshold, int rank, int first,
                     int32_t* token) {
  const int each = (piece.count + kThreads - 1) / kThreads | 1;  // Odd: threads read different banks.
  const int begin = min(piece.count, static_cast<int>(threadIdx.x) * each);
  const int end = min(piece.count, begin + each);
  int equal_before = 0;
  if (threshold.key != 0) {
    int equal = 0;
    for (int j = begin; j < end; ++j) equal += piece.Key(j) == threshold.key ? 1 : 0;
    equal_before = ScanOverCluster(equal, rank).before;
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
  const Scanned<double> weights = ScanOverCluster(mine, rank);
  const double wanted = choice.uniform * weights.total;
  if (weights.before > wanted || weights.before + mine <= wanted) return;
  double sum = weights.before;
  for_each_kept([&](int j, double weight) {
    sum += weight;
    if (sum > wanted) *token = first + j;
    return sum <= wanted;
  });
}

__device__ void SampleRow(const Params& p, int64_t row, int rank, float* piece_logits) {
  __shared__ Loaded mine;
  __shared__ Loaded all[kClusterBlocks];
  __shared__ Selection selection;
  const int size = (p.vocab_size + kClusterBlocks - 1) / kClusterBlocks;
  const int first = min(p.vocab_size, rank * size);
  const int count = min(p.vocab_size - first, size);
  const Loaded of_block = Load(p, row, first, count, piece_logits);
  if (threadIdx.x == 0) mine = of_block;
  Exchange(&mine, all);
  Loaded loaded = all[0];
  for (int i = 1; i < kClusterBlocks; ++i) loaded = Join(loaded, all[i]);

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
    threshold = ThresholdOfTopK(selection, piece, choice.top_k);
  if (choice.top_p < 1.0F) threshold = ThresholdOfTopP(selection, piece, choice.top_p, threshold);
  Draw(piece, choice, threshold, rank, first, &p.tokens[row]);
}

__global__ void __cluster_dims__(kClusterBlocks) __launch_bounds__(kThreads) SampleKernel(const Params p) {
  extern __shared__ __align__(16) float piece_logits[];
  BeginKernel();
  const cg::cluster_group cluster = cg::this_cluster();
  SampleRow(p, blockIdx.x / kClusterBlocks, static_cast<int>(cluster.block_rank()), piece_logits);
  cluster.sync();  // What others still read of this block's memory stays until then.
}

}  // namespace

Status Sample(CudaContext& context, const ops::SampleArgs& args) {
  const int64_t num_rows = args.logits.shape[0];
  const int64_t vocab_size = args.logits.shape[1];
  if (num_rows == 0) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<RowChoice> staged,
      context.StageFrom<RowChoice>(
          args.choices, [](std::span<const sampling::ChoiceParams> all, std::vector<RowChoice>* choices) {
            for (const sampling::ChoiceParams& choice : all) {
              choices->push_back({.uniform = choice.uniform,
                                  .temperature = choice.temperature,
                                  .top_p = choice.top_p,
                                  .lowest_exponent = choice.lowest_exponent(),
                                  .top_k = choice.top_k});
            }
          }));
  const Params params = {.logits = args.logits.as<const float>(),
                         .allowed = args.allowed.as<const uint8_t>(),
                         .choices = staged.data,
                         .tokens = args.tokens.as<int32_t>(),
                         .faults = args.faults.as<int32_t>(),
                         .vocab_size = static_cast<int>(vocab_size)};
  const auto shared_bytes =
      static_cast<size_t>((vocab_size + kClusterBlocks - 1) / kClusterBlocks) * sizeof(float);
  context.Launch(SampleKernel, static_cast<unsigned>(num_rows * kClusterBlocks), kThreads, shared_bytes,
                 params);
  return {};
}

}  // namespace dsv4::backend::cuda
