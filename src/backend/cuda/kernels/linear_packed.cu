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
  int token_tiles;
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
          .first_token = (band * p.token_tiles_together + place % together) * kTokens};
}

using Place = RingPlace<kSlots>;

// One thread.
__device__ __forceinline__ void BringTiles(Memory& memory, const Params& p) {
  const int num_blocks = static_cast<int>(p.weight.cols) / kBlockCols;
  Place place;
  for (int i = static_cast<int>(blockIdx.x); i < NumTiles(p); i += static_cast<int>(gridDim.x)) {
    const Tile tile = FindTile(p, i);
    const uint16_t* weights = p.packed.data + tile.first_row * kPackedCols;
    const uint16_t* tokens = p.x.data + (tile.first_x_block * p.x.num_rows + tile.first_token) * kPackedCols;
    for (int block = 0; block < num_blocks; ++block) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, 2 * kTileBytes);
      CopyBulk(memory.weights[place.i], weights, kTileBytes, full);
      CopyBulk(memory.x[place.i], tokens, kTileBytes, full);
      weights += p.packed.num_rows * kPackedCols;
      tokens += p.x.num_rows * kPackedCols;
      place.Next();
    }
  }
}

// The tile of a warpgroup. row: the first of this thread's two neighbours.
template <MatmulKind kKind>
__device__ __forceinline__ void MultiplyTile(Memory& memory, const DeviceWeight& weight, const Tile& tile,
                                             int row, Place& place, uint32_t& turn,
                                             float (&total)[kTokens / 2]) {
  constexpr bool kScaled = Unpack<kKind>::kScaledSums;
  const int cols = static_cast<int>(weight.cols);
  const int num_blocks = cols / kBlockCols;
  const int segment_blocks = SegmentCols<kKind>(cols) / kBlockCols;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // Nobody in this warp reads the slot any more.
  const auto release = [&](int slot) {
    if (threadIdx.x % 32 == 0) Arrive(&memory.empty[slot]);
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

  // The scale of the block after this one, as it is stored; neighbours have the same.
  int64_t scale_row = 0;
  uint32_t stored = 0;
  const auto ask_for_scale = [&](int block) {
    if constexpr (kScaled) {
      const int col = min(block * kBlockCols, cols - kBlockCols);
      stored = LoadStoredScale(weight.scale, weight.scale_dtype, scale_row + (col >> weight.block_cols_log2));
    }
  };
  if constexpr (kScaled) {
    scale_row = Unpack<kKind>::ScaleRow(weight, min(row, tile.row_end - 1));
    ask_for_scale(0);
  }

#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) total[i] = -0.0F;  // What is added to it stays what it is.
  for (int first = 0; first < num_blocks; first += segment_blocks) {
    const int end = min(first + segment_blocks, num_blocks);
    float sums[kTokens / 2];
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0.0F;
    if constexpr (kScaled) {
      for (int block = first; block < end; ++block) {
        const float scale = ScaleFromStored(stored, weight.scale_dtype);
        float block_sums[kTokens / 2];
        WaitForPhase(&memory.full[place.i], place.parity);
        // One warpgroup's products at a time, or both would add up at the same time too: the other may begin when half are done.
        WaitForPhase(&memory.turns[group], turn);
        turn ^= 1U;
        multiply(block_sums, 0);
        ask_for_scale(block + 1);
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

template <MatmulKind kKind>
__global__ void __launch_bounds__(kThreads, 1) LinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory*>(raw_memory);
  const int thread = static_cast<int>(threadIdx.x);
  BeginKernel();
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      InitBarrier(&memory.full[i], 1);
      InitBarrier(&memory.empty[i], kConsumers / 32);
    }
    for (uint64_t& turn : memory.turns) InitBarrier(&turn, kConsumers / 2 / 32);
    PublishBarriers();
  }
  __syncthreads();
  if (thread >= kConsumers) {
    GiveUpRegisters<40>();
    if (thread == kConsumers) BringTiles(memory, p);
    return;
  }
  TakeRegisters<232>();
  Place place;
  uint32_t turn = thread < kConsumers / 2 ? 1 : 0;  // The first begins.
  for (int i = static_cast<int>(blockIdx.x); i < NumTiles(p); i += static_cast<int>(gridDim.x)) {
    const Tile tile = FindTile(p, i);
    const int row = tile.first_row + thread / 32 * 16 + thread % 32 / 4 * 2;
    float total[kTokens / 2];
    MultiplyTile<kKind>(memory, p.weight, tile, row, place, turn, total);
    StoreSums<kTokens>(p.y, row, tile.row_end, tile.first_token, p.num_tokens - tile.first_token, total);
  }
}

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
  const int64_t row_tiles = CeilDiv(rows_per_group, kRows);
  const int64_t token_tiles = CeilDiv(num_tokens, kTokens);
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = num_tokens};
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedRows x, Pack(context, source, args.num_groups * cols,
                                                        args.weight.quantized_x, args.weight.kind, kTokens));
  // The last group's tiles may reach past its rows.
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const PackedRows packed,
      PackWeight(context, args.weight, (args.num_groups - 1) * rows_per_group + row_tiles * kRows));
  constexpr int64_t kBytesTogether = int64_t{16} << 20;
  const int64_t tile_bytes = kTokens * cols * static_cast<int64_t>(sizeof(uint16_t));
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
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(row_tiles * args.num_groups * token_tiles, context.queue().num_processors()));
  if (args.weight.kind == MatmulKind::kMmaFp8) {
    context.Launch(LinearKernel<MatmulKind::kMmaFp8>, blocks, kThreads, sizeof(Memory), params);
  } else {
    context.Launch(LinearKernel<MatmulKind::kMmaBf16>, blocks, kThreads, sizeof(Memory), params);
  }
  return {};
}

}  // namespace dsv4::backend::cuda
