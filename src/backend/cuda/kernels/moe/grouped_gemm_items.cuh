// Common parts of grouped_gemm_wide and grouped_gemm_narrow: items of work, and tokens that TMA brings. `Size` has the sizes of tiles, blocks and rings.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_weights.cuh"
#include "backend/cuda/kernels/moe/grouped_gemms.h"
#include "backend/cuda/kernels/persistent_clusters.h"

namespace dsv4::backend::cuda::grouped_weights {

inline constexpr int kItems = 8;

template <typename Size>
struct Memory {
  uint16_t x[Size::kSlots][2][Size::kTokens * kBlockCols];  // Bytes of a stage.
  Item items[kItems];
  uint64_t full[Size::kSlots];
  uint64_t empty[Size::kSlots];
  uint64_t item_full[kItems];
  uint64_t item_empty[kItems];

  // By one thread.
  __device__ __forceinline__ void InitBarriers() {
    for (int i = 0; i < Size::kSlots; ++i) {
      InitBarrier(&full[i], 1);
      InitBarrier(&empty[i], Size::kCluster * Size::kConsumers / 32);
    }
    for (int i = 0; i < kItems; ++i) {
      InitBarrier(&item_full[i], 1);
      InitBarrier(&item_empty[i], Size::kConsumers / 32 + 1);
    }
    PublishBarriers();
  }
};

struct Params {
  DeviceWeight shape;  // Blocks of all these matrices.
  const DeviceWeight* weights;
  int first_matrix;
  int num_matrices;  // Side by side in a row of y: gate and up, or down.
  PackedRows x;
  ExpertGrouping grouping;
  int row_clusters;  // One matrix's part.
  // [packed rows, num_matrices * rows], or [num_assignments, ...] where rows of y are by assignment.
  uint16_t* y;
  bool by_assignment;
};

// --- Producers, a thread each ------------------------------------------------------------------------------------------

// Tells of all items, as early as they have room.
template <typename Size>
__device__ __forceinline__ void FindItems(Memory<Size>& memory, const Params& p) {
  const int rank = static_cast<int>(blockIdx.x % Size::kCluster);
  const int per_tile = p.num_matrices * p.row_clusters;
  const int num_items = *p.grouping.num_tiles * per_tile;
  RingPlace<kItems> place;
  for (int i = static_cast<int>(blockIdx.x / Size::kCluster);;
       i += static_cast<int>(gridDim.x / Size::kCluster)) {
    Item found = {};
    if (i < num_items) {
      const ExpertTile tile = p.grouping.tiles[i / per_tile];
      const int matrix = i % per_tile / p.row_clusters;
      const DeviceWeight& weight = p.weights[tile.expert * kExpertMatrices + p.first_matrix + matrix];
      const int first_row = (i % per_tile % p.row_clusters * Size::kCluster + rank) * Size::kRows;
      found = {.data = weight.data + first_row * (p.shape.cols / 2),
               .scale = static_cast<const uint8_t*>(weight.scale) + first_row * p.shape.scale_cols,
               .global_scale = weight.global_scale,
               .matrix = matrix,
               .first_row = first_row,
               .first_x_row = tile.begin,
               .num_tokens = tile.count};
    }
    WaitForPhase(&memory.item_empty[place.i], place.parity ^ 1U);
    memory.items[place.i] = found;
    Arrive(&memory.item_full[place.i]);
    if (found.num_tokens == 0) return;
    place.Next();
  }
}

// Has this block's share of the tokens brought to all blocks of the cluster.
template <typename Size>
__device__ __forceinline__ void BringTokens(Memory<Size>& memory, const Params& p) {
  constexpr auto kTogether = static_cast<uint32_t>(kPackedRows);
  const int num_stages = static_cast<int>(p.shape.cols) / kStageCols;
  const int64_t block_bytes = p.x.num_rows * kPackedCols * static_cast<int64_t>(sizeof(uint16_t));
  RingPlace<Size::kSlots> place;
  RingPlace<kItems> item_place;
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const Item& item = memory.items[item_place.i];
    const auto num_tokens = static_cast<uint32_t>(item.num_tokens);
    const auto* from = reinterpret_cast<const unsigned char*>(p.x.data + item.first_x_row * kPackedCols);
    if (num_tokens == 0) return;
    Arrive(&memory.item_empty[item_place.i]);
    item_place.Next();
    const uint32_t num_bytes = (num_tokens + kTogether - 1) / kTogether * kTogether *
                               static_cast<uint32_t>(kBlockCols * sizeof(uint16_t));
    const uint32_t share = num_bytes / Size::kCluster;
    const uint32_t offset = blockIdx.x % Size::kCluster * share;
    from += offset;
#pragma unroll 1
    for (int stage = 0; stage < num_stages; ++stage) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, 2 * num_bytes);
#pragma unroll
      for (auto& x : memory.x[place.i]) {
        if constexpr (Size::kCluster == 1) {
          CopyBulk(x, from, num_bytes, full);
        } else {
          CopyBulkToCluster(reinterpret_cast<unsigned char*>(x) + offset, from, share, full,
                            (1U << Size::kCluster) - 1U);
        }
        from += block_bytes;
      }
      place.Next();
    }
  }
}

// --- Consumers -------------------------------------------------------------------------------------------------------

// Facts of a tile while it is multiplied, `kBlocks` blocks of it widened at a time.
template <int kMost, int kBlocks>
struct Tile {
  uint32_t a[kBlocks][kSteps][4];
  float sums[kMost / 2] = {};  // The segment's part.
  float total[kMost / 2];
  int left;  // Stages, of the tile and of the segment.
  int segment_left;
  int adds = 0;  // Whether the segment has sums.
};

// `launch(Params, MatmulKind constant)`, for both launches of the experts.
template <typename Size, typename Launch>
Status RunItems(LaunchContext& context, const ExpertTable& table, const TermsWork& work, Launch&& launch) {
  const auto run = [&](const GroupedGemm& gemm) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x,
                                 Pack(context, gemm.x, gemm.cols, gemm.weight.x_group, gemm.weight.kind));
    const Params params = {
        .shape = gemm.weight,
        .weights = table.weights,
        .first_matrix = gemm.first_matrix,
        .num_matrices = gemm.num_matrices,
        .x = x,
        .grouping = gemm.grouping,
        .row_clusters = static_cast<int>(gemm.weight.rows / (Size::kCluster * Size::kRows)),
        .y = gemm.y,
        .by_assignment = gemm.by_assignment};
    switch (gemm.weight.kind) {
      case MatmulKind::kMmaNvFp4:
        launch.template operator()<MatmulKind::kMmaNvFp4>(params);
        break;
      case MatmulKind::kMmaMxFp4:
        launch.template operator()<MatmulKind::kMmaMxFp4>(params);
        break;
      default:
        launch.template operator()<MatmulKind::kMmaMxFp4Stored>(params);
    }
    return {};
  };
  return RunGroupedGemms(context, table, work, Size::kTokens, SwigluPlace::kPacking, run);
}

}  // namespace dsv4::backend::cuda::grouped_weights
