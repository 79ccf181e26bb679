// Attention of up to 8 tokens on tensor cores: a cluster of blocks for 16 heads of a token, combined through
// shared memory.
#include <cooperative_groups.h>

#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/device/sync/stage_times.cuh"
#include "backend/cuda/kernels/attention/attention_tile.cuh"
#include "backend/cuda/kernels/attention/decode_cluster.h"
#include "backend/cuda/kernels/rows/row_steps.cuh"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {
namespace {

namespace cg = cooperative_groups;

// Tile t is that of block t % blocks of a cluster (BlocksOfDecodeCluster).
static_assert(2 * kMaxDecodeClusterFrequencies == kAttentionThreads);

// Result of a tile. Its logits lie where its values come.
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
  float maxima[kAttentionHeads];    // Maxima of the logits of this block's tiles.
  TileResults<kDim> first_results;  // As many as a block has tiles follow each other.
};

template <int kDim>
constexpr size_t SharedBytes(int64_t tiles_of_block) {
  return sizeof(ClusterMemory<kDim>) + static_cast<size_t>(tiles_of_block - 1) * sizeof(TileResults<kDim>);
}

// Grid: blocks of a cluster, groups of heads, tokens.
template <int kDim, int kBlocks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kAttentionThreads)
    DecodeClusterKernel(const __grid_constant__ SequenceTable table, const AttentionParams p,
                        const OutputRotation rotation) {
  constexpr int kHeadsOfBlock = kAttentionHeads / kBlocks;  // Heads that it combines.
  constexpr int kColumns = kDim / kAttentionThreads;
  MarkStage(Stage::kBegin);
  LetNextKernelStart();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& m = *reinterpret_cast<ClusterMemory<kDim>*>(raw);
  TileResults<kDim>* const results = &m.first_results;
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int64_t token = blockIdx.z;
  // Sequences, positions and frequencies come from the host, and no kernel in flight writes them. Numbers of
  // entries are the kernel's in front.
  if (p.num_entries != nullptr) WaitForKernelsBefore();
  const VisibleKeys keys(table, p, token);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, int64_t{kAttentionKeys}));
  const int mine = rank < num_tiles ? (num_tiles - rank + kBlocks - 1) / kBlocks : 0;
  const int first_head = static_cast<int>(blockIdx.y) * kAttentionHeads;
  const int num_heads = min(kAttentionHeads, p.num_heads - first_head);
  const int thread = static_cast<int>(threadIdx.x);
  const int head = thread / 8;  // Only where eight threads share one.
  const auto load_keys = [&](int i) {
    const int64_t first_key = int64_t{rank + i * kBlocks} * kAttentionKeys;
    const int num_keys = static_cast<int>(min(int64_t{kAttentionKeys}, keys.num_keys - first_key));
    LoadKeys(m.tile, keys, first_key, num_keys);
    return num_keys;
  };

  // Columns i * kAttentionThreads + thread of a row are this thread's; those that are rotated lie among the last.
  const int place = thread - kAttentionThreads + 2 * rotation.num_frequencies;
  const int32_t position = rotation.num_frequencies > 0 ? rotation.positions[token] : 0;
  const bool rotates = rotation.num_frequencies > 0 && place >= 0 && position >= 0;
  const float frequency = rotates ? rotation.frequencies[place / 2] : 0.0F;
  MarkStage(Stage::kAsked);
  WaitForKernelsBefore();
  MarkStage(Stage::kInput);

  // A block without tiles asks for nothing that it would not wait for.
  if (mine > 0) {
    LoadQueries(m.tile, static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head) * kDim,
                num_heads);
  }
  float max = -INFINITY;
  for (int i = 0; i < mine; ++i) {
    const int num_keys = load_keys(i);
    MarkFirst(Stage::kReady);
    ComputeLogits(m.tile, results[i].logits, num_keys, p.softmax_scale);
    for (int key = 0; key < 8; ++key) max = fmaxf(max, results[i].logits[head][thread % 8 * 8 + key]);
  }
  for (int offset = 4; offset > 0; offset /= 2) max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
  if (thread % 8 == 0) m.maxima[head] = max;
  cluster.barrier_arrive();

  double2 turn = make_double2(1.0, 0.0);
  if (rotates) turn = Rotation(position, frequency, rotation.inverse);
  if (position < 0 && rank == 0 && blockIdx.y == 0 && thread == 0)
    ReportFault(rotation.fault, FaultKind::kPosition, token, 0, position, 0);
  MarkStage(Stage::kStreamed);
  cluster.barrier_wait();
  MarkStage(Stage::kMet);

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
    const float sum = WeighKeys(m.tile, results[i].logits, max);
    if (thread % 8 == 0) results[i].sums[head] = sum;
    __syncthreads();  // Logits have been read: values may replace them.
    SumValues(m.tile, [&](int of, int column, float first, float second) {
      *reinterpret_cast<float2*>(&results[i].values[of][column]) = make_float2(first, second);
    });
    __syncthreads();
  }
  MarkStage(Stage::kStreamedSecond);
  cluster.sync();
  MarkStage(Stage::kReadySecond);

  // Tiles in order, all heads of this block beside each other. The sink is one more logit without value.
  const int first_of = rank * kHeadsOfBlock;
  float normalizers[kHeadsOfBlock];
  float o[kHeadsOfBlock][kColumns] = {};
#pragma unroll
  for (int h = 0; h < kHeadsOfBlock; ++h) {
    const bool exists = first_of + h < num_heads;
    normalizers[h] = exists ? expf(p.sink[first_head + first_of + h] - max_of(first_of + h)) : 1.0F;
  }
  constexpr int kAtOnce = 8 / kHeadsOfBlock;  // Tiles that are asked for before any is added.
#pragma unroll 1
  for (int first = 0; first < num_tiles; first += kAtOnce) {
    float sums[kAtOnce][kHeadsOfBlock];
    float values[kAtOnce][kHeadsOfBlock][kColumns];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int t = min(first + i, num_tiles - 1);
      const TileResults<kDim>& of_tile = cluster.map_shared_rank(results, t % kBlocks)[t / kBlocks];
#pragma unroll
      for (int h = 0; h < kHeadsOfBlock; ++h) {
        sums[i][h] = of_tile.sums[first_of + h];
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          values[i][h][c] = of_tile.values[first_of + h][c * kAttentionThreads + thread];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= num_tiles) break;
#pragma unroll
      for (int h = 0; h < kHeadsOfBlock; ++h) {
        normalizers[h] += sums[i][h];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) o[h][c] += values[i][h][c];
      }
    }
  }
  cluster.barrier_arrive();  // This block has read the others' results.
#pragma unroll
  for (int h = 0; h < kHeadsOfBlock; ++h) {
    if (first_of + h >= num_heads) break;
    auto* const row = static_cast<uint16_t*>(p.o) + (token * p.num_heads + first_head + first_of + h) * kDim;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[h][i] = RoundToBf16(o[h][i] / normalizers[h]);
    if (rotation.num_frequencies > 0) {
      // Pairs of columns are neighbours in a warp.
      float& value = o[h][kColumns - 1];
      const float other = __shfl_xor_sync(kWholeWarp, value, 1);
      if (rotates) {
        const bool odd = thread % 2 != 0;
        const float2 pair = Rotated(odd ? other : value, odd ? value : other, turn, true);
        value = odd ? pair.y : pair.x;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) row[i * kAttentionThreads + thread] = Bf16FromFloat(o[h][i]);
  }
  cluster.barrier_wait();  // No block leaves while its results may still be read.
  EndStages(StageKernel::kAttention, 0);
}

dim3 Grid(const AttentionParams& p, int blocks) {
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(CeilDiv(p.num_heads, kAttentionHeads)),
              static_cast<unsigned>(p.num_tokens));
}

// Clusters that run at once, where each block has as many tiles as it holds.
template <int kDim>
int64_t MostClusters(LaunchContext& context, int blocks) {
  const void* const kernel = blocks == 16  ? reinterpret_cast<const void*>(DecodeClusterKernel<kDim, 16>)
                             : blocks == 8 ? reinterpret_cast<const void*>(DecodeClusterKernel<kDim, 8>)
                                           : reinterpret_cast<const void*>(DecodeClusterKernel<kDim, 4>);
  return context.MostClusters(kernel, static_cast<unsigned>(blocks), kAttentionThreads,
                              SharedBytes<kDim>(kMaxDecodeBlockTiles));
}

}  // namespace

void LaunchDecodeCluster(LaunchContext& context, const AttentionWork& work, const OutputRotation& rotation) {
  const AttentionParams& p = work.params;
  // In steps, so that the launches of one step after another are alike.
  const int64_t tiles = InSteps(CeilDiv(work.max_keys, int64_t{kAttentionKeys}));
  const auto launch_with = [&]<int kDim, int kBlocks>() {
    context.Launch(DecodeClusterKernel<kDim, kBlocks>, Grid(p, kBlocks), kAttentionThreads,
                   SharedBytes<kDim>(CeilDiv(tiles, int64_t{kBlocks})), work.table, p, rotation);
  };
  const auto launch = [&]<int kDim>() {
    const int64_t clusters = CeilDiv(p.num_heads, int64_t{kAttentionHeads}) * p.num_tokens;
    const auto room = [&](int blocks) { return MostClusters<kDim>(context, blocks); };
    switch (BlocksOfDecodeCluster(tiles, clusters, room)) {
      case 16:
        return launch_with.template operator()<kDim, 16>();
      case 4:
        return launch_with.template operator()<kDim, 4>();
      default:
        return launch_with.template operator()<kDim, 8>();
    }
  };
  return p.head_dim == 512 ? launch.template operator()<512>() : launch.template operator()<128>();
}

}  // namespace dsv4::backend::cuda
