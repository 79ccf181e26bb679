// Tiles of 128 rows of weights and 128 tokens, worked off by as many blocks as there is room for. One thread has blocks of 64 columns
// of both brought into a ring; two warpgroups multiply 64 rows each, and one adds up while the other's products are on the matrix unit.
//
// The steps of 16 columns, their order, the segments and the order of all sums are those of matmul_mma.cuh: a token's result is the
// same bits as in any other kernel (cuda_many_tokens_test). A unit's sums of FP8, the segment's and the total of those before take
// 192 registers a thread, which is why tiles are no larger.
#include <algorithm>

#include "backend/cuda/kernels/begin_kernel.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/linear_output.cuh"
#include "backend/cuda/kernels/linear_packed.h"
#include "backend/cuda/kernels/matmul_mma.cuh"
#include "backend/cuda/kernels/packed_rows.h"
#include "backend/cuda/kernels/stored_scale.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kTokens = 128;
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;  // Registers are given up and taken by whole warpgroups.
constexpr int kSlots = 6;
constexpr int kBlockCols = static_cast<int>(kPackedCols);
constexpr int kSteps = kBlockCols / 16;
constexpr uint32_t kTileBytes =
    kRows * kBlockCols * sizeof(uint16_t);  // Of a block of columns, of either operand.
static_assert(kRows == kTokens);

struct Memory {
  uint16_t weights[kSlots][kRows * kBlockCols];
  uint16_t x[kSlots][kTokens * kBlockCols];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  uint64_t turns[2];  // Of the warpgroups.
};

struct Params {
  DeviceWeight weight;
  PackedRows packed;
  PackedRows x;
  LinearOutput y;
  int rows_per_group;
  int row_tiles;  // Of a group.
  int num_groups;
  int num_tokens;
  int token_tiles;           // Of a cluster's tokens.
  int token_tiles_together;  // Worked on side by side with all rows, so that both stay in the L2 cache.
};

struct Tile {
  int first_row;
  int row_end;  // Of the group, or before the tile's end.
  int first_x_block;
  int first_token;
};

__device__ __forceinline__ int NumTiles(const Params& p) {
  return p.row_tiles * p.num_groups * p.token_tiles;
}
// Blocks of a cluster take the same rows, and tokens beside each other; i is a number of the cluster's tiles.
template <int kCluster>
__device__ __forceinline__ Tile FindTile(const Params& p, int i) {
  const int band_tiles = p.row_tiles * p.num_groups * p.token_tiles_together;
  const int band = i / band_tiles;
  const int place = i % band_tiles;
  const int together = min(p.token_tiles_together, p.token_tiles - band * p.token_tiles_together);
  const int row_tile = place / together;
  const int group = row_tile / p.row_tiles;
  return {.first_row = group * p.rows_per_group + row_tile % p.row_tiles * kRows,
          .row_end = (group + 1) * p.rows_per_group,
          .first_x_block = group * static_cast<int>(p.weight.cols / kPackedCols),
          .first_token = ((band * p.token_tiles_together + place % together) * kCluster +
                          static_cast<int>(blockIdx.x) % kCluster) *
                         kTokens};
}

using Place = RingPlace<kSlots>;

// One thread. Each block of a cluster brings its share of the weights to all of them.
template <int kCluster>
__device__ __forceinline__ void BringTiles(Memory& memory, const Params& p) {
  constexpr uint32_t kShare = kTileBytes / kCluster;
  const int share = static_cast<int>(blockIdx.x) % kCluster * static_cast<int>(kShare / sizeof(uint16_t));
  const int num_blocks = static_cast<int>(p.weight.cols) / kBlockCols;
  Place place;
  for (int i = static_cast<int>(blockIdx.x) / kCluster; i < NumTiles(p);
       i += static_cast<int>(gridDim.x) / kCluster) {
    const Tile tile = FindTile<kCluster>(p, i);
    const uint16_t* weights = p.packed.data + tile.first_row * kPackedCols;
    const uint16_t* tokens = p.x.data + (tile.first_x_block * p.x.num_rows + tile.first_token) * kPackedCols;
    for (int block = 0; block < num_blocks; ++block) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, 2 * kTileBytes);
      if constexpr (kCluster == 1) {
        CopyBulk(memory.weights[place.i], weights, kTileBytes, full);
      } else {
        CopyBulkToCluster(memory.weights[place.i] + share, weights + share, kShare, full,
                          (1U << kCluster) - 1U);
      }
      CopyBulk(memory.x[place.i], tokens, kTileBytes, full);
      weights += p.packed.num_rows * kPackedCols;
      tokens += p.x.num_rows * kPackedCols;
      place.Next();
    }
  }
}

// The scale of the block after this one, as it is stored; neighbours have the same.
template <MatmulKind kKind>
class Scales {
 public:
  // Of the first block of a tile. row: the first of this thread's two neighbours.
  __device__ __forceinline__ void Begin(const DeviceWeight& weight, int row, int row_end) {
    if constexpr (Unpack<kKind>::kScaledSums) {
      scale_row_ = Unpack<kKind>::ScaleRow(weight, min(row, row_end - 1));
      Ask(weight, 0);
    }
  }
  __device__ __forceinline__ void Ask(const DeviceWeight& weight, int block) {
    const int cols = static_cast<int>(weight.cols);
    const int col = min(block * kBlockCols, cols - kBlockCols);
    stored_ = LoadStoredScale(weight.scale, weight.scale_dtype, scale_row_ + (col >> weight.block_cols_log2));
  }
  __device__ __forceinline__ float Take(const DeviceWeight& weight) const {
    return ScaleFromStored(stored_, weight.scale_dtype);
  }

 private:
  int64_t scale_row_ = 0;
  uint32_t stored_ = 0;
};

// The tile of a warpgroup.
template <MatmulKind kKind, int kCluster>
__device__ __forceinline__ void MultiplyTile(Memory& memory, const DeviceWeight& weight,
                                             Scales<kKind>& scales, Place& place, uint32_t& turn,
                                             float (&total)[kTokens / 2]) {
  constexpr bool kScaled = Unpack<kKind>::kScaledSums;
  const int cols = static_cast<int>(weight.cols);
  const int num_blocks = cols / kBlockCols;
  const int segment_blocks = SegmentCols<kKind>(cols) / kBlockCols;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // Nobody in this warp reads the slot any more; all blocks that write it are told.
  const auto release = [&](int slot) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kCluster == 1) {
      if (lane == 0) Arrive(&memory.empty[slot]);
    } else {
      if (lane < kCluster) ArriveInCluster(&memory.empty[slot], static_cast<uint32_t>(lane));
    }
  };
  const auto multiply = [&](float(&sums)[kTokens / 2], int first_adds) {
    // 64 rows of weights are eight kilobytes.
    const uint64_t a = MatrixDescriptor(SharedAddress(memory.weights[place.i]) + group * (kTileBytes / 2));
    const uint64_t b = MatrixDescriptor(SharedAddress(memory.x[place.i]));
    FenceRegisters(sums);
    BeginMatrixSteps();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      SharedMatrixStep<kTokens>::Add(sums, a + 2 * step, b + 2 * step, step > 0 ? 1 : first_adds);
      if (kScaled && step == kSteps / 2 - 1) CommitMatrixSteps();
    }
    CommitMatrixSteps();
  };

#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) total[i] = -0.0F;  // What is added to it stays what it is.
  for (int first = 0; first < num_blocks; first += segment_blocks) {
    const int end = min(first + segment_blocks, num_blocks);
    float sums[kTokens / 2];
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0.0F;
    if constexpr (kScaled) {
      for (int block = first; block < end; ++block) {
        const float scale = scales.Take(weight);
        float block_sums[kTokens / 2];
        WaitForPhase(&memory.full[place.i], place.parity);
        // One warpgroup's products at a time, or both would add up at the same time too: the other may begin when half are done.
        WaitForPhase(&memory.turns[group], turn);
        turn ^= 1U;
        multiply(block_sums, 0);
        scales.Ask(weight, block + 1);
        WaitForMatrixSteps<1>();
        if (threadIdx.x % 32 == 0) Arrive(&memory.turns[group ^ 1]);
        WaitForMatrixSteps<0>();
        FenceRegisters(block_sums);
        release(place.i);
        place.Next();
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sums[i] = fmaf(block_sums[i], scale, sums[i]);
      }
    } else {
      int before = 0;
      for (int block = first; block < end; ++block) {
        WaitForPhase(&memory.full[place.i], place.parity);
        multiply(sums, 1);
        if (block > first) {
          WaitForMatrixSteps<1>();
          release(before);
        }
        before = place.i;
        place.Next();
      }
      WaitForMatrixSteps<0>();
      FenceRegisters(sums);
      release(before);
    }
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) total[i] = total[i] + sums[i];
  }
}

template <MatmulKind kKind, int kCluster>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    LinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory*>(raw_memory);
  const int thread = static_cast<int>(threadIdx.x);
  BeginKernel();
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1);
      InitBarrier(&memory.empty[i], kCluster * kConsumers / 32);
    }
    for (uint64_t& turn : memory.turns) InitBarrier(&turn, kConsumers / 2 / 32);
    PublishBarriers();
  }
  __syncwarp();
  MeetInCluster();
  if (thread >= kConsumers) {
    GiveUpRegisters<40>();
    if (thread == kConsumers) BringTiles<kCluster>(memory, p);
  } else {
    TakeRegisters<232>();
    Place place;
    uint32_t turn = thread < kConsumers / 2 ? 1 : 0;  // The first begins.
    const int own_row = thread / 32 * 16 + thread % 32 / 4 * 2;
    int i = static_cast<int>(blockIdx.x) / kCluster;
    Tile tile = FindTile<kCluster>(p, i);
    Scales<kKind> scales;
    scales.Begin(p.weight, tile.first_row + own_row, tile.row_end);
    while (i < NumTiles(p)) {
      float total[kTokens / 2];
      MultiplyTile<kKind, kCluster>(memory, p.weight, scales, place, turn, total);
      // The next tile's first scale is asked for while this one's sums are stored.
      i += static_cast<int>(gridDim.x) / kCluster;
      Tile next = tile;
      if (i < NumTiles(p)) {
        next = FindTile<kCluster>(p, i);
        scales.Begin(p.weight, next.first_row + own_row, next.row_end);
      }
      StoreSums<kTokens>(p.y, tile.first_row + own_row, tile.row_end, tile.first_token,
                         p.num_tokens - tile.first_token, total);
      tile = next;
    }
  }
  __syncwarp();
  // Nobody leaves while others may still arrive at its barriers, or write into its tiles.
  MeetInCluster();
}

template <MatmulKind kKind, int kCluster>
uint64_t Launch(CudaContext& context, const Params& params) {
  auto* const kernel = LinearKernel<kKind, kCluster>;
  const int clusters = kCluster == 1
                           ? context.queue().num_processors()
                           : std::max(1, context.queue().MostClusters(reinterpret_cast<const void*>(kernel),
                                                                      kCluster, kThreads, sizeof(Memory)));
  const int tiles = params.row_tiles * params.num_groups * params.token_tiles;
  return context.queue().Launch(kernel, static_cast<unsigned>(std::min(tiles, clusters) * kCluster), kThreads,
                                sizeof(Memory), params);
}

// FP8, whose sums take longer, gains nothing by clusters.
constexpr int kBf16Cluster = 2;

}  // namespace

bool HasLinearPacked(const LinearWgmmaArgs& args) {
  const DeviceWeight& weight = args.weight;
  if (args.x.shape[0] < kMinPackedTokens || !CanPackWeight(weight) ||
      !CanPack(args.x.data, args.x.dtype, args.x_stride, args.num_groups * weight.cols)) {
    return false;
  }
  // Groups begin with tiles, whose rows are packed by sixteens.
  if (args.num_groups > 1 && weight.rows / args.num_groups % 16 != 0) return false;
  const int cols = static_cast<int>(weight.cols);
  return weight.kind == MatmulKind::kMmaFp8 ? weight.block_rows % 2 == 0
                                            : SegmentCols<MatmulKind::kMmaBf16>(cols) % kBlockCols == 0;
}

Status LinearPacked(CudaContext& context, const LinearWgmmaArgs& args) {
  const int64_t num_tokens = args.x.shape[0];
  const int64_t cols = args.weight.cols;
  const int64_t rows_per_group = args.weight.rows / args.num_groups;
  const bool fp8 = args.weight.kind == MatmulKind::kMmaFp8;
  const int64_t cluster_tokens = kTokens * (fp8 ? 1 : kBf16Cluster);
  const int64_t row_tiles = CeilDiv(rows_per_group, kRows);
  const int64_t token_tiles = CeilDiv(num_tokens, cluster_tokens);
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = num_tokens};
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x,
                               PackTokens(context, source, args.num_groups * cols, args.weight.quantized_x,
                                          args.weight.kind, cluster_tokens));
  // The last group's tiles may reach past its rows.
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const PackedRows packed,
      PackWeight(context, args.weight, (args.num_groups - 1) * rows_per_group + row_tiles * kRows));
  constexpr int64_t kBytesTogether = int64_t{16} << 20;
  const int64_t tile_bytes = cluster_tokens * cols * static_cast<int64_t>(sizeof(uint16_t));
  const Params params = {
      .weight = args.weight,
      .packed = packed,
      .x = x,
      .y = MakeLinearOutput(args.y, args.y_stride, rows_per_group),
      .rows_per_group = static_cast<int>(rows_per_group),
      .row_tiles = static_cast<int>(row_tiles),
      .num_groups = static_cast<int>(args.num_groups),
      .num_tokens = static_cast<int>(num_tokens),
      .token_tiles = static_cast<int>(token_tiles),
      .token_tiles_together = static_cast<int>(std::clamp<int64_t>(kBytesTogether / tile_bytes, 1, 16))};
  const uint64_t launch = fp8 ? Launch<MatmulKind::kMmaFp8, 1>(context, params)
                              : Launch<MatmulKind::kMmaBf16, kBf16Cluster>(context, params);
  KeepPackedTokens(context, launch, args.y, args.y_stride);
  return {};
}

}  // namespace dsv4::backend::cuda
