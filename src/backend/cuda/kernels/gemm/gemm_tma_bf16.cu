// Tiles of 128 rows of weights and 128 tokens, worked off by as many blocks as there is room for. One thread
// has blocks of 64 columns of both brought into a ring; two warpgroups multiply 64 rows each.
//
// The steps of 16 columns, their order, the segments and the order of all sums are those of gemm_mma.cuh. A
// token's result is the same bits as in any other kernel (cuda_many_tokens_test). A unit's sums of FP8, the
// segment's and the total of those before take 192 registers a thread, which is why tiles are no larger.
#include "backend/cuda/device/ptx/shared_address.cuh"
#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemm_tma_bf16.h"
#include "backend/cuda/kernels/gemm/store_tile.cuh"
#include "backend/cuda/kernels/gemm/tma_tiles.cuh"
#include "backend/cuda/kernels/packing/operand_layout.h"
#include "backend/cuda/kernels/persistent_clusters.h"
#include "backend/cuda/weights/stored_scale.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kTokens = 128;
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;  // Registers are given up and taken by whole warpgroups.
constexpr int kCluster = 2;
constexpr int kSlots = 6;
constexpr int kBlockCols = static_cast<int>(kPackedCols);
constexpr int kBlockColsLog2 = 6;
static_assert(1 << kBlockColsLog2 == kBlockCols);
constexpr int kSteps = kBlockCols / 16;
constexpr uint32_t kTileBytes =
    kRows * kBlockCols * sizeof(uint16_t);  // Bytes of a block of columns, of either operand.
static_assert(kRows == kTokens);

struct Memory {
  uint16_t weights[kSlots][kRows * kBlockCols];
  uint16_t x[kSlots][kTokens * kBlockCols];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
};

struct Operands {
  DeviceWeight weight;
  PackedRows packed;
  PackedRows x;
  LinearOutput y;
};
struct Params : Operands, GemmTiles {};

__device__ __forceinline__ GemmTile FindTile(const Params& p, int i) {
  return FindGemmTile<kRows, kTokens, kCluster, kPackedCols>(p, i);
}

using Place = RingPlace<kSlots>;

// One thread. Each block of a cluster brings its share of the weights to all of them.
__device__ __forceinline__ void BringTiles(Memory& memory, const Params& p) {
  constexpr uint32_t kShare = kTileBytes / kCluster;
  const int share = static_cast<int>(blockIdx.x) % kCluster * static_cast<int>(kShare / sizeof(uint16_t));
  const int num_blocks = static_cast<int>(p.weight.cols) / kBlockCols;
  Place place;
  for (int i = static_cast<int>(blockIdx.x) / kCluster; i < p.count();
       i += static_cast<int>(gridDim.x) / kCluster) {
    const GemmTile tile = FindTile(p, i);
    const uint16_t* weights = p.packed.data + tile.first_row * kPackedCols;
    const uint16_t* tokens = p.x.data + (tile.first_x_block * p.x.num_rows + tile.first_token) * kPackedCols;
    for (int block = 0; block < num_blocks; ++block) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, 2 * kTileBytes);
      CopyBulkToCluster(memory.weights[place.i] + share, weights + share, kShare, full,
                        (1U << kCluster) - 1U);
      CopyBulk(memory.x[place.i], tokens, kTileBytes, full);
      weights += p.packed.num_rows * kPackedCols;
      tokens += p.x.num_rows * kPackedCols;
      place.Next();
    }
  }
}

// The scale of the next block, as it is stored; a thread's neighbouring rows have the same. It is asked for a
// block ahead, and looked at while products run.
template <MatmulKind kKind>
class Scales {
 public:
  // Start at the first block of a tile. row: the first of this thread's two neighbours.
  __device__ __forceinline__ void Begin(const DeviceWeight& weight, int row, int row_end) {
    if constexpr (Unpack<kKind>::kScaledSums) {
      row_ = static_cast<const uint8_t*>(weight.scale) +
             Unpack<kKind>::ScaleRow(weight, min(row, row_end - 1)) * ElementBytes(weight.scale_dtype);
      Ask(weight, 0);
    }
  }
  __device__ __forceinline__ void Ask(const DeviceWeight& weight, int block) {
    const int last = static_cast<int>(weight.cols) / kBlockCols - 1;
    stored_ = LoadStoredScale(row_, weight.scale_dtype,
                              min(block, last) >> (weight.block_cols_log2 - kBlockColsLog2));
  }
  __device__ __forceinline__ float Take(const DeviceWeight& weight) const {
    return ScaleFromStored(stored_, weight.scale_dtype);
  }

 private:
  const uint8_t* row_ = nullptr;
  uint32_t stored_ = 0;
};

// Work that a warpgroup does with the tiles of its block. It knows where the ring lies, so that a block of
// columns costs little but its products and their sums.
template <MatmulKind kKind>
class Multiplier {
 public:
  static constexpr bool kScaled = Unpack<kKind>::kScaledSums;

  __device__ __forceinline__ Multiplier(Memory& memory, const DeviceWeight& weight)
      : weight_(weight),
        full_(KeptShared(memory.full)),
        empty_(KeptShared(memory.empty)),
        // 64 rows of weights are half a tile.
        a_(MatrixDescriptor(SharedAddress(memory.weights) +
                            static_cast<uint32_t>(Group()) * (kTileBytes / 2))),
        b_(MatrixDescriptor(SharedAddress(memory.x))),
        num_blocks_(static_cast<int>(weight.cols) / kBlockCols),
        segment_blocks_(SegmentCols<kKind>(static_cast<int>(weight.cols)) / kBlockCols) {}

  // Sums of the next tile; its first scale has been asked for. meanwhile() is called once, while products
  // run.
  template <typename Meanwhile>
  __device__ __forceinline__ void MultiplyTile(Scales<kKind>& scales, Meanwhile&& meanwhile,
                                               float (&total)[kTokens / 2]) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) total[i] = -0.0F;  // Accumulators are not changed by what is added.
    WaitForPhase(&full_[place_.i], place_.parity);
    for (int first = 0; first < num_blocks_; first += segment_blocks_) {
      const int end = min(first + segment_blocks_, num_blocks_);
      float sums[kTokens / 2];
      if constexpr (kScaled) {
        AddScaled<true>(scales, first, meanwhile, sums);
        for (int block = first + 1; block < end; ++block) AddScaled<false>(scales, block, meanwhile, sums);
      } else {
        AddUnscaled(first, end, meanwhile, sums);
      }
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) total[i] = total[i] + sums[i];
    }
  }

 private:
  using Sums = float[kTokens / 2];

  static __device__ __forceinline__ int Group() { return static_cast<int>(threadIdx.x) / 128; }
  // The block at place_ is there.
  __device__ __forceinline__ void Multiply(Sums& sums, int first_adds) const {
    const auto offset = static_cast<uint64_t>(static_cast<uint32_t>(place_.i) * (kTileBytes / 16));
    const uint64_t a = a_ + offset;
    const uint64_t b = b_ + offset;
    FenceRegisters(sums);
    BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      SharedMatrixStep<kTokens>::Add(sums, a + 2 * step, b + 2 * step, step > 0 ? 1 : first_adds);
    }
    CommitMatrixSteps();
  }
  // No thread of this warp reads the slot any more; all blocks that write it are told.
  __device__ __forceinline__ void Release(int slot) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kCluster) ArriveInCluster(&empty_[slot], static_cast<uint32_t>(lane));
  }

  // sums += a block's sums by its scale, or what that is with sums of 0.
  template <bool kFirst, typename Meanwhile>
  __device__ __forceinline__ void AddScaled(Scales<kKind>& scales, int block, Meanwhile&& meanwhile,
                                            Sums& sums) {
    float block_sums[kTokens / 2];
    Multiply(block_sums, 0);
    const int slot = place_.i;
    place_.Next();
    const float scale = scales.Take(weight_);
    scales.Ask(weight_, block + 1);
    if (kFirst && block == 0) meanwhile();
    if (block + 1 < num_blocks_) WaitForPhase(&full_[place_.i], place_.parity);
    WaitForMatrixSteps<0>();
    FenceRegisters(block_sums);
    Release(slot);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = fmaf(block_sums[i], scale, kFirst ? 0.0F : sums[i]);
  }

  template <typename Meanwhile>
  __device__ __forceinline__ void AddUnscaled(int first, int end, Meanwhile&& meanwhile, Sums& sums) {
    int before = 0;
    for (int block = first; block < end; ++block) {
      Multiply(sums, block > first ? 1 : 0);
      if (block == 0) meanwhile();
      if (block > first) {
        WaitForMatrixSteps<1>();
        Release(before);
      }
      before = place_.i;
      place_.Next();
      if (block + 1 < num_blocks_) WaitForPhase(&full_[place_.i], place_.parity);
    }
    WaitForMatrixSteps<0>();
    FenceRegisters(sums);
    Release(before);
  }

  const DeviceWeight& weight_;
  uint64_t* const full_;
  uint64_t* const empty_;
  const uint64_t a_;
  const uint64_t b_;
  const int num_blocks_;
  const int segment_blocks_;
  Place place_;
};

template <MatmulKind kKind>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    GemmTmaBf16Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory*>(raw_memory);
  const int thread = static_cast<int>(threadIdx.x);
  BeginKernel();
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1);
      InitBarrier(&memory.empty[i], kCluster * kConsumers / 32);
    }
    PublishBarriers();
  }
  __syncwarp();
  MeetInCluster();
  if (thread >= kConsumers) {
    GiveUpRegisters<40>();
    if (thread == kConsumers) BringTiles(memory, p);
  } else {
    TakeRegisters<232>();
    Multiplier<kKind> multiplier(memory, p.weight);
    const int own_row = thread / 32 * 16 + thread % 32 / 4 * 2;
    int i = static_cast<int>(blockIdx.x) / kCluster;
    GemmTile tile = FindTile(p, i);
    Scales<kKind> scales;
    scales.Begin(p.weight, tile.first_row + own_row, tile.row_end);
    while (i < p.count()) {
      i += static_cast<int>(gridDim.x) / kCluster;
      GemmTile next = tile;
      const auto find_next = [&] {
        if (i < p.count()) next = FindTile(p, i);
      };
      float total[kTokens / 2];
      multiplier.MultiplyTile(scales, find_next, total);
      // The next tile's first scale is asked for while this one's sums are stored.
      scales.Begin(p.weight, next.first_row + own_row, next.row_end);
      StoreSums<kTokens>(p.y, tile.first_row + own_row, tile.row_end, tile.first_token,
                         p.num_tokens - tile.first_token, total);
      tile = next;
    }
  }
  __syncwarp();
  // No block leaves while others may still arrive at its barriers, or write into its tiles.
  MeetInCluster();
}

template <MatmulKind kKind>
void Launch(LaunchContext& context, const Params& params) {
  LaunchPersistent(
      context, GemmTmaBf16Kernel<kKind>,
      {.blocks = kCluster, .threads = kThreads, .shared_bytes = sizeof(Memory), .most = params.count()},
      params);
}

}  // namespace

Status GemmTmaBf16(LaunchContext& context, const GemmArgs& args) {
  const int64_t cols = args.weight.cols;
  constexpr int64_t kClusterTokens = kTokens * kCluster;
  const GemmTiles tiles =
      MakeGemmTiles(args, kRows, kClusterTokens, cols * static_cast<int64_t>(sizeof(uint16_t)));
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = tiles.num_tokens};
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x,
                               PackTokens(context, source, args.num_groups * cols, args.weight.x_group,
                                          args.weight.kind, kClusterTokens));
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows packed,
                               PackWeight(context, args.weight, RowsOfTiles(tiles, kRows)));
  const Params params = {{.weight = args.weight,
                          .packed = packed,
                          .x = x,
                          .y = MakeLinearOutput(args.y, args.y_stride, tiles.rows_per_group)},
                         tiles};
  switch (args.weight.kind) {
    case MatmulKind::kMmaFp8:
      Launch<MatmulKind::kMmaFp8>(context, params);
      break;
    case MatmulKind::kMmaMxFp8:
      Launch<MatmulKind::kMmaMxFp8>(context, params);
      break;
    default:
      Launch<MatmulKind::kMmaBf16>(context, params);
  }
  KeepPackedTokens(context, source, args.num_groups * cols, args.weight.x_group, args.weight.kind, x, args.y,
                   args.y_stride);
  return {};
}

}  // namespace dsv4::backend::cuda
