// The arithmetic is that of hopper_two_pass.cu, in the same order. There are tiles of 64 keys, and weights
// are relative to the largest logit of all. A tile's values are summed by themselves, and tiles are added in
// order. Here the logits of all of a token's tiles stay in registers until the largest is known. Then their
// weights replace the queries in shared memory. Keys are read twice nevertheless, as keys and as values, but
// for the two tiles that are still there. Logits go from the last tile to the first, values from the first to
// the last.
//
// A warpgroup has every other tile's logits and half of the columns of the values. Two warps of a third bring
// each of them its tiles, through all tokens of the block. So while a token ends, the next one's keys and
// queries are on their way.
#include <algorithm>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/attention_keys.cuh"
#include "backend/cuda/kernels/attention/hopper_in_registers.h"
#include "backend/cuda/kernels/attention/hopper_packed_rows.cuh"
#include "backend/cuda/kernels/attention/hopper_softmax.cuh"
#include "backend/cuda/lowering/select/attention.h"

namespace dsv4::backend::cuda {
namespace {

using namespace hopper;  // NOLINT(google-build-using-namespace): what this kernel shares with two others.

constexpr int kMostTiles = static_cast<int>(kMaxInRegistersTiles);
constexpr int kStepsOfBlock = kCols / 16;

struct Shared {
  Rows keys[2];  // Keys of even and odd tiles.
  // The queries, then bf16 weights [tiles][kHeads][kKeys], pieces permuted.
  unsigned char q_or_weights[std::max(kRowBlocks, kMostTiles) * kBlockBytes];
  float tile_sums[kMostTiles][kHeads];
  float maxima[2][kHeads];  // Maxima of each warpgroup.
  uint2 scales[2][kKeys];   // Packed keys'.
  int num_keys;             // Keys of the token whose queries are there.
  uint64_t keys_full[2];
  uint64_t keys_empty[2];
  uint64_t q_full;
  uint64_t q_empty[kRowBlocks];  // No warp reads queries, or weights, where this block of queries lies.
};

__device__ __forceinline__ int HeadGroups(const AttentionParams& p) {
  return (p.num_heads + kHeads - 1) / kHeads;
}

// --- Producers -------------------------------------------------------------------------------------------------------

// Lanes of a row's block of columns, and rows that a warp copies a block of at once.
constexpr int kLanesOfBlock = kCols / 8;
constexpr int kRowsAtOnce = 32 / kLanesOfBlock;

// Rows [first_row, first_row + 32) of `rows` by a warp; lane i knows where row i lies, or that there is none:
// zeros.
__device__ __forceinline__ void CopyKeys(Rows& rows, int first_row, const uint16_t* row_of_lane,
                                         const void* any) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kLanesOfBlock;
  const uint32_t to = SharedAddress(rows.bytes);
#pragma unroll 1
  for (int i = 0; i < 32; i += kRowsAtOnce) {
    const int row = i + lane / kLanesOfBlock;
    const auto* from = reinterpret_cast<const uint16_t*>(
        __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(row_of_lane), row));
    const bool exists = from != nullptr;
    from = (exists ? from : static_cast<const uint16_t*>(any)) + piece * 8;
    const uint32_t at = to + PieceOfLine(first_row + row, piece);
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block)
      CopyAsync16(at + block * kBlockBytes, from + block * kCols, exists);
  }
}

// The same of packed rows.
__device__ __forceinline__ void CopyPackedKeys(Rows& rows, uint2 (&scales)[kKeys], int first_row,
                                               const uint16_t* row_of_lane, const void* any) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = lane % kLanesOfBlock;
  const int second = piece / kCodePieces;  // Half of the lanes have another block.
  const uint32_t to = SharedAddress(rows.bytes);
#pragma unroll 1
  for (int i = 0; i < 32; i += kRowsAtOnce) {
    const int row = i + lane / kLanesOfBlock;
    const auto* const from = reinterpret_cast<const unsigned char*>(
        __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(row_of_lane), row));
#pragma unroll
    for (int block = 0; block + 1 < kCodedBlocks; block += 2) {
      CopyPieceOfBlock(to + (block + second) * kBlockBytes, first_row + row, piece % kCodePieces,
                       block + second, from, any);
    }
    constexpr int kLastCoded = kCodedBlocks - 1;
    if (second == 0) {
      CopyPieceOfBlock(to + kLastCoded * kBlockBytes, first_row + row, piece, kLastCoded, from, any);
    } else if (piece == kCodePieces) {
      CopyAsync8(SharedAddress(&scales[first_row + row]),
                 from != nullptr ? static_cast<const void*>(from + kReleaseRowScales) : any, from != nullptr);
    }
    CopyPieceOfBlock(to + kCodedBlocks * kBlockBytes, first_row + row, piece, kCodedBlocks, from, any);
  }
}
// Widens 32 rows, by the warp that has brought them.
__device__ __forceinline__ void WidenKeys(Rows& rows, const uint2 (&scales)[kKeys], int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kAtOnce = 4;
  __syncwarp();
#pragma unroll 1
  for (int block = 0; block < kCodedBlocks; ++block) {
#pragma unroll 1
    for (int begin = 0; begin < 32; begin += kAtOnce * kRowsAtOnce) {
      unsigned char* blocks[kAtOnce];
      int lines[kAtOnce];
      uint32_t of_lines[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        blocks[i] = rows.bytes + block * kBlockBytes;
        lines[i] = first_row + begin + i * kRowsAtOnce + lane / kLanesOfBlock;
        of_lines[i] = reinterpret_cast<const unsigned char*>(&scales[lines[i]])[block];
      }
      WidenLines<kAtOnce>(blocks, lines, of_lines, lane % kLanesOfBlock);
    }
  }
}

template <bool kPacked>
__device__ __forceinline__ void Produce(Shared& m, const SequenceTable& table, const AttentionParams& p) {
  const int warp = (static_cast<int>(threadIdx.x) - kConsumers) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int odd = warp / 2;  // The tiles of these two warps, half of the rows each.
  const int first_row = warp % 2 * 32;
  const int groups = HeadGroups(p);
  const int num_items = p.num_tokens * groups;
  uint32_t fills = 0;  // Fills of the buffer for these tiles.
  uint32_t token_parity = 0;
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item += static_cast<int>(gridDim.x)) {
    const int64_t token = item / groups;
    const int first_head = item % groups * kHeads;
    const VisibleKeys keys(table, p, token);
    const auto num_keys = static_cast<int>(keys.num_keys);
    const int num_tiles = (num_keys + kKeys - 1) / kKeys;
    const int mine = (num_tiles + 1 - odd) / 2;
    // Down to the first of mine, and up again behind it.
    const int num_fills = max(2 * mine - 1, 0);
    // This lane's key of a fill, or a number that is none's.
    const auto key_of = [&](int fill) {
      const int tile = odd + 2 * (fill < mine ? mine - 1 - fill : fill - (mine - 1));
      return fill < num_fills ? tile * kKeys + first_row + lane : num_keys;
    };
    const auto place_of = [&](int key) { return key < num_keys ? keys.Place(key) : 0; };
    const auto row_of = [&](int key, int64_t place) -> const uint16_t* {
      return key < num_keys ? keys.template RowAt<uint16_t>(key, place) : nullptr;
    };
    // Rows of the next fill and of the one behind it: neither is waited for when copies could be asked for.
    const uint16_t* row = row_of(key_of(0), place_of(key_of(0)));
    int64_t place = place_of(key_of(1));
    const auto bring = [&](int fill) {
      WaitForPhase(&m.keys_empty[odd], (fills & 1U) ^ 1U);
      if constexpr (kPacked) {
        CopyPackedKeys(m.keys[odd], m.scales[odd], first_row, row, p.q);
      } else {
        CopyKeys(m.keys[odd], first_row, row, p.q);
      }
      CommitCopies();
      ++fills;
      row = row_of(key_of(fill + 1), place);
      place = place_of(key_of(fill + 2));
    };
    const auto tell = [&](uint64_t* barrier) {
      PublishToMatrixSteps();
      __syncwarp();
      if (lane == 0) Arrive(barrier);
    };
    const auto tell_keys = [&] {
      if constexpr (kPacked) WidenKeys(m.keys[odd], m.scales[odd], first_row);
      tell(&m.keys_full[odd]);
    };
    // A quarter of the heads each.
    const int row_of_q = warp * (kHeads / 4) + lane / kLanesOfBlock;
    const auto* const q = static_cast<const uint16_t*>(p.q) +
                          (token * p.num_heads + first_head + row_of_q) * kDim + lane % kLanesOfBlock * 8;
    const auto bring_queries = [&](int first_block, int end_block) {
#pragma unroll 1
      for (int block = first_block; block < end_block; ++block) {
        WaitForPhase(&m.q_empty[block], token_parity ^ 1U);
        const uint32_t to = SharedAddress(m.q_or_weights) + block * kBlockBytes;
#pragma unroll
        for (int i = 0; i < kHeads / 4; i += kRowsAtOnce) {
          CopyAsync16(to + PieceOfLine(row_of_q + i, lane % kLanesOfBlock), q + i * kDim + block * kCols,
                      first_head + row_of_q + i < p.num_heads);
        }
      }
    };
    // Releases the weights of the token in front tile by tile.
    constexpr int kEarlyBlock = 3;
    bring_queries(kEarlyBlock, kRowBlocks);
    CommitCopies();
    if (num_fills > 0) bring(0);
    bring_queries(0, kEarlyBlock);
    // All that use the number of keys of the token in front have done so.
    if (warp == 0 && lane == 0) m.num_keys = num_keys;
    CommitCopies();
    if (num_fills > 0) {
      WaitForCopies<1>();
      tell_keys();
    }
    WaitForCopies<0>();
    tell(&m.q_full);
    for (int fill = 1; fill < num_fills; ++fill) {
      bring(fill);
      WaitForCopies<0>();
      tell_keys();
    }
    token_parity ^= 1U;
  }
}

// --- Consumers -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void MeetConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

__device__ __forceinline__ void Consume(Shared& m, const AttentionParams& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int half = thread / 128;  // The warpgroup.
  const int lane = thread % 32;
  const int place = PlaceOf(thread);
  const int row = RowOf(thread);
  const int groups = HeadGroups(p);
  const int num_items = p.num_tokens * groups;
  uint32_t fills[2] = {0, 0};  // Fills of both buffers, before this token.
  uint32_t token_parity = 0;
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item += static_cast<int>(gridDim.x)) {
    const int64_t token = item / groups;
    const int first_head = item % groups * kHeads;
    const int num_heads = min(kHeads, p.num_heads - first_head);
    float sinks[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      sinks[r] = row + 8 * r < num_heads ? p.sink[first_head + row + 8 * r] : -INFINITY;
    WaitForPhase(&m.q_full, token_parity);
    token_parity ^= 1U;
    const int num_keys = m.num_keys;
    const int num_tiles = (num_keys + kKeys - 1) / kKeys;
    const int tiles_of[2] = {(num_tiles + 1) / 2, num_tiles / 2};
    const int mine = half == 0 ? tiles_of[0] : tiles_of[1];
    const uint32_t first_fill = half == 0 ? fills[0] : fills[1];

    float maxima[2] = {-INFINITY, -INFINITY};
    // Set, although they are overwritten: what is written under a condition would be kept from token to
    // token.
    float logits[kMostTiles / 2][kLogits] = {};
    // The keys of this warpgroup's tile number i, which is one of all in two.
#pragma unroll
    for (int i = kMostTiles / 2 - 1; i >= 0; --i) {
      if (i >= mine) continue;
      WaitForPhase(&m.keys_full[half], (first_fill + static_cast<uint32_t>(mine - 1 - i)) & 1U);
      // Computed anew for each tile: descriptors of all steps would not fit in registers.
      uint32_t q_address = SharedAddress(m.q_or_weights);
      uint32_t key_address = SharedAddress(m.keys[half].bytes);
      asm volatile("" : "+r"(q_address), "+r"(key_address));
      const uint64_t a = MatrixDescriptor(q_address);
      const uint64_t b = MatrixDescriptor(key_address);
      FenceRegisters(logits[i]);
      BeginMatrixSteps();
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
        const int offset = step / kStepsOfBlock * (kBlockBytes / 16) + step % kStepsOfBlock * 2;
        SharedMatrixStep<kKeys>::Add(logits[i], a + offset, b + offset, step > 0 ? 1 : 0);
      }
      CommitMatrixSteps();
      WaitForMatrixSteps<0>();
      FenceRegisters(logits[i]);
      // The first tile stays, as values.
      if (i > 0 && lane == 0) ArriveTimes(&m.keys_empty[half], 2);
#pragma unroll
      for (int k = 0; k < kLogits; ++k) {
        logits[i][k] = LogitOf(logits[i][k], k, (2 * i + half) * kKeys, num_keys, place, p.softmax_scale);
        maxima[k / 2 % 2] = fmaxf(maxima[k / 2 % 2], logits[i][k]);
      }
    }
    ShareLargest(maxima);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (place == 0) m.maxima[half][row + 8 * r] = maxima[r];
    }
    MeetConsumers();
#pragma unroll
    for (int r = 0; r < 2; ++r) maxima[r] = fmaxf(m.maxima[0][row + 8 * r], m.maxima[1][row + 8 * r]);

    // No warp reads the queries any more. Where no weights come to lie, the next token's may.
    if (thread >= num_tiles && thread < kRowBlocks) ArriveTimes(&m.q_empty[thread], kConsumers / 32);
#pragma unroll
    for (int i = 0; i < kMostTiles / 2; ++i) {
      if (i >= mine) continue;
      const int tile = 2 * i + half;
      WeighLogits(logits[i], maxima, logits[i]);
      StoreWeights(m.q_or_weights + tile * kBlockBytes, logits[i], row, 0, place);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = SumOfTile(logits[i], r, place);
        if (place == 3) m.tile_sums[tile][row + 8 * r] = sum;
      }
    }
    PublishToMatrixSteps();
    MeetConsumers();
    // The sink is one more logit without value.
    float normalizers[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      normalizers[r] = expf(sinks[r] - maxima[r]);
      for (int tile = 0; tile < num_tiles; ++tile) normalizers[r] += m.tile_sums[tile][row + 8 * r];
    }

    // Half of the columns, 128 at a time.
    float o[2][64] = {};
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int odd = tile % 2;
      WaitForPhase(&m.keys_full[odd],
                   ((odd != 0 ? fills[1] + tiles_of[1] : fills[0] + tiles_of[0]) + tile / 2 - 1U) & 1U);
      const uint32_t weight_address = SharedAddress(m.q_or_weights) + tile * kBlockBytes;
      const uint32_t value_address = SharedAddress(m.keys[odd].bytes);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        float values[64];
        BeginValues<128>(values, weight_address, value_address + (half * 4 + part * 2) * kBlockBytes);
        FinishValues(values);
        if (part == 1 && lane == 0) {
          Arrive(&m.keys_empty[odd]);
          if (tile < kRowBlocks) Arrive(&m.q_empty[tile]);
        }
#pragma unroll
        for (int i = 0; i < 64; ++i) o[part][i] += values[i];
        FenceRegisters(o[part]);  // Or they would be added when there are no registers for it.
      }
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) fills[odd] += static_cast<uint32_t>(max(2 * tiles_of[odd] - 1, 0));

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Pairs of columns: `place` of every eight.
      uint32_t words[32];
      const auto divide = [&](auto&& quotient) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          float(&pair)[64] = o[i / 16];
          const int j = i % 16 * 4 + r * 2;
          words[i] = Bf16Pair(quotient(pair[j]), quotient(pair[j + 1]));
        }
      };
      const Divisor divisor(normalizers[r]);
      if (divisor.is_plain && ArePlain(o[0], r) && ArePlain(o[1], r)) {
        divide([&](float x) { return divisor.Plain(x); });
      } else {
        divide([&](float x) { return divisor.Any(x); });
      }
      __syncwarp();
      const int head = row + 8 * r;
      auto* const out = static_cast<uint16_t*>(p.o) + (token * p.num_heads + first_head + head) * kDim +
                        half * (kDim / 2) + place * 8;
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        uint32_t words_of_eight[4] = {words[i], words[i + 1], words[i + 2], words[i + 3]};
        ExchangeOfFour(words_of_eight, place);
        if (head < num_heads)
          *reinterpret_cast<uint4*>(out + i * 8) =
              make_uint4(words_of_eight[0], words_of_eight[1], words_of_eight[2], words_of_eight[3]);
      }
    }
  }
}

template <bool kPacked>
__global__ void __launch_bounds__(kConsumers + kProducers, 1)
    HopperInRegistersKernel(const __grid_constant__ SequenceTable table,
                            const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) unsigned char raw[];
  auto& m = *reinterpret_cast<Shared*>(raw);
  BeginKernel();
  if (threadIdx.x == 0) {
    for (int odd = 0; odd < 2; ++odd) {
      InitBarrier(&m.keys_full[odd], 2);
      InitBarrier(&m.keys_empty[odd], kConsumers / 32);
    }
    InitBarrier(&m.q_full, kProducers / 32);
    for (uint64_t& empty : m.q_empty) InitBarrier(&empty, kConsumers / 32);
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    GiveUpRegisters<kProducerRegisters>();
    Produce<kPacked>(m, table, p);
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consume(m, p);
  }
}

}  // namespace

Status HopperInRegisters(LaunchContext& context, const SequenceTable& table, const AttentionParams& params) {
  const int64_t items = params.num_tokens * CeilDiv(params.num_heads, kHeads);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, context.limits().num_sms));
  const auto kernel =
      table.form == StoredForm::kRelease ? HopperInRegistersKernel<true> : HopperInRegistersKernel<false>;
  context.Launch(kernel, blocks, kConsumers + kProducers, sizeof(Shared), table, params);
  return {};
}

}  // namespace dsv4::backend::cuda
