#include <cooperative_groups.h>

#include "backend/cuda/kernels/attention_cluster.h"
#include "backend/cuda/kernels/attention_tile.cuh"
#include "backend/cuda/kernels/begin_kernel.cuh"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;    // Of a cluster; tile t is block t % 8's.
constexpr int kMaxTiles = 4;  // Of a block: what its shared memory holds.
constexpr int64_t kMaxTokens = 8;
constexpr int kHeadsOfBlock = kAttentionHeads / kBlocks;  // That it joins.

// What a tile gave. Its logits lie where its values come.
template <int kDim>
struct TileResults {
  union {
    AttentionLogits logits;
    float values[kAttentionHeads][kDim];
  };
  float sums[kAttentionHeads];
};

template <int kDim>
struct ClusterMemory {
  AttentionTile<kDim> tile;
  float maxima[kAttentionHeads];  // Of the logits of this block's tiles.
  TileResults<kDim> results[1];   // As many as a block has tiles.
};

template <int kDim>
size_t SharedBytes(int64_t tiles_of_block) {
  return sizeof(ClusterMemory<kDim>) + static_cast<size_t>(tiles_of_block - 1) * sizeof(TileResults<kDim>);
}

// Grid: blocks of a cluster, groups of heads, tokens.
template <int kDim>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kAttentionThreads)
    ClusterKernel(const __grid_constant__ SequenceTable table, const AttentionParams p) {
  BeginKernel();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<ClusterMemory<kDim>*>(raw);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t token = blockIdx.z;
  const VisibleKeys keys(table, p, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, int64_t{kAttentionKeys}));
  const int mine = rank < num_tiles ? (num_tiles - rank + kBlocks - 1) / kBlocks : 0;
  const int first_head = static_cast<int>(blockIdx.y) * kAttentionHeads;
  const int num_heads = min(kAttentionHeads, p.num_heads - first_head);
  const int thread = static_cast<int>(threadIdx.x);
  const int head = thread / 8;  // Where eight threads share one.
  const auto load_keys = [&](int i) {
    const int64_t first_key = int64_t{rank + i * kBlocks} * kAttentionKeys;
    const int num_keys = static_cast<int>(min(int64_t{kAttentionKeys}, keys.num_keys - first_key));
    LoadKeys(m.tile, keys, first_key, num_keys);
    return num_keys;
  };

  LoadQueries(m.tile, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim,
              num_heads);
  float max = -INFINITY;
  for (int i = 0; i < mine; ++i) {
    const int num_keys = load_keys(i);
    ComputeLogits(m.tile, m.results[i].logits, num_keys, p.softmax_scale);
    for (int key = 0; key < 8; ++key) max = fmaxf(max, m.results[i].logits[head][thread % 8 * 8 + key]);
  }
  for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
  if (thread % 8 == 0) m.maxima[head] = max;
  cluster.sync();

  // The largest logit of a head among all tiles.
  const auto max_of = [&](int of) {
    float largest = -INFINITY;
    for (int r = 0; r < kBlocks; ++r) largest = fmaxf(largest, cluster.map_shared_rank(m.maxima, r)[of]);
    return largest;
  };
  max = max_of(head);
  // The last tile's keys are still there.
  for (int i = mine - 1; i >= 0; --i) {
    if (i + 1 < mine) load_keys(i);
    const float sum = WeighKeys(m.tile, m.results[i].logits, max);
    if (thread % 8 == 0) m.results[i].sums[head] = sum;
    __syncthreads();  // Logits have been read: values may take their place.
    SumValues(m.tile, [&](int of, int column, float first, float second) {
      *reinterpret_cast<float2*>(&m.results[i].values[of][column]) = make_float2(first, second);
    });
    __syncthreads();
  }
  cluster.sync();

  // Tiles in order. The sink is one more logit without value.
  for (int h = 0; h < kHeadsOfBlock; ++h) {
    const int of = rank * kHeadsOfBlock + h;
    if (of >= num_heads) break;
    float normalizer = expf(p.sink[first_head + of] - max_of(of));
    float o[kDim / kAttentionThreads] = {};
    for (int t = 0; t < num_tiles; ++t) {
      const TileResults<kDim>& results = cluster.map_shared_rank(m.results, t % kBlocks)[t / kBlocks];
      normalizer += results.sums[of];
#pragma unroll
      for (int i = 0; i < kDim / kAttentionThreads; ++i)
        o[i] += results.values[of][i * kAttentionThreads + thread];
    }
    auto* const row = static_cast<uint16_t*>(p.o) + (token * p.num_heads + first_head + of) * kDim;
#pragma unroll
    for (int i = 0; i < kDim / kAttentionThreads; ++i)
      row[i * kAttentionThreads + thread] = Bf16FromFloat(o[i] / normalizer);
  }
  cluster.sync();  // Nobody leaves while its results may still be read.
}

}  // namespace

bool HasAttentionCluster(const AttentionParams& params, int64_t max_keys) {
  return params.num_tokens <= kMaxTokens &&
         InSteps(CeilDiv(max_keys, int64_t{kAttentionKeys})) <= kBlocks * kMaxTiles;
}

void AttentionCluster(CudaContext& context, const SequenceTable& table, const AttentionParams& params,
                      int64_t max_keys) {
  // In steps, so that the launches of one step after another are alike.
  const int64_t tiles_of_block =
      CeilDiv(InSteps(CeilDiv(max_keys, int64_t{kAttentionKeys})), int64_t{kBlocks});
  const dim3 grid(kBlocks, static_cast<unsigned>(CeilDiv(params.num_heads, kAttentionHeads)),
                  static_cast<unsigned>(params.num_tokens));
  const auto launch = [&]<int kDim>() {
    context.Launch(ClusterKernel<kDim>, grid, kAttentionThreads, SharedBytes<kDim>(tiles_of_block), table,
                   params);
  };
  if (params.head_dim == 512) {
    launch.template operator()<512>();
  } else {
    launch.template operator()<128>();
  }
}

}  // namespace dsv4::backend::cuda
