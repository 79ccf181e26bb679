// The keys of a query are cut into tiles of 64. A block takes one tile and 16 heads after the other, as many
// as leave the device full. A first kernel finds each tile's largest logit. A second takes weights relative
// to the largest of all tiles, where the contract's formula rounds them, and sums the tile's values. A third
// combines a head's tiles in order. The cut depends on the query's own keys alone, so a query gives the same
// bits alone, in a batch and in any chunk. A single query at a long context still fills the device.
//
// The second kernel computes the logits again. It needs the keys anyway, since they are the values, and no
// buffer of logits grows with the context. One query at a long context has a block for each tile that runs at
// once. The first two kernels are then one: the keys stay where they are, and blocks tell each other their
// maxima.
#include <algorithm>

#include "backend/cuda/device/sync/grid_barrier.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_mma.h"
#include "backend/cuda/kernels/attention/attention_tile.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kHeads = kAttentionHeads;
constexpr int kKeys = kAttentionKeys;
constexpr int kThreads = kAttentionThreads;

// For all of kLanes neighbouring lanes, each of which looks at every kLanes-th tile, at many before it waits.
template <int kLanes>
__device__ float HeadMax(const float* maxima, int num_tiles) {
  constexpr int kAtOnce = 128 / kLanes;
  float max = -INFINITY;
  for (int begin = static_cast<int>(threadIdx.x) % kLanes; begin < num_tiles; begin += kAtOnce * kLanes) {
    float some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int t = begin + i * kLanes;
      some[i] = t < num_tiles ? maxima[t] : -INFINITY;
    }
#pragma unroll
    for (const float of_tile : some) max = fmaxf(max, of_tile);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
  return max;
}

// Queries of the 16 heads that are at hand, and of the next ones if there is room for them.
template <int kDim, bool kAhead>
struct MmaMemory {
  AttentionTile<kDim> tile;
  AttentionLogits logits;
};
template <int kDim>
struct MmaMemory<kDim, true> {
  AttentionTile<kDim> tile;
  AttentionLogits logits;
  AttentionQueries<kDim> other_q;
};

// Grid: tiles, shares of groups of heads, tokens. First for maxima only, then for the values.
template <int kDim, bool kMaximaOnly, bool kAhead>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionMmaTileKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                           const PartialResults out) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<MmaMemory<kDim, kAhead>*>(raw);
  const int64_t local_token = blockIdx.z;
  const int64_t token = out.first_token + local_token;
  const VisibleKeys keys(table, p, token);
  const int64_t first_key = blockIdx.x * int64_t{kKeys};
  if (first_key >= keys.num_keys) return;
  const int num_keys = static_cast<int>(min(int64_t{kKeys}, keys.num_keys - first_key));
  const int thread = static_cast<int>(threadIdx.x);
  const auto load_queries = [&](int first_head, AttentionQueries<kDim>& to) {
    LoadQueries<kDim>(to, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim,
                      min(kHeads, p.num_heads - first_head));
  };
  const int step = static_cast<int>(gridDim.y) * kHeads;
  int first_head = static_cast<int>(blockIdx.y) * kHeads;
  load_queries(first_head, m.tile.q);
  LoadKeys(m.tile, keys, first_key, num_keys);
#pragma unroll 1
  for (int i = 0; first_head < p.num_heads; ++i, first_head += step) {
    if (!kAhead && i > 0) {
      __syncthreads();  // All have done with the heads before.
      load_queries(first_head, m.tile.q);
      CommitCopies();
    }
    if (i > 0) {
      WaitForCopies<0>();
      __syncthreads();  // And all have done with the heads before.
    }
    AttentionQueries<kDim>* queries = &m.tile.q;
    if constexpr (kAhead) {
      if (first_head + step < p.num_heads) load_queries(first_head + step, i % 2 == 0 ? m.other_q : m.tile.q);
      CommitCopies();
      if (i % 2 != 0) queries = &m.other_q;
    }
    const AttentionQueries<kDim>& q = *queries;
    const int num_heads = min(kHeads, p.num_heads - first_head);
    ComputeLogits<kDim>(m.tile, q, m.logits, num_keys, p.softmax_scale);

    // Eight threads a head, eight keys a thread.
    const int head = thread / 8;
    const int64_t place_of_head = (local_token * p.num_heads + first_head + head) * out.max_tiles;
    if constexpr (kMaximaOnly) {
      const float max = LargestLogit(m.logits);
      if (thread % 8 == 0 && head < num_heads) out.maxima[place_of_head + blockIdx.x] = max;
    } else {
      const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
      const float of_head = HeadMax<8>(out.maxima + place_of_head, head < num_heads ? num_tiles : 0);
      const float max = head < num_heads ? of_head : 0.0F;
      const float sum = WeighKeys(m.tile, m.logits, max);
      if (thread % 8 == 0 && head < num_heads) out.sums[place_of_head + blockIdx.x] = sum;
      __syncthreads();
      SumValues(m.tile, [&](int of, int column, float first, float second) {
        if (of >= num_heads) return;
        float* const values =
            out.values + ((local_token * p.num_heads + first_head + of) * out.max_tiles + blockIdx.x) * kDim;
        *reinterpret_cast<float2*>(values + column) = make_float2(first, second);
      });
    }
  }
}

// All of the above in one launch. Logits of a block's first groups of heads are kept, and those of the last;
// others are computed again.
template <int kDim>
struct MmaOnceMemory {
  static constexpr int kLogits = 2;
  AttentionTile<kDim> tile;
  AttentionQueries<kDim> other_q;
  AttentionLogits logits[kLogits];
};

// Grid: blocks of a token, tokens. Each has a tile and a share of the groups of heads; there are no fewer
// blocks than tiles.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionMmaOnceKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                           const PartialResults out, GridBarrier* const barriers) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  using Memory = MmaOnceMemory<kDim>;
  auto& m = *reinterpret_cast<Memory*>(raw);
  const int64_t local_token = blockIdx.y;
  const int64_t token = out.first_token + local_token;
  const VisibleKeys keys(table, p, token);
  const auto num_tiles = static_cast<int>(CeilDiv(keys.num_keys, int64_t{kKeys}));
  const int num_groups = (p.num_heads + kHeads - 1) / kHeads;
  const int shares = max(1, min(num_groups, static_cast<int>(gridDim.x) / num_tiles));
  const int tile = static_cast<int>(blockIdx.x) / shares;
  if (tile >= num_tiles) return;
  const int first_key = tile * kKeys;
  const int num_keys = min(kKeys, static_cast<int>(keys.num_keys) - first_key);
  const int share = static_cast<int>(blockIdx.x) % shares;
  const int mine = (num_groups - share + shares - 1) / shares;  // Groups, every shares-th: one at least.
  const int thread = static_cast<int>(threadIdx.x);
  const int head = thread / 8;  // Eight threads a head, eight keys a thread.
  const auto first_head_of = [&](int i) { return (share + i * shares) * kHeads; };
  const auto heads_of = [&](int i) { return min(kHeads, p.num_heads - first_head_of(i)); };
  const auto place_of = [&](int i, int of) {
    return (local_token * p.num_heads + first_head_of(i) + of) * out.max_tiles;
  };
  const auto logits_of = [&](int i) -> AttentionLogits& { return m.logits[min(i, Memory::kLogits - 1)]; };
  const auto load_queries = [&](int i, AttentionQueries<kDim>& to) {
    LoadQueries<kDim>(to, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head_of(i)) * kDim,
                      heads_of(i));
  };

  load_queries(0, m.tile.q);
  LoadKeys(m.tile, keys, first_key, num_keys);
#pragma unroll 1
  for (int i = 0; i < mine; ++i) {
    if (i > 0) {
      WaitForCopies<0>();
      __syncthreads();  // And all have done with the heads before.
    }
    if (i + 1 < mine) load_queries(i + 1, i % 2 == 0 ? m.other_q : m.tile.q);
    CommitCopies();
    ComputeLogits<kDim>(m.tile, i % 2 == 0 ? m.tile.q : m.other_q, logits_of(i), num_keys, p.softmax_scale);
    const float max = LargestLogit(logits_of(i));
    if (thread % 8 == 0 && head < heads_of(i)) out.maxima[place_of(i, head) + tile] = max;
  }

  const auto num_blocks = static_cast<uint32_t>(num_tiles * shares);
  GridBarrier* const barrier = barriers + blockIdx.y;
  ArriveAtBarrier(barrier);
  WaitForBlocks(barrier, num_blocks);
  const uint32_t left = LeaveBarrier(barrier);

#pragma unroll 1
  for (int i = mine - 1; i >= 0; --i) {
    if (i + 1 < mine) {
      __syncthreads();  // All have done with the weights of the heads before.
      if (i >= Memory::kLogits - 1) {
        load_queries(i, m.tile.q);
        CommitCopies();
        WaitForCopies<0>();
        __syncthreads();
        ComputeLogits<kDim>(m.tile, m.tile.q, logits_of(i), num_keys, p.softmax_scale);
      }
    }
    const bool exists = head < heads_of(i);
    const float of_head = HeadMax<8>(out.maxima + (exists ? place_of(i, head) : 0), exists ? num_tiles : 0);
    const float sum = WeighKeys(m.tile, logits_of(i), exists ? of_head : 0.0F);
    if (thread % 8 == 0 && exists) out.sums[place_of(i, head) + tile] = sum;
    __syncthreads();
    SumValues(m.tile, [&](int of, int column, float first, float second) {
      if (of >= heads_of(i)) return;
      *reinterpret_cast<float2*>(out.values + (place_of(i, of) + tile) * kDim + column) =
          make_float2(first, second);
    });
  }
  CloseBarrier(barrier, left, num_blocks);
}

// Grid: tokens, heads, parts of a head's columns, one a thread. The sink is one more logit without value.
template <int kDim>
__global__ void AttentionMmaJoinKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                                       const PartialResults in) {
  BeginKernel();
  const int64_t local_token = blockIdx.x;
  const int64_t token = in.first_token + local_token;
  const int head = static_cast<int>(blockIdx.y);
  const auto column = static_cast<int>(blockIdx.z * kThreads + threadIdx.x);
  const VisibleKeys keys(table, p, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
  const int64_t begin = (local_token * p.num_heads + head) * in.max_tiles;
  const float* const values = in.values + begin * kDim + column;
  float normalizer = expf(p.sink[head] - HeadMax<32>(in.maxima + begin, num_tiles));
  float o = 0.0F;
  constexpr int kAtOnce = 32;  // Tiles that are asked for before any is added.
#pragma unroll 1
  for (int begin = 0; begin < num_tiles; begin += kAtOnce) {
    float some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      some[i] = begin + i < num_tiles ? values[int64_t{begin + i} * kDim] : 0.0F;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i < num_tiles) o += some[i];
    }
  }
#pragma unroll 8
  for (int t = 0; t < num_tiles; ++t) normalizer += in.sums[begin + t];
  static_cast<uint16_t*>(p.o)[(token * p.num_heads + head) * kDim + column] = Bf16FromFloat(o / normalizer);
}

// Blocks of each of so many tokens that have one launch: all of them run at once.
unsigned BlocksOfOnce(const LaunchContext& context, unsigned num_tokens) {
  return 2 * static_cast<unsigned>(context.limits().num_sms) / num_tokens;
}
template <int kDim>
bool RunsOnce(LaunchContext& context, int max_tiles, unsigned num_tokens) {
  const unsigned blocks = BlocksOfOnce(context, num_tokens);
  return num_tokens <= unsigned{kNumGridBarriers} && static_cast<unsigned>(max_tiles) <= blocks &&
         context.RunsAtOnce(reinterpret_cast<const void*>(AttentionMmaOnceKernel<kDim>), blocks * num_tokens,
                            kThreads, sizeof(MmaOnceMemory<kDim>));
}

template <int kDim, bool kAhead>
Status Run(LaunchContext& context, const SequenceTable& table, const AttentionParams& p, int64_t max_keys) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(MmaMemory<kDim, kAhead>));
  // Blocks that have all heads read, and widen, a tile's keys once; there are as many as fill the device
  // twice, or more.
  const int64_t head_groups = CeilDiv(p.num_heads, kHeads);
  const auto shares_of = [&](int64_t blocks) {
    return static_cast<unsigned>(
        std::clamp<int64_t>(CeilDiv(2 * int64_t{context.limits().num_sms}, blocks), 1, head_groups));
  };
  DSV4_ASSIGN_OR_RETURN_STATUS(GridBarrier* const barriers, context.GridBarriers());
  return RunTiles<kDim>(
      context, p.num_heads, p.num_tokens, max_keys, [&](const PartialResults& partial, unsigned count) {
        const dim3 heads(count, static_cast<unsigned>(p.num_heads), kDim / kThreads);
        if (RunsOnce<kDim>(context, partial.max_tiles, count)) {
          context.Launch(AttentionMmaOnceKernel<kDim>, dim3(BlocksOfOnce(context, count), count), kThreads,
                         sizeof(MmaOnceMemory<kDim>), table, p, partial, barriers);
          context.Launch(AttentionMmaJoinKernel<kDim>, heads, kThreads, 0, table, p, partial);
          return;
        }
        const dim3 tiles(static_cast<unsigned>(partial.max_tiles),
                         shares_of(int64_t{partial.max_tiles} * count), count);
        context.Launch(AttentionMmaTileKernel<kDim, true, kAhead>, tiles, kThreads, kSharedBytes, table, p,
                       partial);
        context.Launch(AttentionMmaTileKernel<kDim, false, kAhead>, tiles, kThreads, kSharedBytes, table, p,
                       partial);
        context.Launch(AttentionMmaJoinKernel<kDim>, heads, kThreads, 0, table, p, partial);
      });
}

}  // namespace

Status AttentionMma(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                    int64_t max_keys) {
  if (params.head_dim == 128) return Run<128, true>(context, table, params, max_keys);
  static_assert(sizeof(MmaMemory<512, false>) <= size_t{99} * 1024);
  return sizeof(MmaMemory<512, true>) <= context.limits().shared_bytes
             ? Run<512, true>(context, table, params, max_keys)
             : Run<512, false>(context, table, params, max_keys);
}

}  // namespace dsv4::backend::cuda
