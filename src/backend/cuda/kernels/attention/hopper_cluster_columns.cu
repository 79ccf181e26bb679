// The arithmetic is that of hopper_two_pass.cu, in the same order. There are tiles of 64 keys, and weights
// are relative to the largest logit of all. A tile's values are summed by themselves, and tiles are added in
// order. Here a token has a cluster of blocks. Each computes the logits of every n-th tile and keeps them in
// registers. All tell each other their largest. Then each goes through all tiles for its share of the
// columns, so that nothing need be combined. Weights stay in the block of their tile, in the layout of
// register operands, and others read them from there. Their room elsewhere is that of columns on their way.
//
// Every key is read twice from beyond shared memory, once whole and once in pieces, and queries once a block.
// Three things keep copies in flight all the time. Columns are asked for as soon as there is room for them,
// which is while logits are computed. Barriers count them, and no thread that asks waits for them. All rows'
// addresses are looked up in the beginning, by the threads that wait for the first.
//
// Two warpgroups have every other tile of the block's, then half of its columns each; two more bring
// everything.
#include "backend/cuda/device/sync/cluster_reads.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/hopper_cluster_columns.h"
#include "backend/cuda/kernels/attention/hopper_columns_rows.cuh"
#include "backend/cuda/kernels/attention/hopper_softmax.cuh"
#include "backend/cuda/kernels/attention/hopper_weights.cuh"

namespace dsv4::backend::cuda {
namespace {

using namespace columns;  // NOLINT(google-build-using-namespace): all of it is this kernel's.

// --- Consumers -------------------------------------------------------------------------------------------------------

// A warpgroup's.
__device__ __forceinline__ void MeetGroup(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kConsumers / 2) : "memory");
}

template <int kBlocks, bool kPacked>
__device__ __forceinline__ void Consume(Shared<kBlocks, kPacked>& m, const AttentionParams& p,
                                        const Item& item) {
  using C = Cut<kBlocks, kPacked>;
  constexpr int kMostMine = C::kMostTilesOfGroup;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / 128;
  const int lane = thread % 32;
  const int place = PlaceOf(thread);
  const int row = RowOf(thread);
  const int mine = (item.num_own + 1 - group) / 2;
  float sinks[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    sinks[r] = row + 8 * r < item.num_heads ? p.sink[item.first_head + row + 8 * r] : -INFINITY;

  // Number of this warpgroup's tile i.
  const auto tile_of = [&](int i) { return (2 * i + group) * kBlocks + item.rank; };
  float maxima[2] = {-INFINITY, -INFINITY};
  float logits[kMostMine][kLogits] = {};
#pragma unroll
  for (int i = 0; i < kMostMine; ++i) {
    if (i >= mine) continue;
    // Computed anew for each tile: descriptors of all steps would not fit in registers.
    uint32_t q_address = SharedAddress(m.place);
    uint32_t key_address = SharedAddress(m.place) + kKeysBegin + group * kRowsBytes;
    asm volatile("" : "+r"(q_address), "+r"(key_address));
    FenceRegisters(logits[i]);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if (i == 0) WaitForPhase(&m.q_full[half], 0);
      WaitForPhase(&m.keys_full[group][half], i & 1);
      PublishToMatrixSteps();
      BeginMatrixSteps();
#pragma unroll
      for (int b = 0; b < kDim / kCols / kHalves; ++b) {
        const int block = half * (kDim / kCols / kHalves) + b;
        const uint64_t a = MatrixDescriptor(q_address + block * kBlockBytes);
        const uint64_t k = MatrixDescriptor(key_address + block * kBlockBytes);
#pragma unroll
        for (int step = 0; step < kCols / 16; ++step)
          SharedMatrixStep<kKeys>::Add(logits[i], a + 2 * step, k + 2 * step, block + step > 0 ? 1 : 0);
      }
      CommitMatrixSteps();
    }
    WaitForMatrixSteps<0>();
    FenceRegisters(logits[i]);
    if (lane == 0) Arrive(&m.keys_empty[group]);
    const int num_keys = item.num_keys - tile_of(i) * kKeys;
#pragma unroll
    for (int k = 0; k < kLogits; ++k) {
      logits[i][k] = LogitOf(logits[i][k], k, 0, num_keys, place, p.softmax_scale);
      maxima[k / 2 % 2] = fmaxf(maxima[k / 2 % 2], logits[i][k]);
    }
  }

  // A block that has all largest logits knows that all have used their queries and keys: weights may replace
  // them.
  ShareLargest(maxima);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    for (int to = place; to < kBlocks; to += 4)
      SendTo(&m.maxima[item.rank][group][row + 8 * r], maxima[r], &m.maxima_came, to);
  }
  WaitForReceipts(&m.maxima_came);
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) maxima[r] = fmaxf(maxima[r], m.maxima[i / 2][i % 2][row + 8 * r]);
  }

  const int sums_begin = C::OwnTiles(item.num_tiles) * kBlockBytes;
#pragma unroll
  for (int i = 0; i < kMostMine; ++i) {
    if (i >= mine) continue;
    const int own = 2 * i + group;  // Tiles of this block.
    auto* const sums = reinterpret_cast<float*>(m.place + sums_begin + own * kSumBytes);
    WeighLogits(logits[i], maxima, logits[i]);
    StoreWeightsOfThreads(m.place + own * kBlockBytes, logits[i], thread % 128);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = SumOfTile(logits[i], r, place);
      if (place == 3) sums[row + 8 * r] = sum;
    }
    MeetGroup(group);
    if (thread % 128 < kBlocks) ArriveAtBlock(&m.weights_came[tile_of(i)], thread % 128);
  }
  __syncwarp();

  // The sink is one more logit without value.
  float normalizers[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) normalizers[r] = expf(sinks[r] - maxima[r]);
  float o[C::kGroupColumns / 2] = {};
  if (group < C::kGroups) {
    const int num_slots = C::NumSlots(item.num_tiles);
#pragma unroll 1
    for (int tile = 0; tile < item.num_tiles; ++tile) {
      const auto [slot, round] = PlaceOfFill(tile * C::kGroups + group, num_slots);
      WaitForReceipts(&m.weights_came[tile]);
      const uint32_t there = AddressInBlock(SharedAddress(m.place), tile % kBlocks);
      const int own = tile / kBlocks;
      uint32_t weights[kKeys / 16][4];
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        LoadFromBlock(weights[step], there + own * kBlockBytes + step * kStepBytes + thread % 128 * 16);
      float sums[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[r] = LoadFromBlock(there + sums_begin + own * kSumBytes +
                                (row + 8 * r) * static_cast<int>(sizeof(float)));
      }
      WaitForPhase(&m.slot_full[slot], round & 1);
      PublishToMatrixSteps();
      float values[C::kGroupColumns / 2];
      BeginValues<C::kGroupColumns>(values, weights, SharedAddress(m.place) + C::SlotBegin(slot));
#pragma unroll
      for (int r = 0; r < 2; ++r) normalizers[r] += sums[r];
      FinishValues(values);
      if (lane == 0) Arrive(&m.slot_empty[slot]);
#pragma unroll
      for (int i = 0; i < C::kGroupColumns / 2; ++i) o[i] += values[i];
      FenceRegisters(o);
    }
  }
  __syncwarp();
  ArriveAtCluster();  // Reads of others' weights by this thread are done.
  if (group >= C::kGroups) return;

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = row + 8 * r;
    if (head >= item.num_heads) continue;
    auto* const out = static_cast<uint16_t*>(p.o) +
                      (item.token * p.num_heads + item.first_head + head) * kDim + item.rank * C::kColumns +
                      group * C::kGroupColumns + place * 2;
    const auto store = [&](auto&& quotient) {
#pragma unroll
      for (int i = 0; i < C::kGroupColumns / 8; ++i) {
        const int j = i * 4 + r * 2;
        *reinterpret_cast<uint32_t*>(out + i * 8) = Bf16Pair(quotient(o[j]), quotient(o[j + 1]));
      }
    };
    DivideRow(o, r, normalizers[r], store);
  }
}

// Grid: blocks of a cluster, groups of heads, tokens.
template <int kBlocks, bool kPacked>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads, 1)
    HopperClusterColumnsKernel(const __grid_constant__ SequenceTable table,
                               const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& m = *reinterpret_cast<Shared<kBlocks, kPacked>*>(raw);
  const int thread = static_cast<int>(threadIdx.x);
  const auto rank = static_cast<int>(blockIdx.x);
  if (thread == 0) {
    for (int half = 0; half < kHalves; ++half) InitBarrier(&m.q_full[half], kProducers);
    for (int odd = 0; odd < 2; ++odd) {
      for (int half = 0; half < kHalves; ++half) InitBarrier(&m.keys_full[odd][half], kProducers);
      InitBarrier(&m.keys_empty[odd], kConsumers / 2 / 32);
    }
    InitReceipts(&m.maxima_came, sizeof(m.maxima));
  }
  if (thread < kMostSlots) {
    InitBarrier(&m.slot_full[thread], kProducers);
    InitBarrier(&m.slot_empty[thread], kConsumers / 2 / 32);
  }
  static_assert(kMostSlots <= 32 && kMostTiles <= 32);
  if (thread < kMostTiles) InitBarrier(&m.weights_came[thread], 1);
  if (thread < 32) PublishBarriers();
  __syncthreads();
  ArriveAtClusterRelaxed();
  BeginKernel();

  const int64_t token = blockIdx.z;
  const VisibleKeys keys(table, p, token);
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const auto num_keys = static_cast<int>(keys.num_keys);
  const int num_tiles = (num_keys + kKeys - 1) / kKeys;
  const Item item = {.token = token,
                     .first_head = first_head,
                     .num_heads = min(kHeads, p.num_heads - first_head),
                     .num_keys = num_keys,
                     .num_tiles = num_tiles,
                     .rank = rank,
                     .num_own = (num_tiles - rank + kBlocks - 1) / kBlocks};  // None where tiles are fewer.
  Bringing<kBlocks, kPacked> bring(m, p, item);
  if (thread >= kConsumers) {
    if (item.num_own > 0) BringFirst(m, bring, p, item, keys);
  } else {
    for (int key = thread; key < num_tiles * kKeys; key += kConsumers)
      m.rows[key] = key < num_keys ? keys.template Row<uint16_t>(key) : nullptr;
  }
  __syncthreads();
  WaitForCluster();  // The others' barriers are there.
  if (thread >= kConsumers) {
    GiveUpRegisters<kRegistersOfBringer>();
    bring.Rest();
    __syncwarp();
    ArriveAtClusterRelaxed();
  } else {
    TakeRegisters<kRegistersOfConsumer>();
    Consume(m, p, item);
  }
  // No block leaves while others may read its weights.
  __syncwarp();
  WaitForCluster();
}

int64_t NumHeadGroups(const AttentionParams& p) { return CeilDiv(p.num_heads, kHeads); }

}  // namespace

int64_t ColumnClusters(LaunchContext& context, int blocks) {
  const auto most = [&]<int kBlocks>() {
    return context.MostClusters(reinterpret_cast<const void*>(HopperClusterColumnsKernel<kBlocks, false>),
                                kBlocks, kThreads, sizeof(Shared<kBlocks, false>));
  };
  if (blocks == 8) return most.template operator()<8>();
  return blocks == 4 ? most.template operator()<4>() : most.template operator()<2>();
}

Status HopperClusterColumns(LaunchContext& context, const SequenceTable& table, const AttentionParams& params,
                            int num_blocks) {
  const auto launch = [&]<int kBlocks>() {
    const dim3 grid(kBlocks, static_cast<unsigned>(NumHeadGroups(params)),
                    static_cast<unsigned>(params.num_tokens));
    if (table.form == StoredForm::kRelease) {
      context.Launch(HopperClusterColumnsKernel<kBlocks, true>, grid, kThreads, sizeof(Shared<kBlocks, true>),
                     table, params);
    } else {
      context.Launch(HopperClusterColumnsKernel<kBlocks, false>, grid, kThreads,
                     sizeof(Shared<kBlocks, false>), table, params);
    }
  };
  switch (num_blocks) {
    case 8:
      launch.template operator()<8>();
      break;
    case 4:
      launch.template operator()<4>();
      break;
    default:
      launch.template operator()<2>();
  }
  return {};
}

}  // namespace dsv4::backend::cuda
