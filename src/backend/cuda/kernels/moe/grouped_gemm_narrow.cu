// Tiles of 256 rows of FP4 weights and up to 32 tokens of an expert, worked off by as many blocks as there
// are SMs.
//
// Beside grouped_gemm_wide: four warpgroups of 64 rows instead of two. One widens while the others' steps are
// in flight. Tiles have 8, 16, 24 or 32 tokens. A thread has the tokens, packed beforehand
// (operand_layout.h), brought by TMA into a ring that all warpgroups read, and another looks for work.
//
// Steps of 16 columns, segments and the order of all sums are those of gemm_mma.cuh. A token's result is the
// same bits as in any other kernel (cuda_many_tokens_test).
#include <utility>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/moe/finish_sums.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_narrow.h"
#include "backend/cuda/kernels/moe/grouped_gemm_weights.cuh"
#include "backend/cuda/kernels/moe/grouped_gemms.h"
#include "backend/cuda/kernels/persistent_clusters.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kGroups = 4;  // Warpgroups that multiply.
constexpr int kRows = 64 * kGroups;
constexpr int kTokens = 32;  // lowering/select/estimate.h counts such tiles.
constexpr int kConsumers = 128 * kGroups;
constexpr int kThreads = kConsumers + 128;  // Registers are given up and taken by whole warpgroups.
constexpr int kConsumerRegisters = 112;
constexpr int kProducerRegisters = 32;
constexpr int kItems = 8;
constexpr int kSlots = 6;
using grouped_weights::Item;
using grouped_weights::kAhead;
using grouped_weights::kBlockCols;
using grouped_weights::kStageCols;
using grouped_weights::kSteps;
using grouped_weights::Weights;

struct Memory {
  uint16_t x[kSlots][2][kTokens * kBlockCols];  // Bytes of a stage.
  Item items[kItems];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  uint64_t item_full[kItems];
  uint64_t item_empty[kItems];
};

struct Params {
  DeviceWeight shape;  // Blocks of all these matrices.
  const DeviceWeight* weights;
  int first_matrix;
  int num_matrices;  // Side by side in a row of y: gate and up, or down.
  PackedRows x;
  ExpertGrouping grouping;
  int row_tiles;  // One matrix's part.
  // [packed rows, num_matrices * rows], or [num_assignments, ...] where rows of y are by assignment.
  uint16_t* y;
  bool by_assignment;
};

// --- Producers, a thread each ------------------------------------------------------------------------------------------

// Tells of all items, as early as they have room.
__device__ __forceinline__ void FindItems(Memory& memory, const Params& p) {
  const int per_tile = p.num_matrices * p.row_tiles;
  const int num_items = *p.grouping.num_tiles * per_tile;
  RingPlace<kItems> place;
  for (int i = static_cast<int>(blockIdx.x);; i += static_cast<int>(gridDim.x)) {
    Item found = {};
    if (i < num_items) {
      const ExpertTile tile = p.grouping.tiles[i / per_tile];
      const int matrix = i % per_tile / p.row_tiles;
      const DeviceWeight& weight = p.weights[tile.expert * kExpertMatrices + p.first_matrix + matrix];
      const int first_row = i % per_tile % p.row_tiles * kRows;
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
__device__ __forceinline__ void BringTokens(Memory& memory, const Params& p) {
  constexpr auto kTogether = static_cast<uint32_t>(kPackedRows);
  const int num_stages = static_cast<int>(p.shape.cols) / kStageCols;
  const int64_t block_bytes = p.x.num_rows * kPackedCols * static_cast<int64_t>(sizeof(uint16_t));
  RingPlace<kSlots> place;
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
#pragma unroll 1
    for (int stage = 0; stage < num_stages; ++stage) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, 2 * num_bytes);
#pragma unroll
      for (auto& x : memory.x[place.i]) {
        CopyBulk(x, from, num_bytes, full);
        from += block_bytes;
      }
      place.Next();
    }
  }
}

// --- Consumers -------------------------------------------------------------------------------------------------------

// Facts of a tile while it is multiplied.
template <int kMost>
struct Tile {
  uint32_t a[2][kSteps][4];
  float sums[kMost / 2] = {};  // The segment's part.
  float total[kMost / 2];
  int left;  // Stages, of the tile and of the segment.
  int segment_left;
  int adds = 0;  // Whether the segment has sums.
};

template <MatmulKind kKind>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(Memory& memory, const Params& p)
      : memory_(memory),
        p_(p),
        num_stages_(static_cast<int>(p.shape.cols) / kStageCols),
        segment_stages_(SegmentCols<kKind>(static_cast<int>(p.shape.cols)) / kStageCols),
        weights_(p.shape) {}

  __device__ __forceinline__ void Run() {
    Begin(item_);
    LoadFrom(0, Places());
    while (ahead_ > 0) {
      const int num_tokens = memory_.items[item_.i].num_tokens;
      if (num_tokens > 24) {
        RunTile<32>();
      } else if (num_tokens > 16) {
        RunTile<24>();
      } else if (num_tokens > 8) {
        RunTile<16>();
      } else {
        RunTile<8>();
      }
      ArriveForWarp(&memory_.item_empty[item_.i]);
      item_.Next();
    }
  }

 private:
  using Places = std::make_integer_sequence<int, kAhead>;

  // Weights of this item are asked for from here on.
  __device__ __forceinline__ void Begin(const RingPlace<kItems>& place) {
    WaitForPhase(&memory_.item_full[place.i], place.parity);
    const Item& item = memory_.items[place.i];
    ahead_ = item.num_tokens > 0 ? num_stages_ : 0;
    weights_.Begin(item);
  }
  template <int kPlace>
  __device__ __forceinline__ void Load() {
    if (kPlace < ahead_) weights_.template Load<kPlace>();
  }
  template <int... kPlaces>
  __device__ __forceinline__ void LoadFrom(int first, std::integer_sequence<int, kPlaces...>) {
    ((kPlaces >= first ? Load<kPlaces>() : void()), ...);
  }
  template <int kMost>
  __device__ __forceinline__ void Multiply(Tile<kMost>& tile, int block, uint64_t x, int adds) {
    FenceRegisters(tile.sums);
    BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      MatrixStep<kMost>::Add(tile.sums, tile.a[block][step], x + 2 * step, step == 0 ? adds : 1);
    CommitMatrixSteps();
  }
  // A stage, whose weights are at `kPlace`. Other warpgroups' steps and widening fill the gap while its own
  // are waited for.
  template <int kMost, int kPlace>
  __device__ __forceinline__ bool MultiplyStage(Tile<kMost>& tile) {
    weights_.template Widen<kPlace>(0, tile.a[0]);
    WaitForPhase(&memory_.full[slot_.i], slot_.parity);
    const uint64_t x = MatrixDescriptor(SharedAddress(memory_.x[slot_.i][0]));
    Multiply(tile, 0, x, tile.adds);
    weights_.template Widen<kPlace>(1, tile.a[1]);
    Load<kPlace>();
    Multiply(tile, 1, x + sizeof(memory_.x[0][0]) / 16, 1);
    tile.adds = 1;
    WaitForMatrixSteps<0>();
    ArriveForWarp(&memory_.empty[slot_.i]);
    slot_.Next();
    if (--tile.segment_left == 0) EndSegment(tile);
    return --tile.left > 0;
  }
  template <int kMost, int... kPlaces>
  __device__ __forceinline__ void MultiplyStages(Tile<kMost>& tile, std::integer_sequence<int, kPlaces...>) {
    while (true) {
      if (tile.left > kAhead) {
        weights_.Advance();
        ahead_ = tile.left - kAhead;
      } else {
        RingPlace<kItems> next = item_;
        next.Next();
        Begin(next);
      }
      const int left = tile.left;
      if ((MultiplyStage<kMost, kPlaces>(tile) && ...)) continue;
      return LoadFrom(left, Places());  // The rest, which this turn did not come to.
    }
  }
  template <int kMost>
  __device__ __forceinline__ void EndSegment(Tile<kMost>& tile) {
    FenceRegisters(tile.sums);
#pragma unroll
    for (int i = 0; i < kMost / 2; ++i) tile.total[i] = tile.total[i] + tile.sums[i];
    tile.segment_left = segment_stages_;
    tile.adds = 0;
  }

  template <int kMost>
  __device__ __forceinline__ void RunTile() {
    Tile<kMost> tile = {.left = num_stages_, .segment_left = segment_stages_};
#pragma unroll
    for (float& total : tile.total) total = -0.0F;  // Adding to it changes nothing.
    MultiplyStages(tile, Places());
    const int thread = static_cast<int>(threadIdx.x);
    const Item& item = memory_.items[item_.i];
    const int num_tokens = item.num_tokens - thread % 4 * 2;  // From this thread's first on.
    const int first = item.first_x_row + thread % 4 * 2;
    int to[kMost / 4];
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      const int token = i / 2 * 8 + i % 2;
      to[i] = first + token;
      if (p_.by_assignment && token < num_tokens) to[i] = p_.grouping.order[first + token];
    }
    if (tile.adds != 0) EndSegment(tile);
    FinishSums<kKind>(p_.shape.global_scale_divides, item.global_scale, tile.total);
    const auto rows = static_cast<int>(p_.shape.rows);
    const int64_t stride = int64_t{p_.num_matrices} * rows;
    uint16_t* const y = p_.y + item.matrix * rows + item.first_row + thread / 32 * 16 + thread % 32 / 4 * 2;
#pragma unroll
    for (int i = 0; i < kMost / 4; ++i) {
      if (i / 2 * 8 + i % 2 >= num_tokens) continue;
      const int at = i / 2 * 4 + i % 2;
      *reinterpret_cast<uint32_t*>(y + to[i] * stride) = Bf16Pair(tile.total[at], tile.total[at + 2]);
    }
  }

  Memory& memory_;
  const Params& p_;
  const int num_stages_;  // Sums of a tile and of a segment.
  const int segment_stages_;
  Weights<kKind> weights_;
  RingPlace<kItems> item_;
  int ahead_ = 0;  // Stages that there are from the one that place 0 gets next.
  RingPlace<kSlots> slot_;
};

template <MatmulKind kKind>
__global__ void __launch_bounds__(kThreads, 1) GroupedGemmNarrowKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *KeptShared(reinterpret_cast<Memory*>(raw_memory));
  BeginKernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1);
      InitBarrier(&memory.empty[i], kConsumers / 32);
    }
    for (int i = 0; i < kItems; ++i) {
      InitBarrier(&memory.item_full[i], 1);
      InitBarrier(&memory.item_empty[i], kConsumers / 32 + 1);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    GiveUpRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers) BringTokens(memory, p);
    if (threadIdx.x == kConsumers + 32) FindItems(memory, p);
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consumer<kKind>(memory, p).Run();
  }
}

template <MatmulKind kKind>
void Launch(LaunchContext& context, const Params& params) {
  LaunchPersistent(context, GroupedGemmNarrowKernel<kKind>,
                   {.blocks = 1, .threads = kThreads, .shared_bytes = sizeof(Memory)}, params);
}

}  // namespace

Status GroupedGemmNarrow(LaunchContext& context, const ExpertTable& table, const TermsWork& work) {
  const auto run = [&](const GroupedGemm& gemm) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x,
                                 Pack(context, gemm.x, gemm.cols, gemm.weight.x_group, gemm.weight.kind));
    const Params params = {.shape = gemm.weight,
                           .weights = table.weights,
                           .first_matrix = gemm.first_matrix,
                           .num_matrices = gemm.num_matrices,
                           .x = x,
                           .grouping = gemm.grouping,
                           .row_tiles = static_cast<int>(gemm.weight.rows / kRows),
                           .y = gemm.y,
                           .by_assignment = gemm.by_assignment};
    gemm.weight.kind == MatmulKind::kMmaNvFp4 ? Launch<MatmulKind::kMmaNvFp4>(context, params)
                                              : Launch<MatmulKind::kMmaMxFp4>(context, params);
    return {};
  };
  return RunGroupedGemms(context, table, work, kTokens, SwigluPlace::kPacking, run);
}

}  // namespace dsv4::backend::cuda
