// The keys of a query are cut into tiles of 64; a block takes one tile and 16 heads. A first kernel finds each tile's largest
// logit, a second takes weights relative to the largest of all tiles, which is where the contract's formula rounds them, and
// sums the tile's values, a third combines a head's tiles in order. The cut depends on the query's own keys alone, so a query
// gives the same bits alone, in a batch and in any chunk; and a single query at a long context still fills the device.
//
// The second kernel computes the logits again: it needs the keys anyway, since they are the values, and no buffer of logits
// grows with the context.
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_mma.h"
#include "backend/cuda/kernels/attention/attention_tile.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kHeads = kAttentionHeads;
constexpr int kKeys = kAttentionKeys;
constexpr int kThreads = kAttentionThreads;

__device__ float HeadMax(const float* maxima, int num_tiles) {
  float max = -INFINITY;
  for (int t = 0; t < num_tiles; ++t) max = fmaxf(max, maxima[t]);
  return max;
}

// Grid: tiles, groups of heads, tokens. First for maxima only, then for the values.
template <int kDim, bool kMaximaOnly>
__global__ void __launch_bounds__(kThreads, 2)
    AttentionMmaTileKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                           const PartialResults out) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<TileMemory<kDim>*>(raw);
  const int64_t local_token = blockIdx.z;
  const int64_t token = out.first_token + local_token;
  const VisibleKeys keys(table, p, token);
  const int64_t first_key = blockIdx.x * int64_t{kKeys};
  if (first_key >= keys.num_keys) return;
  const int num_keys = static_cast<int>(min(int64_t{kKeys}, keys.num_keys - first_key));
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int num_heads = min(kHeads, p.num_heads - first_head);
  const int thread = static_cast<int>(threadIdx.x);

  LoadQueries(m.tile, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim,
              num_heads);
  LoadKeys(m.tile, keys, first_key, num_keys);
  ComputeLogits(m.tile, m.logits, num_keys, p.softmax_scale);

  // Eight threads a head, eight keys a thread.
  {
    const int head = thread / 8;
    const int64_t place_of_head = (local_token * p.num_heads + first_head + head) * out.max_tiles;
    if constexpr (kMaximaOnly) {
      const float max = LargestLogit(m.logits);
      if (thread % 8 == 0 && head < num_heads) out.maxima[place_of_head + blockIdx.x] = max;
      return;
    }
    const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
    const float max = head < num_heads ? HeadMax(out.maxima + place_of_head, num_tiles) : 0.0F;
    const float sum = WeighKeys(m.tile, m.logits, max);
    if (thread % 8 == 0 && head < num_heads) out.sums[place_of_head + blockIdx.x] = sum;
  }
  __syncthreads();

  SumValues(m.tile, [&](int head, int column, float first, float second) {
    if (head >= num_heads) return;
    float* const values =
        out.values + ((local_token * p.num_heads + first_head + head) * out.max_tiles + blockIdx.x) * kDim;
    *reinterpret_cast<float2*>(values + column) = make_float2(first, second);
  });
}

// One block a head of a token. The sink is one more logit without value.
template <int kDim>
__global__ void AttentionMmaJoinKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                                       const PartialResults in) {
  BeginKernel();
  const int64_t local_token = blockIdx.x;
  const int64_t token = in.first_token + local_token;
  const int head = static_cast<int>(blockIdx.y);
  const VisibleKeys keys(table, p, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
  const int64_t begin = (local_token * p.num_heads + head) * in.max_tiles;
  float normalizer = expf(p.sink[head] - HeadMax(in.maxima + begin, num_tiles));
  float o[kDim / kThreads] = {};
  for (int t = 0; t < num_tiles; ++t) {
    normalizer += in.sums[begin + t];
#pragma unroll
    for (int i = 0; i < kDim / kThreads; ++i)
      o[i] += in.values[(begin + t) * kDim + i * kThreads + threadIdx.x];
  }
  auto* const row = static_cast<uint16_t*>(p.o) + (token * p.num_heads + head) * kDim;
#pragma unroll
  for (int i = 0; i < kDim / kThreads; ++i)
    row[i * kThreads + threadIdx.x] = Bf16FromFloat(o[i] / normalizer);
}

template <int kDim>
Status Run(CudaContext& context, const SequenceTable& table, const AttentionParams& p, int64_t max_keys) {
  constexpr int kSharedBytes = static_cast<int>(sizeof(TileMemory<kDim>));
  return RunTiles<kDim>(
      context, p.num_heads, p.num_tokens, max_keys, [&](const PartialResults& partial, unsigned count) {
        const dim3 tiles(static_cast<unsigned>(partial.max_tiles),
                         static_cast<unsigned>(CeilDiv(p.num_heads, kHeads)), count);
        context.Launch(AttentionMmaTileKernel<kDim, true>, tiles, kThreads, kSharedBytes, table, p, partial);
        context.Launch(AttentionMmaTileKernel<kDim, false>, tiles, kThreads, kSharedBytes, table, p, partial);
        const dim3 heads(count, static_cast<unsigned>(p.num_heads));
        context.Launch(AttentionMmaJoinKernel<kDim>, heads, kThreads, 0, table, p, partial);
      });
}

}  // namespace

Status AttentionMma(CudaContext& context, const SequenceTable& table, const AttentionParams& params,
                    int64_t max_keys) {
  return params.head_dim == 512 ? Run<512>(context, table, params, max_keys)
                                : Run<128>(context, table, params, max_keys);
}

}  // namespace dsv4::backend::cuda
