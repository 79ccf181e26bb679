// The arithmetic is that of attention_mma.cu, in the same order, so that a token's bits do not depend on
// which of the two ran. There are tiles of 64 keys, a first pass for the largest logit, and weights relative
// to it. A tile's values are summed by themselves, in steps of 16 keys, and tiles are added in order. Here a
// block goes through all tiles of a token for 64 heads, twice, while the next tiles are on their way into
// shared memory. Keys are read once for 64 heads, and no partial results leave the block.
#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/attention/hopper_packed_rows.cuh"
#include "backend/cuda/kernels/attention/hopper_softmax.cuh"
#include "backend/cuda/kernels/attention/hopper_two_pass.h"

namespace dsv4::backend::cuda {
namespace {

using namespace hopper;  // NOLINT(google-build-using-namespace): what this kernel shares with two others.

constexpr int kThreads =
    kConsumers;  // Two warpgroups: half of a tile's keys each, then half of the columns each.
constexpr int kBuffers = 2;

struct Shared {
  Rows keys[kBuffers];
  Rows q;
  unsigned char weights[kBlockBytes];   // bf16 [kHeads][kKeys], pieces permuted.
  float group_sums[kHeads][kKeys / 8];  // Sums of a tile's weights, eight keys each.
  float maxima[2][kHeads];              // Maxima of each warpgroup.
  float normalizers[kHeads];
  uint2 scales[kBuffers][kKeys];  // Packed rows'.
};

// A thread's share of 64 rows: a quarter of row thread / 4. `row` is null where there is none: zeros.
__device__ __forceinline__ void CopyRow(Rows& rows, const uint16_t* row, const void* any) {
  const int r = static_cast<int>(threadIdx.x) / 4;
  const uint32_t to = SharedAddress(rows.bytes);
#pragma unroll
  for (int i = 0; i < kDim / 8 / 4; ++i) {
    const int piece = i * 4 + static_cast<int>(threadIdx.x) % 4;
    CopyAsync16(to + piece / kLinePieces * kBlockBytes + PieceOfLine(r, piece % kLinePieces),
                row != nullptr ? static_cast<const void*>(row + piece * 8) : any, row != nullptr);
  }
}

// The same of packed rows; a thread then has a quarter of every block.
__device__ __forceinline__ void CopyPackedRow(Rows& rows, uint2 (&scales)[kKeys], const unsigned char* row,
                                              const void* any) {
  const int r = static_cast<int>(threadIdx.x) / 4;
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const uint32_t to = SharedAddress(rows.bytes);
#pragma unroll
  for (int block = 0; block < kCodedBlocks; ++block)
    CopyPieceOfBlock(to + block * kBlockBytes, r, quarter, block, row, any);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    CopyPieceOfBlock(to + kCodedBlocks * kBlockBytes, r, 2 * quarter + i, kCodedBlocks, row, any);
  if (quarter == 0) {
    CopyAsync8(SharedAddress(&scales[r]),
               row != nullptr ? static_cast<const void*>(row + kReleaseRowScales) : any, row != nullptr);
  }
}
__device__ __forceinline__ void WidenRow(Rows& rows, const uint2 (&scales)[kKeys]) {
  const int r = static_cast<int>(threadIdx.x) / 4;
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const auto* const of_row = reinterpret_cast<const unsigned char*>(&scales[r]);
  __syncwarp();  // Four threads have brought the row.
#pragma unroll
  for (int block = 0; block < kCodedBlocks; ++block) {
    unsigned char* const of_block = rows.bytes + block * kBlockBytes;
    const uint4 both = *reinterpret_cast<const uint4*>(of_block + PieceOfLine(r, quarter));
    const uint32_t scale = of_row[block];
    __syncwarp();
    const uint2 codes[2] = {make_uint2(both.x, both.y), make_uint2(both.z, both.w)};
    const uint32_t scales_of_both[2] = {scale, scale};
    WidenE4m3(codes, scales_of_both, [&](int i, const uint4& wide) {
      *reinterpret_cast<uint4*>(of_block + PieceOfLine(r, 2 * quarter + i)) = wide;
    });
  }
}

// Grid: tokens, groups of heads.
template <bool kPacked>
__global__ void __launch_bounds__(kThreads, 1)
    HopperTwoPassKernel(const __grid_constant__ SequenceTable table, const AttentionParams p) {
  BeginKernel();
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& m = *reinterpret_cast<Shared*>(raw);
  const int64_t token = blockIdx.x;
  const VisibleKeys keys(table, p, token);
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int num_heads = min(kHeads, p.num_heads - first_head);
  const int num_tiles = static_cast<int>(CeilDiv(keys.num_keys, kKeys));
  const int thread = static_cast<int>(threadIdx.x);
  const int half = thread / 128;  // The warpgroup.
  const int place = PlaceOf(thread);
  const int row = RowOf(thread);

  // Tiles come twice: steps [0, num_tiles) for maxima, then for values.
  const auto key_row = [&](int step) -> const uint16_t* {
    const int64_t key = int64_t{step < num_tiles ? step : step - num_tiles} * kKeys + thread / 4;
    return step < 2 * num_tiles && key < keys.num_keys ? keys.template Row<uint16_t>(key) : nullptr;
  };
  const uint16_t* next_row = key_row(0);
  const auto copy_tile = [&](int step) {
    if (step < 2 * num_tiles) {
      if constexpr (kPacked) {
        CopyPackedRow(m.keys[step % kBuffers], m.scales[step % kBuffers],
                      reinterpret_cast<const unsigned char*>(next_row), p.q);
      } else {
        CopyRow(m.keys[step % kBuffers], next_row, p.q);
      }
    }
    CommitCopies();
    next_row = key_row(step + 1);
  };
  {
    const int head = thread / 4;
    const auto* const q =
        static_cast<const uint16_t*>(p.q) + (token * p.num_heads + first_head + head) * kDim;
    CopyRow(m.q, head < num_heads ? q : nullptr, p.q);
  }
  for (int step = 0; step < kBuffers; ++step) copy_tile(step);

  // Logits of this warpgroup's 32 keys of the tile of a step.
  const uint32_t q_address = SharedAddress(m.q.bytes);
  const auto logits_of = [&](int step, float(&logits)[16]) {
    const uint32_t key_address = SharedAddress(m.keys[step % kBuffers].bytes) + half * (32 * 128);
    FenceRegisters(logits);
    BeginMatrixSteps();
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
      const uint64_t a = MatrixDescriptor(q_address + block * kBlockBytes);
      const uint64_t b = MatrixDescriptor(key_address + block * kBlockBytes);
#pragma unroll
      for (int i = 0; i < kCols / 16; ++i)
        SharedMatrixStep<32>::Add(logits, a + 2 * i, b + 2 * i, block + i > 0 ? 1 : 0);
    }
    CommitMatrixSteps();
    WaitForMatrixSteps<0>();
    FenceRegisters(logits);
    const int64_t first_key = int64_t{step < num_tiles ? step : step - num_tiles} * kKeys + half * 32;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      logits[i] = LogitOf(logits[i], i, first_key, keys.num_keys, place, p.softmax_scale);
  };
  const auto wait_for_tile = [&](int step) {
    WaitForCopies<kBuffers - 1>();
    if constexpr (kPacked) WidenRow(m.keys[step % kBuffers], m.scales[step % kBuffers]);
    PublishToMatrixSteps();
    __syncthreads();
  };

  float maxima[2] = {-INFINITY, -INFINITY};
  for (int step = 0; step < num_tiles; ++step) {
    wait_for_tile(step);
    float logits[16];
    logits_of(step, logits);
#pragma unroll
    for (int i = 0; i < 16; ++i) maxima[i / 2 % 2] = fmaxf(maxima[i / 2 % 2], logits[i]);
    __syncthreads();
    copy_tile(step + kBuffers);
  }
  ShareLargest(maxima);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (place == 0) m.maxima[half][row + 8 * r] = maxima[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) maxima[r] = fmaxf(m.maxima[0][row + 8 * r], m.maxima[1][row + 8 * r]);
  // The sink is one more logit without value. One thread a head keeps the sum of weights.
  float normalizer = 0.0F;
  if (thread < num_heads)
    normalizer = expf(p.sink[first_head + thread] - fmaxf(m.maxima[0][thread], m.maxima[1][thread]));

  // Half of the columns, 128 at a time.
  float o[2][64] = {};
  const uint32_t weight_address = SharedAddress(m.weights);
  for (int step = num_tiles; step < 2 * num_tiles; ++step) {
    wait_for_tile(step);
    float logits[16];
    logits_of(step, logits);
    float weights[16];
    WeighLogits(logits, maxima, weights);
    StoreWeights(m.weights, weights, row, half * 4, place);
    // Sums of eight keys in order, from lane to lane.
#pragma unroll
    for (int group = 0; group < 8; ++group) {
      const float first = weights[group * 2];
      const float second = weights[group * 2 + 1];
      float sum = 0.0F + first + second;
#pragma unroll
      for (int from = 0; from < 3; ++from) {
        const float before = __shfl_up_sync(kWholeWarp, sum, 1);
        if (place == from + 1) sum = before + first + second;
      }
      if (place == 3) m.group_sums[row + group % 2 * 8][half * 4 + group / 2] = sum;
    }
    PublishToMatrixSteps();
    __syncthreads();
    if (thread < kHeads) {
      const float* const sums = m.group_sums[thread];
      normalizer += ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
    }
    const uint32_t value_address = SharedAddress(m.keys[step % kBuffers].bytes);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      float values[64];
      BeginValues<128>(values, weight_address, value_address + (half * 4 + part * 2) * kBlockBytes);
      FinishValues(values);
#pragma unroll
      for (int i = 0; i < 64; ++i) o[part][i] += values[i];
    }
    __syncthreads();
    copy_tile(step + kBuffers);
  }

  if (thread < kHeads) m.normalizers[thread] = normalizer;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = row + 8 * r;
    if (head >= num_heads) continue;
    const float divisor = m.normalizers[head];
    auto* const out = static_cast<uint16_t*>(p.o) + (token * p.num_heads + first_head + head) * kDim;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float low = o[part][i * 4 + r * 2] / divisor;
        const float high = o[part][i * 4 + r * 2 + 1] / divisor;
        *reinterpret_cast<uint32_t*>(out + half * 256 + part * 128 + i * 8 + place * 2) =
            Bf16FromFloat(low) | static_cast<uint32_t>(Bf16FromFloat(high)) << 16;
      }
    }
  }
}

}  // namespace

Status HopperTwoPass(LaunchContext& context, const SequenceTable& table, const AttentionParams& params) {
  const dim3 grid(static_cast<unsigned>(params.num_tokens),
                  static_cast<unsigned>(CeilDiv(params.num_heads, kHeads)));
  const auto kernel =
      table.form == StoredForm::kRelease ? HopperTwoPassKernel<true> : HopperTwoPassKernel<false>;
  context.Launch(kernel, grid, kThreads, sizeof(Shared), table, params);
  return {};
}

}  // namespace dsv4::backend::cuda
