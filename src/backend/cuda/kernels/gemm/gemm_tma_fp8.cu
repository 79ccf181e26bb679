// Tiles of 128 tokens by 128 or 256 rows of weights, worked off by as many blocks as there is room for. One
// thread has blocks of 128 columns of both brought into a ring; two warpgroups multiply, 64 tokens each, 128
// rows at a time.
//
// Tokens are the A operand, so that a thread's sums are of two tokens and share two scales. The sums of 128
// columns and 128 rows are 64 registers of a thread, the totals 64 or 128. While one warpgroup adds the
// former to the latter, tensor cores work on the other's products. Warpgroups take turns.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/e4m3_steps.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_tma_fp8.h"
#include "backend/cuda/kernels/gemm/tma_tiles.cuh"
#include "backend/cuda/kernels/packing/operand_layout_fp8.h"
#include "backend/cuda/kernels/persistent_clusters.h"
#include "backend/cuda/weights/stored_scale.cuh"

namespace dsv4::backend::cuda {
namespace {

constexpr int kTokens = 128;
constexpr int kRows = 128;  // Multiplied at a time, and what shares a scale.
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;  // Registers are given up and taken by whole warpgroups.
constexpr int kSums = kRows / 2;            // A thread's.
constexpr uint32_t kTokenBytes = kTokens * kE4m3Cols;
constexpr uint32_t kRowBytes = kRows * kE4m3Cols;
constexpr uint32_t kScaleBytes = kTokens * sizeof(float);
static_assert(kPackedFp8Cols == kE4m3Cols);

// kParts: how many times kRows a tile has.
template <int kParts>
struct Memory {
  static constexpr int kSlots = kParts == 1 ? 6 : 4;
  uint8_t x[kSlots][kTokenBytes];
  uint8_t weights[kSlots][kParts * kRowBytes];
  float scales[kSlots][kTokens];  // X's.
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  uint64_t turns[2];  // Turns of the warpgroups.
};

struct Output {
  void* data;
  int64_t stride;  // Elements between tokens.
  bool is_bf16;
  bool in_eights;  // Eight neighbours are stored at once.
};

struct Operands {
  DeviceWeight weight;
  PackedFp8 packed;
  PackedFp8 x;
  Output y;
};
struct Params : Operands, GemmTiles {};

template <int kParts, int kCluster>
__device__ __forceinline__ GemmTile FindTile(const Params& p, int i) {
  return FindGemmTile<kParts * kRows, kTokens, kCluster, kPackedFp8Cols>(p, i);
}

template <int kParts>
using Place = RingPlace<Memory<kParts>::kSlots>;

// One thread. Each block of a cluster brings its share of the weights to all of them.
template <int kParts, int kCluster>
__device__ __forceinline__ void BringTiles(Memory<kParts>& memory, const Params& p) {
  constexpr uint32_t kWeightBytes = kParts * kRowBytes;
  constexpr uint32_t kShare = kWeightBytes / kCluster;
  const uint32_t share = blockIdx.x % kCluster * kShare;
  const int num_blocks = static_cast<int>(p.weight.cols) / kE4m3Cols;
  Place<kParts> place;
  for (int i = static_cast<int>(blockIdx.x) / kCluster; i < p.count();
       i += static_cast<int>(gridDim.x) / kCluster) {
    const GemmTile tile = FindTile<kParts, kCluster>(p, i);
    const uint8_t* weights = p.packed.codes + tile.first_row * kPackedFp8Cols;
    const int64_t first_x = tile.first_x_block * p.x.num_rows + tile.first_token;
    const uint8_t* tokens = p.x.codes + first_x * kPackedFp8Cols;
    const float* scales = p.x.scales + first_x;
    for (int block = 0; block < num_blocks; ++block) {
      uint64_t* const full = &memory.full[place.i];
      WaitForPhase(&memory.empty[place.i], place.parity ^ 1U);
      ArriveAndAnnounce(full, kWeightBytes + kTokenBytes + kScaleBytes);
      if constexpr (kCluster == 1) {
        CopyBulk(memory.weights[place.i], weights, kWeightBytes, full);
      } else {
        CopyBulkToCluster(memory.weights[place.i] + share, weights + share, kShare, full,
                          (1U << kCluster) - 1U);
      }
      CopyBulk(memory.x[place.i], tokens, kTokenBytes, full);
      CopyBulk(memory.scales[place.i], scales, kScaleBytes, full);
      weights += p.packed.num_rows * kPackedFp8Cols;
      tokens += p.x.num_rows * kPackedFp8Cols;
      scales += p.x.num_rows;
      place.Next();
    }
  }
}

// The weight's scales of the block after this one, as they are stored; one for each part of a tile.
template <int kParts>
class Scales {
 public:
  // Start at the first block of a tile.
  __device__ __forceinline__ void Begin(const DeviceWeight& weight, const GemmTile& tile) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = min(tile.first_row + part * kRows, tile.row_end - 1);
      rows_[part] = (row >> weight.block_rows_log2) * static_cast<int>(weight.scale_cols);
    }
    Ask(weight, 0);
  }
  __device__ __forceinline__ void Ask(const DeviceWeight& weight, int block) {
    const int cols = static_cast<int>(weight.cols);
    const int col = min(block * kE4m3Cols, cols - kE4m3Cols) >> weight.block_cols_log2;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      stored_[part] = LoadStoredScale(weight.scale, weight.scale_dtype, rows_[part] + col);
  }
  __device__ __forceinline__ float Take(const DeviceWeight& weight, int part) const {
    return ScaleFromStored(stored_[part], weight.scale_dtype);
  }

 private:
  int rows_[kParts];
  uint32_t stored_[kParts];
};

// The tile of a warpgroup. Element totals[part][4 j + 2 half + e] belongs to this thread's token `half`. Its
// row is 8 j + 2 (lane % 4) + e of the part, as it is packed.
template <int kParts, int kCluster>
__device__ __forceinline__ void MultiplyTile(Memory<kParts>& memory, const DeviceWeight& weight,
                                             Scales<kParts>& scales, Place<kParts>& place, uint32_t& turn,
                                             float (&totals)[kParts][kSums]) {
  const int num_blocks = static_cast<int>(weight.cols) / kE4m3Cols;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_token = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kParts * kSums; ++i) totals[i / kSums][i % kSums] = 0.0F;
  for (int block = 0; block < num_blocks; ++block) {
    float weight_scales[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) weight_scales[part] = scales.Take(weight, part);
    WaitForPhase(&memory.full[place.i], place.parity);
    const float token_scales[2] = {memory.scales[place.i][own_token], memory.scales[place.i][own_token + 8]};
    const uint64_t a = MatrixDescriptor(SharedAddress(memory.x[place.i]) + group * (kTokenBytes / 2));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint64_t b = MatrixDescriptor(SharedAddress(memory.weights[place.i]) + part * kRowBytes);
      float sums[kSums];
      // One warpgroup's products at a time, or both would add up at the same time too: the other may begin
      // when half are done.
      WaitForPhase(&memory.turns[group], turn);
      turn ^= 1U;
      MultiplyE4m3Block<kRows>(sums, a, b);
      if (part == 0) scales.Ask(weight, block + 1);
      WaitForMatrixSteps<1>();
      if (lane == 0) Arrive(&memory.turns[group ^ 1]);
      WaitForMatrixSteps<0>();
      FenceRegisters(sums);
      if (part == kParts - 1) {
        // No thread of this warp reads the slot any more; all blocks that write it are told.
        if constexpr (kCluster == 1) {
          __syncwarp();
          if (lane == 0) Arrive(&memory.empty[place.i]);
        } else {
          __syncwarp();
          if (lane < kCluster) ArriveInCluster(&memory.empty[place.i], static_cast<uint32_t>(lane));
        }
      }
      const float factors[2] = {token_scales[0] * weight_scales[part], token_scales[1] * weight_scales[part]};
#pragma unroll
      for (int i = 0; i < kSums; ++i) totals[part][i] = fmaf(sums[i], factors[i / 2 % 2], totals[part][i]);
    }
    place.Next();
  }
}

// Eight columns of y.
__device__ __forceinline__ void StoreEight(const Output& y, int64_t at, int count, const float (&sums)[8]) {
  if (y.is_bf16) {
    uint16_t* const to = static_cast<uint16_t*>(y.data) + at;
    if (y.in_eights && count >= 8) {
      *reinterpret_cast<uint4*>(to) = make_uint4(Bf16Pair(sums[0], sums[1]), Bf16Pair(sums[2], sums[3]),
                                                 Bf16Pair(sums[4], sums[5]), Bf16Pair(sums[6], sums[7]));
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = Bf16FromFloat(sums[i]);
    }
  } else {
    float* const to = static_cast<float*>(y.data) + at;
    if (y.in_eights && count >= 8) {
      reinterpret_cast<float4*>(to)[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      reinterpret_cast<float4*>(to)[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = sums[i];
    }
  }
}

// Rows of the weight are columns of y, group by group; PackFp8Weight has made a thread's neighbours.
template <int kParts>
__device__ __forceinline__ void StoreTile(const Params& p, const GemmTile& tile,
                                          const float (&totals)[kParts][kSums]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = tile.first_token + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + half * 8;
    if (token >= p.num_tokens) continue;
#pragma unroll
    for (int i = 0; i < kParts * (kRows / 32); ++i) {
      const int row = tile.first_row + i * 32 + lane % 4 * 8;
      if (row >= tile.row_end) continue;
      float eight[8];
#pragma unroll
      for (int k = 0; k < 8; ++k)
        eight[k] = totals[i / (kRows / 32)][(i % (kRows / 32) * 4 + k / 2) * 4 + half * 2 + k % 2];
      StoreEight(p.y, token * p.y.stride + row, tile.row_end - row, eight);
    }
  }
}

template <int kParts, int kCluster>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kThreads, 1)
    GemmTmaFp8Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<Memory<kParts>*>(raw_memory);
  const int thread = static_cast<int>(threadIdx.x);
  BeginKernel();
  if (thread == 0) {
    for (int i = 0; i < Memory<kParts>::kSlots; ++i) {
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
    if (thread == kConsumers) BringTiles<kParts, kCluster>(memory, p);
  } else {
    TakeRegisters<232>();
    Place<kParts> place;
    uint32_t turn = thread < kConsumers / 2 ? 1 : 0;  // The first begins.
    int i = static_cast<int>(blockIdx.x) / kCluster;
    GemmTile tile = FindTile<kParts, kCluster>(p, i);
    Scales<kParts> scales;
    scales.Begin(p.weight, tile);
    while (i < p.count()) {
      float totals[kParts][kSums];
      MultiplyTile<kParts, kCluster>(memory, p.weight, scales, place, turn, totals);
      // The next tile's first scales are asked for while this one's sums are stored.
      i += static_cast<int>(gridDim.x) / kCluster;
      GemmTile next = tile;
      if (i < p.count()) {
        next = FindTile<kParts, kCluster>(p, i);
        scales.Begin(p.weight, next);
      }
      StoreTile<kParts>(p, tile, totals);
      tile = next;
    }
  }
  __syncwarp();
  // No block leaves while others may still arrive at its barriers, or write into its tiles.
  MeetInCluster();
}

template <int kParts, int kCluster>
Status Run(LaunchContext& context, const GemmArgs& args) {
  const int64_t cols = args.weight.cols;
  constexpr int64_t kTileRows = kParts * kRows;
  constexpr int64_t kClusterTokens = kCluster * kTokens;
  const GemmTiles tiles = MakeGemmTiles(args, kTileRows, kClusterTokens, cols);
  const RowSource source = {
      .x = args.x.data, .dtype = args.x.dtype, .stride = args.x_stride, .num_rows = tiles.num_tokens};
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedFp8 x,
                               PackFp8(context, source, args.num_groups * cols, kClusterTokens));
  DSV4_ASSIGN_OR_RETURN_STATUS(const PackedFp8 packed,
                               PackFp8Weight(context, args.weight, RowsOfTiles(tiles, kTileRows)));
  const uintptr_t alignment = args.y.dtype == DType::kBF16 ? 8 * sizeof(uint16_t) : 4 * sizeof(float);
  const Params params = {{.weight = args.weight,
                          .packed = packed,
                          .x = x,
                          .y = {.data = args.y.data,
                                .stride = args.y_stride,
                                .is_bf16 = args.y.dtype == DType::kBF16,
                                .in_eights = args.y_stride % 8 == 0 &&
                                             reinterpret_cast<uintptr_t>(args.y.data) % alignment == 0}},
                         tiles};
  LaunchPersistent(context, GemmTmaFp8Kernel<kParts, kCluster>,
                   {.blocks = kCluster,
                    .threads = kThreads,
                    .shared_bytes = sizeof(Memory<kParts>),
                    .most = tiles.count()},
                   params);
  return {};
}

}  // namespace

Status GemmTmaFp8(LaunchContext& context, const GemmArgs& args) {
  // Large tiles need fewer bytes a product; small ones give more SMs work.
  const int64_t large_tiles = CeilDiv(args.weight.rows / args.num_groups, 2 * kRows) * args.num_groups *
                              CeilDiv(args.x.shape[0], kTokens);
  if (large_tiles >= context.limits().num_sms) return Run<2, 2>(context, args);
  return Run<1, 1>(context, args);
}

}  // namespace dsv4::backend::cuda
