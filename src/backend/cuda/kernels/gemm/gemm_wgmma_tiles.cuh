// W x for many tokens, on Hopper's tensor cores (wgmma). Tiles have 128 rows of weights and up to 128 tokens,
// and as many blocks as there are SMs work on them.
//
// Weights are the A operand and stay in registers. Two warpgroups take 64 rows each. Every thread copies the
// bytes that it will itself widen through shared memory, some stages ahead. Tokens are the B operand, packed
// beforehand (operand_layout.h). A warp of its own looks for work and has blocks of 64 columns brought by
// TMA, into a ring that both warpgroups read.
//
// The steps of 16 columns, their order, the segments and the order of all sums are those of gemm_mma.cuh.
// Instruction wgmma adds the products of a step as mma.sync does, bit for bit (cuda_many_tokens_test compares
// them). A token's result is the same bits in either.
#pragma once

#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/packing/operand_layout.h"
#include "backend/cuda/weights/stored_scale.cuh"

namespace dsv4::backend::cuda {

inline constexpr int kWgmmaRows = 128;
inline constexpr int kWgmmaTokens = 128;
inline constexpr int kWgmmaConsumers = 256;
inline constexpr int kWgmmaThreads =
    kWgmmaConsumers + 128;  // Registers are given up and taken by whole warpgroups.

// One tile of work. Of each pair of rows that a thread holds, one is of matrix 0 and one of matrix 1.
struct WgmmaItem {
  const uint8_t* data[2];
  const void* scale[2];
  float global_scale[2];
  int first_row;  // In either matrix,
  int row_end;    // and the row behind the last.
  int first_x_block;
  int first_x_row;
  int num_tokens;  // 0: there is no more work.
  int matrix;      // Index among several whose rows are tiles, for the one that stores.
};

// How rows of a tile are dealt out.
enum class WgmmaRows : uint8_t {
  kNeighbours,  // The matrices are one; a thread's rows are neighbours.
  kSameOfBoth,  // 64 rows each of two matrices; a thread holds the same row of both.
};

// Part of a load that Unpack does not say: a stage of 128 columns as a thread copies it.
template <MatmulKind kKind>
struct WgmmaFormat {
  static constexpr int kValues = Unpack<kKind>::kValues;
  static constexpr int kUnit = 4 * kValues;
  static constexpr int kUnits = 128 / kUnit;  // A stage.
  static constexpr int kPieces = 2 * kUnits;  // Pieces of 16 bytes a thread and stage.
  // Block scales of weights, four bytes a row and stage or two of them.
  static constexpr bool kHasCodes = kValues == 32 || kKind == MatmulKind::kMmaMxFp8;
  static constexpr int kStageBytes = kWgmmaConsumers * (16 * kPieces + (kHasCodes ? 8 : 0));
  static constexpr int kStages = kValues == 8 ? 2 : (kValues == 16 ? 4 : 6);
};

inline constexpr int kWgmmaBlocks = 5;  // Blocks of 64 columns of tokens in the ring.
inline constexpr int kWgmmaItems = 4;

template <MatmulKind kKind>
struct WgmmaMemory {
  uint16_t x[kWgmmaBlocks][kWgmmaTokens * kPackedCols];
  float4 totals[kWgmmaTokens / 8][kWgmmaConsumers];
  uint8_t weights[WgmmaFormat<kKind>::kStages][WgmmaFormat<kKind>::kStageBytes];
  WgmmaItem items[kWgmmaItems];
  // Labels of an item's tokens, for the warp that stores its sums.
  int32_t labels[kWgmmaItems][kWgmmaTokens];
  float factors[kWgmmaItems][kWgmmaTokens];
  uint64_t x_full[kWgmmaBlocks];
  uint64_t x_empty[kWgmmaBlocks];
  uint64_t item_full[kWgmmaItems];
  uint64_t item_empty[kWgmmaItems];
};

// --- Weights ---------------------------------------------------------------------------------------------------------

// The copies of a thread, stage by stage through all items.
template <MatmulKind kKind, WgmmaRows kRows>
class WgmmaWeights {
 public:
  using Format = WgmmaFormat<kKind>;

  __device__ WgmmaWeights(WgmmaMemory<kKind>& memory, const DeviceWeight& shape)
      : memory_(memory), shape_(shape), num_stages_(static_cast<int>(shape.cols) / 128) {
    stage_ = num_stages_;
#pragma unroll
    for (int i = 0; i < Format::kStages - 1; ++i) CopyNext();
  }

  // The rows of this thread in an item.
  static __device__ __forceinline__ int Row(const WgmmaItem& item, int half) {
    const int thread = static_cast<int>(threadIdx.x);
    const int group = thread % 32 / 4;
    return kRows == WgmmaRows::kNeighbours ? item.first_row + thread / 32 * 16 + group * 2 + half
                                           : item.first_row + thread / 32 * 8 + group;
  }

  // Asks for one stage more.
  __device__ __forceinline__ void CopyNext() {
    if (stage_ == num_stages_ && !done_) NextItem();
    if (!done_) {
      const uint32_t slot = SharedAddress(memory_.weights[to_]);
      const auto thread = static_cast<uint32_t>(threadIdx.x);
      const int64_t first = stage_ * int64_t{128 * 16 / Format::kValues};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int u = 0; u < Format::kUnits; ++u) {
          CopyAsync16(slot + ((half * Format::kUnits + u) * kWgmmaConsumers + thread) * 16,
                      rows_[half] + first + u * 64, exists_[half]);
        }
        if constexpr (Format::kHasCodes) {
          constexpr int kCodes = kKind == MatmulKind::kMmaNvFp4 ? 8 : 4;
          CopyAsync4(slot + Format::kPieces * kWgmmaConsumers * 16 + (half * kWgmmaConsumers + thread) * 4,
                     codes_[half] + stage_ * int64_t{kCodes}, exists_[half]);
        }
      }
      ++stage_;
    }
    CommitCopies();
    if (++to_ == Format::kStages) to_ = 0;
  }

  // The next stage is there; asks for the one that replaces the one before.
  __device__ __forceinline__ void NextStage() {
    WaitForCopies<Format::kStages - 2>();
    if (++from_ == Format::kStages) from_ = 0;
    CopyNext();
  }

  // A of block `block` (0 or 1) of the stage, four steps.
  __device__ __forceinline__ void Widen(int block, uint32_t (&a)[4][4]) const {
    using Unpacked = Unpack<kKind>;
    const uint8_t* const slot = memory_.weights[from_];
    const int thread = static_cast<int>(threadIdx.x);
    const auto piece = [&](int half, int u) {
      return *reinterpret_cast<const uint4*>(slot +
                                             ((half * Format::kUnits + u) * kWgmmaConsumers + thread) * 16);
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Unpacked::Scales scales = {};
      if constexpr (Format::kHasCodes) {
        const uint32_t codes = *reinterpret_cast<const uint32_t*>(
            slot + Format::kPieces * kWgmmaConsumers * 16 + (half * kWgmmaConsumers + thread) * 4);
        if constexpr (kKind == MatmulKind::kMmaNvFp4) {
          scales = Unpacked::Expand(static_cast<uint16_t>(codes >> (thread % 2 * 16)));
        } else if constexpr (kKind == MatmulKind::kMmaMxFp8) {
          scales = Unpacked::Expand(static_cast<uint8_t>(codes >> ((block * 2 + thread % 4 / 2) * 8)));
        } else {
          scales = Unpacked::Expand(static_cast<uint8_t>(codes >> (thread % 4 * 8)));
        }
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // Pairs i and i + 1 of the lane's 16 bytes in unit u.
        const int u = Format::kUnits == 1 ? 0 : (Format::kUnits == 2 ? block : block * 2 + step / 2);
        const int i =
            Format::kUnits == 1 ? block * 8 + step * 2 : (Format::kUnits == 2 ? step * 2 : step % 2 * 2);
        const uint4 raw = piece(half, u);
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
        a[step][half] = Unpacked::Widen(words, scales, i) | (i == 0 ? Unpacked::Poison(words) : 0U);
        a[step][half + 2] = Unpacked::Widen(words, scales, i + 1);
      }
    }
  }

 private:
  __device__ __forceinline__ void NextItem() {
    WaitForPhase(&memory_.item_full[place_.i], place_.parity);
    const WgmmaItem& item = memory_.items[place_.i];
    place_.Next();
    if (item.num_tokens == 0) {
      done_ = true;
      return;
    }
    stage_ = 0;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const int64_t row_bytes = shape_.cols * 16 / Format::kValues;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(item, half);
      exists_[half] = row < item.row_end;
      const int64_t safe_row = exists_[half] ? row : item.first_row;
      rows_[half] = item.data[half] + safe_row * row_bytes + lane * 16;
      if constexpr (Format::kHasCodes) {
        // NVFP4: the two codes of this lane and of its neighbour.
        codes_[half] = static_cast<const uint8_t*>(item.scale[half]) +
                       Unpack<kKind>::ScaleRow(shape_, static_cast<int>(safe_row)) +
                       (kKind == MatmulKind::kMmaNvFp4 ? lane / 2 * 4 : 0);
      }
    }
  }

  WgmmaMemory<kKind>& memory_;
  const DeviceWeight& shape_;
  const int num_stages_;
  RingPlace<kWgmmaItems> place_;
  bool done_ = false;
  int stage_ = 0;  // The item's, to be asked for next.
  int to_ = 0;
  int from_ = Format::kStages - 1;
  const uint8_t* rows_[2];
  const uint8_t* codes_[2];
  bool exists_[2];
};

// --- Products --------------------------------------------------------------------------------------------------------

// Adds up the segments of a tile in order. Those that are done lie in shared memory, each thread's own.
template <MatmulKind kKind, int kTokens>
struct WgmmaTotal {
  WgmmaMemory<kKind>& memory;
  bool first = true;

  __device__ __forceinline__ void Add(float (&sums)[kTokens / 2], bool last) {
    if (first && last) return;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      float4& total = memory.totals[i][thread];
      if (!first) {
        const float4 before = total;
        sums[4 * i] = before.x + sums[4 * i];
        sums[4 * i + 1] = before.y + sums[4 * i + 1];
        sums[4 * i + 2] = before.z + sums[4 * i + 2];
        sums[4 * i + 3] = before.w + sums[4 * i + 3];
      }
      if (!last) total = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    }
    first = false;
  }
};

// The tile of an item: sums[4 j + 2 half + e] is that of token 8 j + 2 (lane % 4) + e and the thread's row
// `half`.
template <MatmulKind kKind, WgmmaRows kRows, int kTokens>
__device__ __forceinline__ void WgmmaTile(WgmmaMemory<kKind>& memory, const DeviceWeight& shape,
                                          const WgmmaItem& item, WgmmaWeights<kKind, kRows>& weights,
                                          RingPlace<kWgmmaBlocks>& x_place, float (&sums)[kTokens / 2]) {
  constexpr bool kScaled = Unpack<kKind>::kScaledSums;
  const int cols = static_cast<int>(shape.cols);
  const int num_stages = cols / 128;
  const int segment_blocks = SegmentCols<kKind>(cols) / static_cast<int>(kPackedCols);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WgmmaTotal<kKind, kTokens> total{memory};
  int blocks_left = segment_blocks;

  int64_t scale_rows[2] = {};
  if constexpr (kScaled) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = WgmmaWeights<kKind, kRows>::Row(item, half);
      scale_rows[half] = Unpack<kKind>::ScaleRow(shape, row < item.row_end ? row : item.first_row);
    }
  }
  // Scales of the stage after this one as they are stored; asked for early, looked at late.
  [[maybe_unused]] uint32_t stored[2][2];
  [[maybe_unused]] const bool one_a_stage = shape.block_cols_log2 >= 7;
  const auto ask_for_scales = [&](int stage) {
    if constexpr (kScaled) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = min(stage * 128, cols - 128);
        stored[0][half] = LoadStoredScale(item.scale[half], shape.scale_dtype,
                                          scale_rows[half] + (col >> shape.block_cols_log2));
        if (!one_a_stage) {
          stored[1][half] = LoadStoredScale(item.scale[half], shape.scale_dtype,
                                            scale_rows[half] + ((col + 64) >> shape.block_cols_log2));
        }
      }
    }
  };
  float scales[2][2] = {};
  const auto take_scales = [&] {
    if constexpr (kScaled) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scales[0][half] = ScaleFromStored(stored[0][half], shape.scale_dtype);
        scales[1][half] = one_a_stage ? scales[0][half] : ScaleFromStored(stored[1][half], shape.scale_dtype);
      }
    }
  };

  // The sums of a block of 64 columns, where scales apply to those.
  [[maybe_unused]] float block_sums[kScaled ? kTokens / 2 : 1];
  uint32_t a[2][4][4];
  ask_for_scales(0);
  weights.NextStage();
  weights.Widen(0, a[0]);
  take_scales();
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0.0F;
  [[maybe_unused]] int adds = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      WaitForPhase(&memory.x_full[x_place.i], x_place.parity);
      const uint64_t x = MatrixDescriptor(SharedAddress(memory.x[x_place.i]));
      FenceRegisters(sums);
      if constexpr (kScaled) FenceRegisters(block_sums);
      BeginMatrixSteps();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if constexpr (kScaled) {
          MatrixStep<kTokens>::Add(block_sums, a[block][step], x + 2 * step, step > 0 ? 1 : 0);
        } else {
          MatrixStep<kTokens>::Add(sums, a[block][step], x + 2 * step, step > 0 ? 1 : adds);
        }
      }
      CommitMatrixSteps();
      // While they run: the next block.
      if (block == 0) {
        ask_for_scales(stage + 1);
        weights.Widen(1, a[1]);
      } else if (stage + 1 < num_stages) {
        weights.NextStage();
        weights.Widen(0, a[0]);
      }
      FenceRegisters(a[block ^ 1]);
      WaitForMatrixSteps<0>();
      FenceRegisters(sums);
      if constexpr (kScaled) FenceRegisters(block_sums);
      if (lane == 0) Arrive(&memory.x_empty[x_place.i]);
      x_place.Next();
      adds = 1;
      if constexpr (kScaled) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i)
          sums[i] = fmaf(block_sums[i], scales[block][i / 2 % 2], sums[i]);
        if (block == 1) take_scales();
      }
      const bool last = stage + 1 == num_stages && block == 1;
      if (--blocks_left == 0 || last) {
        total.Add(sums, last);
        blocks_left = segment_blocks;
        adds = 0;
        if constexpr (kScaled) {
          if (!last) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0.0F;
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i)
    sums[i] = Unpack<kKind>::Finish(shape.global_scale_divides, item.global_scale[i / 2 % 2], sums[i]);
}

// Notes on an item's tokens when its sums are stored: shared memory, so that no thread waits for it then.
struct WgmmaTokenNotes {
  int32_t* labels;  // [num_tokens]
  float* factors;   // [num_tokens]
};

// The whole of a block. One thread calls find(i, item), which describes tile i of all, false past the last. A
// warp together calls note(item, notes, lane), which writes the notes that store needs. Function
// store.operator()<kTokens>(item, notes, sums, own) takes a tile's sums. There own[i * kWgmmaConsumers], i <
// kTokens / 8, is shared memory of the thread's own. Argument x has the packed rows.
template <MatmulKind kKind, WgmmaRows kRows, typename Find, typename Note, typename Store>
__device__ __forceinline__ void WgmmaTiles(const DeviceWeight& shape, const PackedRows& x, Find&& find,
                                           Note&& note, Store&& store) {
  extern __shared__ __align__(1024) unsigned char raw_memory[];
  auto& memory = *reinterpret_cast<WgmmaMemory<kKind>*>(raw_memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < kWgmmaBlocks; ++i) {
      InitBarrier(&memory.x_full[i], 1);
      InitBarrier(&memory.x_empty[i], kWgmmaConsumers / 32);
    }
    for (int i = 0; i < kWgmmaItems; ++i) {
      InitBarrier(&memory.item_full[i], 1);
      InitBarrier(&memory.item_empty[i], kWgmmaConsumers);
    }
    PublishBarriers();
  }
  __syncthreads();

  if (thread >= kWgmmaConsumers) {
    GiveUpRegisters<40>();
    if (thread >= kWgmmaConsumers + 32) return;
    // One warp; its first thread asks for the copies.
    const int lane = thread % 32;
    RingPlace<kWgmmaBlocks> x_place;
    RingPlace<kWgmmaItems> item_place;
    const int num_blocks = static_cast<int>(shape.cols / kPackedCols);
    const auto publish = [&](int64_t i) {
      WgmmaItem& item = memory.items[item_place.i];
      WaitForPhase(&memory.item_empty[item_place.i], item_place.parity ^ 1U);
      if (lane == 0) {
        WgmmaItem found = {};
        if (!find(i, found)) found.num_tokens = 0;
        item = found;
      }
      __syncwarp();
      note(item, WgmmaTokenNotes{memory.labels[item_place.i], memory.factors[item_place.i]}, lane);
      __syncwarp();
      if (lane == 0) Arrive(&memory.item_full[item_place.i]);
      item_place.Next();
      return item;
    };
    // Two items are announced before the tokens of the one in front of them are fetched. Their weights are
    // asked for meanwhile, kStages - 1 stages ahead, which with few columns is past the next item
    // (FitsWgmma).
    int64_t i = blockIdx.x;
    WgmmaItem item = publish(i);
    WgmmaItem next = item.num_tokens > 0 ? publish(i += gridDim.x) : item;
    while (item.num_tokens > 0) {
      const WgmmaItem after = next.num_tokens > 0 ? publish(i += gridDim.x) : next;
      const auto rows = static_cast<int>(CeilDiv(item.num_tokens, kPackedRows) * kPackedRows);
      const auto num_bytes = static_cast<uint32_t>(rows * kPackedCols * static_cast<int>(sizeof(uint16_t)));
      for (int block = 0; lane == 0 && block < num_blocks; ++block) {
        WaitForPhase(&memory.x_empty[x_place.i], x_place.parity ^ 1U);
        ArriveAndAnnounce(&memory.x_full[x_place.i], num_bytes);
        CopyBulk(memory.x[x_place.i],
                 x.data + ((item.first_x_block + block) * x.num_rows + item.first_x_row) * kPackedCols,
                 num_bytes, &memory.x_full[x_place.i]);
        x_place.Next();
      }
      item = next;
      next = after;
    }
    return;
  }
  TakeRegisters<232>();
  WgmmaWeights<kKind, kRows> weights(memory, shape);
  RingPlace<kWgmmaBlocks> x_place;
  RingPlace<kWgmmaItems> item_place;
  while (true) {
    WaitForPhase(&memory.item_full[item_place.i], item_place.parity);
    const WgmmaItem& item = memory.items[item_place.i];
    if (item.num_tokens == 0) return;
    const auto tile = [&]<int kTokens>() {
      float sums[kTokens / 2];
      WgmmaTile<kKind, kRows, kTokens>(memory, shape, item, weights, x_place, sums);
      store.template operator()<kTokens>(
          item, WgmmaTokenNotes{memory.labels[item_place.i], memory.factors[item_place.i]}, sums,
          &memory.totals[0][thread]);
    };
    if (item.num_tokens > 96) {
      tile.template operator()<128>();
    } else if (item.num_tokens > 64) {
      tile.template operator()<96>();
    } else if (item.num_tokens > 32) {
      tile.template operator()<64>();
    } else {
      tile.template operator()<32>();
    }
    Arrive(&memory.item_empty[item_place.i]);
    item_place.Next();
  }
}

}  // namespace dsv4::backend::cuda
