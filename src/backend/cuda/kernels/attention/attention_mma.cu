// The keys of a query are cut into tiles of 64; a block takes one tile and 16 heads after the other, as many as leave the device full. A first kernel finds each tile's largest
// logit, a second takes weights relative to the largest of all tiles, which is where the contract's formula rounds them, and
// sums the tile's values, a third combines a head's tiles in order. The cut depends on the query's own keys alone, so a query
// gives the same bits alone, in a batch and in any chunk; and a single query at a long context still fills the device.
//
// The second kernel computes the logits again: it needs the keys anyway, since they are the values, and no buffer of logits
// grows with the context.
#include <algorithm>

#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_mma.h"
#include "backend/cuda/kernels/attention/attention_tile.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kHeads = kAttentionHeads;
constexpr int kKeys = kAttentionKeys;
constexpr int kThreads = kAttentionThreads;

// For all of kLanes neighbouring lanes, each of which looks at every kLanes-th tile.
template <int kLanes>
__device__ float HeadMax(const float* maxima, int num_tiles) {
  float max = -INFINITY;
#pragma unroll 4
  for (int t = static_cast<int>(threadIdx.x) % kLanes; t < num_tiles; t += kLanes)
    max = fmaxf(max, maxima[t]);
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

template <int kDim, bool kAhead>
Status Run(CudaContext& context, const SequenceTable& table, const AttentionParams& p, int64_t max_keys) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(MmaMemory<kDim, kAhead>));
  // Blocks that have all heads read, and widen, a tile's keys once; there are as many as fill the device twice, or more.
  const int64_t head_groups = CeilDiv(p.num_heads, kHeads);
  const auto shares_of = [&](int64_t blocks) {
    return static_cast<unsigned>(
        std::clamp<int64_t>(CeilDiv(2 * int64_t{context.limits().num_sms}, blocks), 1, head_groups));
  };
  return RunTiles<kDim>(context, p.num_heads, p.num_tokens, max_keys,
                        [&](const PartialResults& partial, unsigned count) {
                          const dim3 tiles(static_cast<unsigned>(partial.max_tiles),
                                           shares_of(int64_t{partial.max_tiles} * count), count);
                          context.Launch(AttentionMmaTileKernel<kDim, true, kAhead>, tiles, kThreads,
                                         kSharedBytes, table, p, partial);
                          context.Launch(AttentionMmaTileKernel<kDim, false, kAhead>, tiles, kThreads,
                                         kSharedBytes, table, p, partial);
                          const dim3 heads(count, static_cast<unsigned>(p.num_heads), kDim / kThreads);
                          context.Launch(AttentionMmaJoinKernel<kDim>, heads, kThreads, 0, table, p, partial);
                        });
}

}  // namespace

Status AttentionMma(CudaContext& context, const SequenceTable& table, const AttentionParams& params,
                    int64_t max_keys) {
  if (params.head_dim == 128) return Run<128, true>(context, table, params, max_keys);
  static_assert(sizeof(MmaMemory<512, false>) <= size_t{99} * 1024);
  return sizeof(MmaMemory<512, true>) <= context.limits().shared_bytes
             ? Run<512, true>(context, table, params, max_keys)
             : Run<512, false>(context, table, params, max_keys);
}

}  // namespace dsv4::backend::cuda
