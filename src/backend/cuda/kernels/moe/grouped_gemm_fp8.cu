// Tiles of 64 rows of weights and up to 256 tokens of an expert. Two warpgroups turn weights into e4m3 in a
// ring of blocks of 128 columns. TMA brings the tokens there, to both blocks of a cluster, which take the
// same tokens and neighbouring rows. Two warps fill one slot of the ring and no other. So four blocks of
// columns are in the making at a time and a thread has four pieces of each. One after the other, a piece a
// thread, they would wait for themselves. Two warpgroups multiply, each with half of the tokens, and take
// turns, so that one adds up while the other's products are on tensor cores.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/e4m3_steps.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/moe/grouped_gemm_fp8.h"
#include "backend/cuda/kernels/moe/grouped_gemms.h"
#include "backend/cuda/kernels/packing/e4m3_experts.h"
#include "backend/cuda/kernels/packing/operand_layout_fp8.h"
#include "backend/cuda/kernels/persistent_clusters.h"

namespace dsv4::backend::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kTokens = 256;
constexpr int kConsumers = 256;
constexpr int kProducers = 256;
constexpr int kThreads = kConsumers + kProducers;
constexpr int kConsumerRegisters = 160;
constexpr int kProducerRegisters = 65536 / kProducers - kConsumerRegisters;
constexpr int kCluster = 2;
constexpr int kSlots = 4;
constexpr int kGroupThreads = kProducers / kSlots;  // The producers of a slot.
constexpr int kPieces =
    kRows * 4 / kGroupThreads;  // Elements of each lane: 32 columns of a row, which share a scale.
constexpr int kPieceRows = kRows / kPieces;  // From one to the next.
// Items announced ahead of the current one. The blocks of columns that are asked for thereby belong to known
// items, even if a block is the only one of its item.
constexpr int kItemsAhead = kSlots;
constexpr int kItems = 2 * kItemsAhead;
constexpr int kBlockBytes = kE4m3Cols / 2;  // Bytes of a block of MXFP4: four lanes' 16 bytes, a scale each.
static_assert(kE4m3Cols == 4 * kMxFp4Block && kE4m3Cols == kPackedFp8Cols && kPieceRows == 16);

struct Item {
  const uint8_t* data;
  const uint8_t* scale;
  const uint8_t* largest_scales;  // Its rows'.
  int matrix;
  int first_row;
  int first_x_row;
  int num_tokens;  // 0: there is no more work.
};

struct Slot {
  uint8_t weights[kRows * kE4m3Cols];
  uint8_t x[kTokens * kE4m3Cols];
};
static_assert(sizeof(Slot) % 1024 == 0);

struct Memory {
  Slot slots[kSlots];
  float scales[kSlots][kTokens];    // X's.
  uint2 grids[kE4m3ScaleSpan + 2];  // e2m1's eight magnitudes as e4m3, times 2^(i + 6 - 14).
  Item items[kItems];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  uint64_t item_full[kItems];
  uint64_t item_empty[kItems];
  uint64_t turns[2];  // Turns of the consumers' warpgroups.
};

struct Params {
  DeviceWeight shape;  // Shape of all these matrices.
  const DeviceWeight* weights;
  const uint8_t* largest_scales;  // E4m3Experts.
  int64_t max_rows;
  int first_matrix;
  int num_matrices;  // Side by side in a row of y: gate and up, or down.
  PackedFp8 x;
  ExpertGrouping grouping;
  int row_clusters;  // A matrix's.
  // [packed rows, num_matrices * rows], or [num_assignments, ...] where rows of y are by assignment.
  uint16_t* y;
  bool by_assignment;
};

__device__ __forceinline__ int RowsOfPacked(int count) {
  constexpr int kTogether = static_cast<int>(kPackedRows);
  return (count + kTogether - 1) / kTogether * kTogether;
}

__device__ __forceinline__ bool FindItem(const Params& p, int i, Item& item) {
  const int per_tile = p.num_matrices * p.row_clusters;
  if (i >= *p.grouping.num_tiles * per_tile) return false;
  const ExpertTile tile = p.grouping.tiles[i / per_tile];
  const int matrix = i % per_tile / p.row_clusters;
  const int place = tile.expert * kExpertMatrices + p.first_matrix + matrix;
  const DeviceWeight& weight = p.weights[place];
  const int rank = static_cast<int>(blockIdx.x % kCluster);
  item = {.data = weight.data,
          .scale = static_cast<const uint8_t*>(weight.scale),
          .largest_scales = p.largest_scales + place * p.max_rows,
          .matrix = matrix,
          .first_row = (i % per_tile % p.row_clusters * kCluster + rank) * kRows,
          .first_x_row = tile.begin,
          .num_tokens = tile.count};
  return true;
}

// --- Producers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t MagnitudesAsE4m3(int first, float scale) {
  constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float value = first == 0 ? kMagnitudes[i] : kMagnitudes[i + 4];
    codes |= static_cast<uint32_t>(__nv_cvt_float_to_fp8(value * scale, __NV_SATFINITE, __NV_E4M3)) << 8 * i;
  }
  return codes;
}

// Eight codes of e2m1 as e4m3 on a grid of Memory::grids. Magnitudes are looked up among the grid's eight
// bytes, four at a time. Signs are the codes' own bits, which stand at the top of a byte in `word` or four to
// the left.
__device__ __forceinline__ uint2 E4m3FromE2m1(uint32_t word, uint2 grid) {
  constexpr uint32_t kSigns = 0x80808080U;
  const uint32_t magnitudes = word & 0x77777777U;
  const uint32_t shifted = word << 4;
  return make_uint2(
      __byte_perm(grid.x, grid.y, magnitudes) | (__byte_perm(shifted, word, 0x5140) & kSigns),
      __byte_perm(grid.x, grid.y, magnitudes >> 16) | (__byte_perm(shifted, word, 0x7362) & kSigns));
}

__device__ __forceinline__ void StoreShared(uint32_t address, uint2 a, uint2 b) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a.x), "r"(a.y), "r"(b.x),
               "r"(b.y)
               : "memory");
}

// Weights, read once, into registers; asked for here and not later.
__device__ __forceinline__ uint4 AskForPiece(const uint8_t* from) {
  uint4 piece;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(from));
  return piece;
}
__device__ __forceinline__ uint32_t AskForScale(const uint8_t* from) {
  uint32_t scale;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(scale) : "l"(from));
  return scale;
}

// A producer's part of the weights: kPieces pieces of every block of columns that is its group's, one block
// ahead, through all items.
class Weights {
 public:
  __device__ __forceinline__ Weights(Memory& memory, const DeviceWeight& shape, int group, int thread)
      : memory_(memory),
        shape_(shape),
        thread_(thread),
        num_blocks_(static_cast<int>(shape.cols) / kE4m3Cols),
        block_(num_blocks_ + group) {}

  // Asks for the group's next block.
  __device__ __forceinline__ void Ask() {
    while (!done_ && block_ >= num_blocks_) {
      block_ -= num_blocks_;
      NextItem();
    }
    if (done_) return;
    const uint8_t* from = from_ + block_ * int64_t{kBlockBytes};
    const uint8_t* scale_from = scales_from_ + block_ * int64_t{kE4m3Cols / kMxFp4Block};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      pieces_[i] = AskForPiece(from);
      scales_[i] = AskForScale(scale_from);
      from += kPieceRows * (shape_.cols / 2);
      scale_from += kPieceRows * shape_.scale_cols;
    }
    block_ += kSlots;
  }
  // Turns what was asked for into e4m3.
  __device__ __forceinline__ void Convert() {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      // A block of zeros may have any scale.
      const int below = static_cast<int>(scales_[i]) - static_cast<int>(largest_scales_[i]) + kE4m3ScaleSpan;
      const uint2 grid = memory_.grids[min(max(below, 0), kE4m3ScaleSpan)];
      eights_[i][0] = E4m3FromE2m1(pieces_[i].x, grid);
      eights_[i][1] = E4m3FromE2m1(pieces_[i].y, grid);
      eights_[i][2] = E4m3FromE2m1(pieces_[i].z, grid);
      eights_[i][3] = E4m3FromE2m1(pieces_[i].w, grid);
    }
  }
  // Sixteen bytes i of a row lie at i ^ row % 8.
  __device__ __forceinline__ void Store(uint32_t to) const {
    const uint32_t place = static_cast<uint32_t>(thread_) / 4;
    const uint32_t first = to + place * kE4m3Cols + (place % 8 ^ static_cast<uint32_t>(thread_) % 4 * 2) * 16;
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      StoreShared(first + i * kPieceRows * kE4m3Cols, eights_[i][0], eights_[i][1]);
      StoreShared((first ^ 16U) + i * kPieceRows * kE4m3Cols, eights_[i][2], eights_[i][3]);
    }
  }

 private:
  __device__ __forceinline__ void NextItem() {
    WaitForPhase(&memory_.item_full[item_.i], item_.parity);
    const Item& item = memory_.items[item_.i];
    item_.Next();
    if (item.num_tokens == 0) {
      done_ = true;
      return;
    }
    // Row `place` of 16 rows of A is this one: a consumer that holds rows r and r + 8 of a result holds
    // neighbours.
    const int place = thread_ / 4;
    const int64_t row = item.first_row + place % 8 * 2 + place / 8;
    from_ = item.data + row * (shape_.cols / 2) + thread_ % 4 * 16;
    scales_from_ = item.scale + row * shape_.scale_cols + thread_ % 4;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      largest_scales_[i] = AskForScale(item.largest_scales + row + i * kPieceRows);
  }

  Memory& memory_;
  const DeviceWeight& shape_;
  const int thread_;  // The group's.
  const int num_blocks_;
  uint2 eights_[kPieces][4];
  // Pieces asked for, and the block of the item that the next will be of.
  uint4 pieces_[kPieces];
  uint32_t scales_[kPieces];
  uint32_t largest_scales_[kPieces];
  RingPlace<kItems> item_;
  bool done_ = false;
  int block_;
  const uint8_t* from_ = nullptr;
  const uint8_t* scales_from_ = nullptr;
};

__device__ __forceinline__ void Produce(Memory& memory, const Params& p) {
  const int group = (static_cast<int>(threadIdx.x) - kConsumers) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int lane = thread % 32;
  const int num_blocks = static_cast<int>(p.shape.cols) / kE4m3Cols;
  RingPlace<kItems> item_place;
  RingPlace<kItems> told_place;
  int told = static_cast<int>(blockIdx.x / kCluster);
  // Tells of one item more; done by one thread.
  const auto publish = [&] {
    if (threadIdx.x == kThreads - 32) {
      WaitForPhase(&memory.item_empty[told_place.i], told_place.parity ^ 1U);
      Item found = {};
      if (!FindItem(p, told, found)) found.num_tokens = 0;
      memory.items[told_place.i] = found;
      Arrive(&memory.item_full[told_place.i]);
    }
    told_place.Next();
    told += static_cast<int>(gridDim.x / kCluster);
    __syncwarp();
  };
#pragma unroll 1
  for (int i = 0; i < kItemsAhead; ++i) publish();
  Weights weights(memory, p.shape, group, thread);
  weights.Ask();
  Slot& slot = memory.slots[group];
  uint64_t* const full = &memory.full[group];
  uint32_t parity = 1;
  int block = group;  // Block of the item: every fourth of all items' blocks is the group's.
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const int item_index = item_place.i;
    const Item& item = memory.items[item_index];
    if (item.num_tokens == 0) return;
    // Each block of a cluster has its share of the tokens brought to both.
    const auto num_rows = static_cast<uint32_t>(RowsOfPacked(item.num_tokens));
    const uint32_t share = num_rows / kCluster;
    const uint32_t first = blockIdx.x % kCluster * share;
    const int64_t first_x_row = item.first_x_row + first;
    item_place.Next();
    publish();
#pragma unroll 1
    for (; block < num_blocks; block += kSlots) {
      weights.Convert();
      weights.Ask();
      WaitForPhase(&memory.empty[group], parity);
      parity ^= 1U;
      if (thread == 0) {
        constexpr uint16_t kBoth = (1U << kCluster) - 1U;
        const int64_t from = block * p.x.num_rows + first_x_row;
        ArriveAndAnnounce(full, num_rows * (kE4m3Cols + static_cast<uint32_t>(sizeof(float))));
        CopyBulkToCluster(slot.x + first * kE4m3Cols, p.x.codes + from * kPackedFp8Cols, share * kE4m3Cols,
                          full, kBoth);
        CopyBulkToCluster(memory.scales[group] + first, p.x.scales + from,
                          share * static_cast<uint32_t>(sizeof(float)), full, kBoth);
      }
      weights.Store(SharedAddress(slot.weights));
      PublishToMatrixSteps();
      __syncwarp();
      if (lane == 0) Arrive(full);
    }
    block -= num_blocks;
    __syncwarp();
    if (lane == 0) Arrive(&memory.item_empty[item_index]);
  }
}

// --- Consumers -------------------------------------------------------------------------------------------------------

// This warpgroup's part of a tile: kMost tokens at most, from row `first_x` of the slots' tokens on. Element
// total[4 j + 2 half + e] is that of token 8 j + 2 (lane % 4) + e and this thread's row `half`.
template <int kMost, typename Release>
__device__ __forceinline__ void MultiplyTile(Memory& memory, int num_blocks, int first_x,
                                             RingPlace<kSlots>& place, uint32_t& turn, Release&& release,
                                             float (&total)[kMost / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
#pragma unroll
  for (int i = 0; i < kMost / 2; ++i) total[i] = 0.0F;
#pragma unroll 1
  for (int block = 0; block < num_blocks; ++block) {
    WaitForPhase(&memory.full[place.i], place.parity);
    const Slot& slot = memory.slots[place.i];
    const uint64_t a = MatrixDescriptor(SharedAddress(slot.weights));
    const uint64_t b = MatrixDescriptor(SharedAddress(slot.x + first_x * kE4m3Cols));
    float sums[kMost / 2];
    // One warpgroup's products at a time, or both would add up at the same time too: the other may begin when
    // half are done.
    WaitForPhase(&memory.turns[warpgroup], turn);
    turn ^= 1U;
    MultiplyE4m3Block<kMost>(sums, a, b);
    WaitForMatrixSteps<1>();
    if (lane == 0) Arrive(&memory.turns[warpgroup ^ 1]);
    WaitForMatrixSteps<0>();
    FenceRegisters(sums);
    const float* const scales = memory.scales[place.i] + first_x + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kMost / 8; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(scales + j * 8);
      total[4 * j] = fmaf(sums[4 * j], two.x, total[4 * j]);
      total[4 * j + 1] = fmaf(sums[4 * j + 1], two.y, total[4 * j + 1]);
      total[4 * j + 2] = fmaf(sums[4 * j + 2], two.x, total[4 * j + 2]);
      total[4 * j + 3] = fmaf(sums[4 * j + 3], two.y, total[4 * j + 3]);
    }
    release(place.i);
    place.Next();
  }
}

__device__ __forceinline__ void Consume(Memory& memory, const Params& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warpgroup = thread / 128;
  const auto rows = static_cast<int>(p.shape.rows);
  // A slot is free in both blocks of the cluster before it is filled in either.
  const auto release = [&](int slot) {
    __syncwarp();
    if (lane < kCluster) ArriveInCluster(&memory.empty[slot], static_cast<uint32_t>(lane));
  };
  RingPlace<kSlots> place;
  RingPlace<kItems> item_place;
  uint32_t turn = warpgroup == 0 ? 1 : 0;  // The first begins.
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const Item& item = memory.items[item_place.i];
    if (item.num_tokens == 0) return;
    const int half = RowsOfPacked((item.num_tokens + 1) / 2);
    const int first_x = warpgroup * half;
    const int num_tokens = warpgroup == 0 ? min(half, item.num_tokens) : item.num_tokens - half;
    const auto tile = [&]<int kMost>() {
      float sums[kMost / 2];
      const int row = item.first_row + thread % 128 / 32 * 16 + lane / 4 * 2;
      MultiplyTile<kMost>(memory, static_cast<int>(p.shape.cols) / kE4m3Cols, first_x, place, turn, release,
                          sums);
      float factors[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        factors[i] = FloatFromE8m0(static_cast<uint8_t>(item.largest_scales[row + i] - kE4m3LargestScale));
      // Targets of tokens, all asked for before any is needed: -1 where there is none.
      int to[kMost / 4];
#pragma unroll
      for (int i = 0; i < kMost / 4; ++i) {
        const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
        const int packed = item.first_x_row + first_x + token;
        to[i] = token < num_tokens ? packed : -1;
        if (p.by_assignment && token < num_tokens) to[i] = p.grouping.order[packed];
      }
      uint16_t* const y = p.y + item.matrix * rows + row;
      const int64_t stride = int64_t{p.num_matrices} * rows;
#pragma unroll
      for (int i = 0; i < kMost / 4; ++i) {
        if (to[i] < 0) continue;
        const int at = i / 2 * 4 + i % 2;
        *reinterpret_cast<uint32_t*>(y + to[i] * stride) =
            Bf16Pair(sums[at] * factors[0], sums[at + 2] * factors[1]);
      }
    };
    if (num_tokens > 112) {
      tile.template operator()<128>();
    } else if (num_tokens > 96) {
      tile.template operator()<112>();
    } else if (num_tokens > 64) {
      tile.template operator()<96>();
    } else if (num_tokens > 32) {
      tile.template operator()<64>();
    } else {
      tile.template operator()<32>();
    }
    __syncwarp();
    if (lane == 0) Arrive(&memory.item_empty[item_place.i]);
    item_place.Next();
  }
}

__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    GroupedGemmFp8Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory*>(raw_memory);
  BeginKernel();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1 + kGroupThreads / 32);
      InitBarrier(&memory.empty[i], kCluster * kConsumers / 32);
    }
    for (int i = 0; i < kItems; ++i) {
      InitBarrier(&memory.item_full[i], 1);
      InitBarrier(&memory.item_empty[i], kThreads / 32);
    }
    for (uint64_t& turn : memory.turns) InitBarrier(&turn, kConsumers / 2 / 32);
    PublishBarriers();
  }
  if (thread <= kE4m3ScaleSpan) {
    const float scale =
        FloatFromE8m0(static_cast<uint8_t>(kE8m0Bias + kE4m3LargestScale - kE4m3ScaleSpan + thread));
    memory.grids[thread] = make_uint2(MagnitudesAsE4m3(0, scale), MagnitudesAsE4m3(4, scale));
  }
  __syncwarp();
  MeetInCluster();
  if (thread >= kConsumers) {
    GiveUpRegisters<kProducerRegisters>();
    Produce(memory, p);
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consume(memory, p);
  }
  __syncwarp();
  // No block leaves while others may still arrive at its barriers.
  MeetInCluster();
}

}  // namespace

Status GroupedGemmFp8(LaunchContext& context, const ExpertTable& table, const TermsWork& work) {
  const E4m3Experts& experts = *table.e4m3;
  const auto run = [&](const GroupedGemm& gemm) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(const PackedFp8 x, PackFp8(context, gemm.x, gemm.cols));
    const Params params = {.shape = gemm.weight,
                           .weights = table.weights,
                           .largest_scales = experts.largest_scales,
                           .max_rows = experts.max_rows,
                           .first_matrix = gemm.first_matrix,
                           .num_matrices = gemm.num_matrices,
                           .x = x,
                           .grouping = gemm.grouping,
                           .row_clusters = static_cast<int>(gemm.weight.rows / (kCluster * kRows)),
                           .y = gemm.y,
                           .by_assignment = gemm.by_assignment};
    LaunchPersistent(context, GroupedGemmFp8Kernel,
                     {.blocks = kCluster, .threads = kThreads, .shared_bytes = sizeof(Memory)}, params);
    return {};
  };
  return RunGroupedGemms(context, table, work, kTokens, SwigluPlace::kPacking, run);
}

}  // namespace dsv4::backend::cuda
