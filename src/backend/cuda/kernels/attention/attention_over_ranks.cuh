// The kernel of attention_over_ranks.h. A cluster of blocks takes 16 heads through this rank's keys, tile by
// tile as attention_part.cu does, and combines the tiles through shared memory. Its parameters say which of
// the two exchanges around it belong to the launch, and what follows them.
#pragma once

#include <cooperative_groups.h>

#include "backend/cuda/collectives/ll_exchange.cuh"
#include "backend/cuda/device/sync/cluster_barrier.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_over_ranks.h"
#include "backend/cuda/kernels/attention/attention_part.cuh"
#include "backend/cuda/kernels/attention/attention_tile.cuh"
#include "backend/cuda/kernels/rows/row_steps.cuh"

namespace dsv4::backend::cuda {

namespace over_ranks {

inline constexpr int kMaxTiles = static_cast<int>(kMaxOverRanksTiles);
static_assert(kOverRanksHeads == kAttentionHeads);
// Heads that each of so many blocks combines.
template <int kBlocks>
inline constexpr int kHeadsOfBlock = kAttentionHeads / kBlocks;

template <int kDim>
struct TileResults {
  union {
    AttentionLogits logits;
    float values[kAttentionHeads][kDim];
  };
  float maxima[kAttentionHeads];
  float sums[kAttentionHeads];
};

template <int kDim>
struct Memory {
  AttentionTile<kDim> tile;
  TileResults<kDim> first_results;  // As many as a block has tiles follow each other.
};

// Columns i * kAttentionThreads + thread of a head are a thread's.
template <int kDim>
inline constexpr int kColumns = kDim / kAttentionThreads;

// The heads that a block combines, of all this rank's keys: beside a thread's columns, maxima of logits and
// sums of weights.
template <int kDim, int kHeads>
struct JoinedHeads {
  float maxima[kHeads];
  float sums[kHeads] = {};
  float values[kHeads][kColumns<kDim>] = {};
};

// Takes the queries of another rank's 16 heads, from word `sent` of the words of `owner`. Each block takes
// its share, leaves it where all are wanted, and gives it to those blocks of the cluster that have tiles.
// These must be there and have no queries in use. The cluster meets. Returns whether the queries came.
template <int kDim, int kBlocks>
__device__ __forceinline__ bool TakeQueries(const cooperative_groups::cluster_group& cluster,
                                            AttentionTile<kDim>& m, const PeerLinks& links, uint64_t round,
                                            int owner, int64_t sent, int num_tiles, bool active,
                                            uint32_t* all) {
  constexpr int kWordsOfHead = kDim / 2;
  constexpr int kWords = kHeadsOfBlock<kBlocks> * kWordsOfHead / kAttentionThreads;  // A thread's.
  const auto first = static_cast<int>(cluster.block_rank() * kWords * kAttentionThreads + threadIdx.x);
  uint64_t words[kWords] = {};
  bool whole = true;
  if (active) {
    whole = WaitUntil(links, [&] {
      bool there = true;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = LookAtWord(
            WordPlace(links.mailboxes[links.rank], round, owner, sent + first + i * kAttentionThreads));
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        there = there && static_cast<uint32_t>(words[i] >> 32) == MarkOf(round);
      return there ? -1 : owner;
    });
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = first + i * kAttentionThreads;
    auto* const place = reinterpret_cast<uint32_t*>(&m.q[word / kWordsOfHead][word % kWordsOfHead * 2]);
    for (int block = 0; block < min(num_tiles, kBlocks); ++block)
      *cluster.map_shared_rank(place, block) = static_cast<uint32_t>(words[i]);
  }
  __syncwarp();
  cluster.sync();
  // A meeting block waits for what it has stored, in global memory too.
#pragma unroll
  for (int i = 0; i < kWords; ++i) all[first + i * kAttentionThreads] = static_cast<uint32_t>(words[i]);
  return whole;
}

// Tiles in order. A tile's maxima and sums are a lane's, and go from lane to lane.
template <int kDim, int kBlocks>
__device__ __forceinline__ JoinedHeads<kDim, kHeadsOfBlock<kBlocks>> JoinTiles(
    const cooperative_groups::cluster_group& cluster, TileResults<kDim>* results, int block, int num_tiles) {
  static_assert(kMaxTiles * kBlocks <= 32);
  constexpr int kHeads = kHeadsOfBlock<kBlocks>;
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int first = block * kHeads;
  const auto tile = [&](int t) -> const TileResults<kDim>& {
    return cluster.map_shared_rank(results, t % kBlocks)[t / kBlocks];
  };
  JoinedHeads<kDim, kHeads> joined;
  float factors[kHeads];
  float sums[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    factors[h] = lane < num_tiles ? tile(lane).maxima[first + h] : -INFINITY;
    sums[h] = lane < num_tiles ? tile(lane).sums[first + h] : 0.0F;
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float max = factors[h];
    for (int offset = 16; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    joined.maxima[h] = max;
    factors[h] = expf(factors[h] - max);
  }
  constexpr int kAtOnce =
      8 /
      kHeads;  // Tiles whose values are asked for before any is added: each is a way to another block and back.
  for (int begin = 0; begin < num_tiles; begin += kAtOnce) {
    float values[kAtOnce][kHeads][kColumns<kDim>];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const TileResults<kDim>& of = tile(min(begin + k, num_tiles - 1));
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kColumns<kDim>; ++i)
          values[k][h][i] = of.values[first + h][i * kAttentionThreads + thread];
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (begin + k >= num_tiles) break;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float factor = __shfl_sync(kWholeWarp, factors[h], begin + k);
        joined.sums[h] = fmaf(factor, __shfl_sync(kWholeWarp, sums[h], begin + k), joined.sums[h]);
#pragma unroll
        for (int i = 0; i < kColumns<kDim>; ++i)
          joined.values[h][i] = fmaf(factor, values[k][h][i], joined.values[h][i]);
      }
    }
  }
  return joined;
}

// Offsets of a head's columns, its maximum and its sum in a row: number i of a thread's, the last two of all
// threads.
template <int kDim>
__device__ __forceinline__ int ColumnOf(int i) {
  return i < kColumns<kDim> ? i * kAttentionThreads + static_cast<int>(threadIdx.x)
                            : kDim + i - kColumns<kDim>;
}
template <int kDim, int kHeads>
__device__ __forceinline__ float NumberOf(const JoinedHeads<kDim, kHeads>& joined, int h, int i) {
  if (i < kColumns<kDim>) return joined.values[h][i];
  return i == kColumns<kDim> ? joined.maxima[h] : joined.sums[h];
}

// How this thread's last columns are rotated.
struct Turn {
  bool rotates;
  double2 by;
};

// Takes the other ranks' parts of kCount heads of a token, `joined`'s from `first` on, which are this rank's
// from own_head on. Merges and rotates them as far as p says. Returns whether they came.
template <int kDim, int kRanks, int kCount, int kHeads>
__device__ __forceinline__ bool MergeHeads(const AttentionOverRanks& p,
                                           const JoinedHeads<kDim, kHeads>& joined, int first, int64_t token,
                                           int64_t own_head, uint64_t round, bool asks, const Turn& turn) {
  constexpr int kWidth = kDim + 2;
  constexpr int kNumbers = kColumns<kDim> + 2;
  const PeerLinks& links = p.links;
  const auto thread = static_cast<int>(threadIdx.x);
  std::byte* const mailbox = links.mailboxes[links.rank];
  const int64_t row = token * p.own_heads + own_head;  // Row in what every rank sends.
  float sinks[kCount] = {};
  if (p.o != nullptr) {
#pragma unroll
    for (int h = 0; h < kCount; ++h) sinks[h] = p.sink[own_head + h];
  }
  // All that this thread wants of all ranks, asked for at once.
  uint64_t words[kRanks][kCount][kNumbers] = {};
  bool whole = true;
  const auto for_others = [&](auto visit) {
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (r == links.rank) continue;
#pragma unroll
      for (int h = 0; h < kCount; ++h) {
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) visit(r, h, i);
      }
    }
  };
  if (asks) {
    whole = WaitUntil(links, [&] {
      int source = -1;
      for_others([&](int r, int h, int i) {
        words[r][h][i] = LookAtWord(WordPlace(mailbox, round, r, (row + h) * kWidth + ColumnOf<kDim>(i)));
      });
      for_others([&](int r, int h, int i) {
        if (static_cast<uint32_t>(words[r][h][i] >> 32) != MarkOf(round)) source = r;
      });
      return source;
    });
  }
#pragma unroll
  for (int h = 0; h < kCount; ++h) {
    float parts[kRanks][kNumbers];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        parts[r][i] = r == links.rank ? NumberOf(joined, first + h, i)
                                      : __uint_as_float(static_cast<uint32_t>(words[r][h][i]));
        if (i < kColumns<kDim> || thread == 0)
          p.parts[(r * p.part.num_tokens * p.own_heads + row + h) * kWidth + ColumnOf<kDim>(i)] = parts[r][i];
      }
    }
    if (p.o == nullptr) continue;

    // As MergeKernel.
    float largest = -INFINITY;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) largest = fmaxf(largest, parts[r][kColumns<kDim>]);
    double factors[kRanks];
    double total = 0.0;
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      const bool empty = parts[r][kColumns<kDim> + 1] == 0.0F;
      factors[r] =
          empty ? 0.0 : exp(static_cast<double>(parts[r][kColumns<kDim>]) - static_cast<double>(largest));
      if (factors[r] != 0.0) total += factors[r] * static_cast<double>(parts[r][kColumns<kDim> + 1]);
    }
    const double scale = 1.0 / (total + exp(static_cast<double>(sinks[h]) - static_cast<double>(largest)));
    float o[kColumns<kDim>] = {};
#pragma unroll
    for (int i = 0; i < kColumns<kDim>; ++i) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (factors[r] != 0.0) o[i] = fmaf(static_cast<float>(factors[r] * scale), parts[r][i], o[i]);
      }
      o[i] = RoundToBf16(o[i]);
    }
    if (p.rotation.num_frequencies > 0) {
      // Pairs of columns are neighbours in a warp.
      float& value = o[kColumns<kDim> - 1];
      const float other = __shfl_xor_sync(kWholeWarp, value, 1);
      if (turn.rotates) {
        const bool odd = thread % 2 != 0;
        const float2 pair = Rotated(odd ? other : value, odd ? value : other, turn.by, true);
        value = odd ? pair.y : pair.x;
      }
    }
    uint16_t* const out = p.o + (row + h) * kDim;
#pragma unroll
    for (int i = 0; i < kColumns<kDim>; ++i) out[ColumnOf<kDim>(i)] = Bf16FromFloat(o[i]);
  }
  return whole;
}

// Grid: blocks of a cluster, groups of all ranks' heads, tokens. What is taken is not cleared: words are
// written over at their next use, and no mark comes again before two thousand million rounds.
//
// A cluster waits for clusters of the same token on other ranks only. So not all tokens need be on the device
// at once. Clusters begin in the order of the grid. Those of the first token that is not through on all ranks
// have begun on all.
template <int kDim, int kRanks, int kBlocks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kAttentionThreads)
    AttentionOverRanksKernel(const __grid_constant__ AttentionOverRanks p) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<Memory<kDim>*>(raw);
  TileResults<kDim>* const results = &m.first_results;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int block = static_cast<int>(cluster.block_rank());
  const int thread = static_cast<int>(threadIdx.x);
  const PeerLinks& links = p.links;
  const uint64_t round = links.state->round + 1;  // Round of the queries; the parts' is the next.
  const bool active = links.state->broken == 0;
  bool whole = true;
  const int first_head = static_cast<int>(blockIdx.y) * kAttentionHeads;
  const int owner = first_head / p.own_heads;
  const int own_begin = links.rank * p.own_heads;
  const int64_t token = blockIdx.z;
  const int64_t own_words = p.own_heads * (kDim / 2);  // Words of a token's queries.
  const uint32_t* const own_q = p.own_q + token * own_words;
  uint32_t* const all_q = p.all_q + token * p.part.num_heads * (kDim / 2);
  if (owner != links.rank) ArriveAtClusterRelaxed();

  // This rank's queries, on their way while keys are read.
  {
    const int num_threads = static_cast<int>(gridDim.x * gridDim.y) * kAttentionThreads;
    const int first = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * kAttentionThreads + thread;
    for (int i = first; i < own_words; i += num_threads) {
      const uint32_t word = own_q[i];
      all_q[own_begin * (kDim / 2) + i] = word;
      for (int k = 1; active && k < kRanks; ++k) {
        const int peer = (links.rank + k) % kRanks;  // Not all to the same one first.
        PushWord(WordPlace(links.mailboxes[peer], round, links.rank, token * own_words + i), word,
                 MarkOf(round));
      }
    }
  }
  const PartKeys keys(p.table, p.part, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, int64_t{kAttentionKeys}));
  const int mine = block < num_tiles ? (num_tiles - block + kBlocks - 1) / kBlocks : 0;
  const auto load_keys = [&](int i) {
    const int64_t first_key = int64_t{block + i * kBlocks} * kAttentionKeys;
    const int num_keys = static_cast<int>(min(int64_t{kAttentionKeys}, keys.num_keys - first_key));
    LoadKeys(m.tile, keys, first_key, num_keys);
    return num_keys;
  };
  if (owner == links.rank && mine > 0) {
    LoadQueries(m.tile, reinterpret_cast<const uint16_t*>(own_q) + int64_t{first_head - own_begin} * kDim,
                kAttentionHeads);
  }
  int num_keys = mine > 0 ? load_keys(0) : 0;
  __syncthreads();
  // All threads have read the round; that it is counted here is known by the end.
  int left_before = 0;
  if (thread == 0 && active) left_before = atomicAdd(&links.state->num_done, 1);

  __syncwarp();
  if (owner != links.rank) {
    WaitForCluster();  // All blocks are there.
    whole =
        TakeQueries<kDim, kBlocks>(cluster, m.tile, links, round, owner,
                                   token * own_words + int64_t{first_head - owner * p.own_heads} * (kDim / 2),
                                   num_tiles, active, all_q + int64_t{first_head} * (kDim / 2));
  }
  for (int i = 0; i < mine; ++i) {
    if (i > 0) num_keys = load_keys(i);
    ComputeLogits(m.tile, results[i].logits, num_keys, p.part.softmax_scale);
    const float max = LargestLogit(results[i].logits);
    const float sum = WeighKeys(m.tile, results[i].logits, max);
    if (thread % 8 == 0) {
      results[i].maxima[thread / 8] = max;
      results[i].sums[thread / 8] = sum;
    }
    __syncthreads();  // Logits have been read: values may replace them.
    SumValues(m.tile, [&](int of, int column, float first, float second) {
      *reinterpret_cast<float2*>(&results[i].values[of][column]) = make_float2(first, second);
    });
    __syncthreads();
  }
  cluster.sync();

  // Rotated columns lie among a thread's last.
  const int place = thread - kAttentionThreads + 2 * p.rotation.num_frequencies;
  Turn turn = {.rotates = place >= 0, .by = make_double2(1.0, 0.0)};
  if (p.rotation.num_frequencies > 0 && owner == links.rank) {
    const int32_t position = p.rotation.positions[token];
    if (position < 0) {
      turn.rotates = false;
      if (block == 0 && first_head == own_begin && thread == 0)
        ReportFault(p.rotation.fault, FaultKind::kPosition, token, 0, position, 0);
    }
    if (turn.rotates) turn.by = Rotation(position, p.rotation.frequencies[place / 2], p.rotation.inverse);
  }
  constexpr int kHeads = kHeadsOfBlock<kBlocks>;
  const JoinedHeads<kDim, kHeads> joined = JoinTiles<kDim, kBlocks>(cluster, results, block, num_tiles);
  __syncwarp();
  ArriveAtCluster();  // Reads of others by this block are done; no part is stored yet.
  constexpr int kWidth = kDim + 2;
  const int64_t head = first_head + block * kHeads;
  const int64_t of_owner = head - int64_t{owner} * p.own_heads;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float* const row = p.part.part + (token * p.part.num_heads + head + h) * kWidth;
#pragma unroll
    for (int i = 0; i < kColumns<kDim> + 2; ++i) {
      const int column = ColumnOf<kDim>(i);
      const float number = NumberOf(joined, h, i);
      // Flags of all threads are the first one's.
      if (i >= kColumns<kDim> && thread != 0) continue;
      row[column] = number;
      if (p.parts == nullptr || owner == links.rank || !active) continue;
      const int64_t word = (token * p.own_heads + of_owner + h) * kWidth + column;
      PushWord(WordPlace(links.mailboxes[owner], round + 1, links.rank, word), __float_as_uint(number),
               MarkOf(round + 1));
    }
  }
  if (p.parts != nullptr && owner == links.rank) {
    // With many ranks head by head: words of all do not fit in registers.
    constexpr int kAtOnce = kRanks <= 4 ? 2 : 1;
    static_assert(kHeads % kAtOnce == 0);
#pragma unroll
    for (int h = 0; h < kHeads; h += kAtOnce) {
      whole = MergeHeads<kDim, kRanks, kAtOnce>(p, joined, h, token, of_owner + h, round + 1, active && whole,
                                                turn) &&
              whole;
    }
  }

  const bool all_whole = __syncthreads_or(whole ? 0 : 1) == 0;
  if (thread == 0 && active) {
    if (!all_whole) atomicExch(&links.state->broken, 1);
    if (left_before == static_cast<int>(gridDim.x * gridDim.y * gridDim.z) - 1) {
      links.state->num_done = 0;
      links.state->round = p.parts == nullptr ? round : round + 1;
    }
  }
  __syncwarp();
  WaitForCluster();  // No block leaves while its results may still be read.
}

}  // namespace over_ranks
}  // namespace dsv4::backend::cuda
