// A tile of block_scaled.h: 128 rows of weights times up to 128 rows of activations, by one block. NEVER RUN.
//
// Weights are the A operand and activations the B operand, both in shared memory as tcgen05.cuh wants them.
// Four warps copy the memory's bytes into a ring of stages, each thread its own pieces. They tell the fifth
// warp when a stage is there. One thread of that warp multiplies. It sums all columns in their order into 128
// columns of tensor memory. Then the four warps store them.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/ptx/tcgen05.cuh"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

inline constexpr int kBlockScaledRows = 128;
inline constexpr int kBlockScaledColumns = 128;  // Activations'.
inline constexpr int kBlockScaledCopiers = 128;
inline constexpr int kBlockScaledThreads = kBlockScaledCopiers + 32;
inline constexpr int kBlockScaledStages = 3;

// A stage is 128 bytes of a row of an operand: four steps.
template <BlockScaledStep kStep>
struct BlockScaledFormat {
  static constexpr bool kFp4 = kStep == BlockScaledStep::kE2m1ByE2m1;
  static constexpr bool kPadded = kStep == BlockScaledStep::kE2m1ByE4m3;  // A: 8 bytes of each 16.
  static constexpr int kStageCols = kFp4 ? 256 : 128;
  static constexpr int kScaleWords = kFp4 ? 4 : 1;  // Scale words of a row and stage; a word is four scales.
};

template <BlockScaledStep kStep>
struct BlockScaledMemory {
  using Format = BlockScaledFormat<kStep>;
  uint8_t a[kBlockScaledStages][kBlockScaledRows * 128];
  uint8_t b[kBlockScaledStages][kBlockScaledColumns * 128];
  uint8_t a_scales[kBlockScaledStages][Format::kScaleWords][512];
  uint8_t b_scales[kBlockScaledStages][Format::kScaleWords][512];
  uint64_t full[kBlockScaledStages];
  uint64_t empty[kBlockScaledStages];
  uint64_t done;
  uint32_t tensor_memory;
  int32_t x_rows[kBlockScaledColumns];  // Rows of activations for the tile's rows: where they are read,
  int32_t y_rows[kBlockScaledColumns];  // and where the results go.
};

// Columns of tensor memory: sums, then the scales of each stage, which are so never overwritten while a step
// reads them. Two blocks share an SM's 512.
inline constexpr int kTensorColumns = 256;
inline constexpr int kTensorScales = kBlockScaledColumns;  // 16 columns of A's and 16 of B's a stage.
static_assert(kTensorScales + kBlockScaledStages * 32 <= kTensorColumns);

// Tile of a block; the same in all threads. num_columns > 0.
struct BlockScaledTile {
  const uint8_t* data;   // The whole matrix,
  const uint8_t* scale;  // and its scales.
  int first_row;
  int row_end;
  int num_columns;
};

// A thread's copies of a stage.
template <BlockScaledStep kStep>
class BlockScaledCopier {
 public:
  using Format = BlockScaledFormat<kStep>;

  __device__ BlockScaledCopier(BlockScaledMemory<kStep>& memory, const DeviceWeight& shape,
                               const BlockScaledTile& tile, const uint8_t* x_codes, const uint8_t* x_scales)
      : memory_(memory), shape_(shape), tile_(tile), x_codes_(x_codes), x_scales_(x_scales) {
    if (SharesScales()) shared_scale_ = LoadSharedScale(0);
  }

  __device__ void Copy(int stage, int slot) {
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int kPieces = 8;  // Pieces of 16 bytes a row of shared memory.
    constexpr int kRowsAtOnce = kBlockScaledCopiers / kPieces;
    const int piece = thread % kPieces;
    const int64_t a_row_bytes = Format::kFp4 || Format::kPadded ? shape_.cols / 2 : shape_.cols;
    const int64_t b_row_bytes = Format::kFp4 ? shape_.cols / 2 : shape_.cols;
    constexpr int kPieceBytes = Format::kPadded ? 8 : 16;  // In memory.
#pragma unroll
    for (int i = 0; i < kBlockScaledRows / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + thread / kPieces;
      const bool exists = tile_.first_row + row < tile_.row_end;
      const int64_t of = exists ? tile_.first_row + row : tile_.first_row;
      const uint8_t* const from =
          tile_.data + of * a_row_bytes + (int64_t{stage} * kPieces + piece) * kPieceBytes;
      const uint32_t to = SharedAddress(memory_.a[slot]) + Place(row, piece);
      if constexpr (Format::kPadded) {
        CopyAsync8(to, from, exists);
      } else {
        CopyAsync16(to, from, exists);
      }
    }
    for (int row = thread / kPieces; row < tile_.num_columns; row += kRowsAtOnce) {
      CopyAsync16(SharedAddress(memory_.b[slot]) + Place(row, piece),
                  x_codes_ + memory_.x_rows[row] * b_row_bytes + (int64_t{stage} * kPieces + piece) * 16,
                  true);
    }
    CopyScalesOf(stage, slot);
    CommitCopies();
  }

 private:
  static __device__ __forceinline__ uint32_t Place(int row, int piece) {
    return static_cast<uint32_t>(row * 128 + (piece ^ row % 8) * 16);
  }
  // Eight bytes; zeros where `exists` is false.
  static __device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
                 "r"(exists ? 8 : 0)
                 : "memory");
  }

  // FP8: the columns of a stage lie in one block.
  static __device__ constexpr bool SharesScales() { return kStep == BlockScaledStep::kE4m3ByE4m3; }
  __device__ uint32_t LoadSharedScale(int stage) const {
    const int row = tile_.first_row + static_cast<int>(threadIdx.x);
    const int64_t block_row = (row < tile_.row_end ? row : tile_.first_row) >> shape_.block_rows_log2;
    const int block_col =
        min(stage * Format::kStageCols, static_cast<int>(shape_.cols) - 1) >> shape_.block_cols_log2;
    return tile_.scale[block_row * shape_.scale_cols + block_col] * 0x01010101U;
  }

  // Thread t brings those of row t of either operand.
  __device__ void CopyScalesOf(int stage, int slot) {
    const int row = static_cast<int>(threadIdx.x);
    const uint32_t place = static_cast<uint32_t>(row % 32 * 16 + row / 32 * 4);
    if constexpr (SharesScales()) {
      *reinterpret_cast<uint32_t*>(&memory_.a_scales[slot][0][place]) = shared_scale_;
      shared_scale_ = LoadSharedScale(stage + 1);  // In flight while this stage is multiplied.
    } else {
      const bool exists = tile_.first_row + row < tile_.row_end;
      const uint8_t* const from = tile_.scale +
                                  (exists ? tile_.first_row + row : tile_.first_row) * shape_.scale_cols +
                                  int64_t{stage} * (4 * Format::kScaleWords);
#pragma unroll
      for (int word = 0; word < Format::kScaleWords; ++word)
        CopyAsync4(SharedAddress(memory_.a_scales[slot][word]) + place, from + word * 4, exists);
    }
    // Columns that do not exist are not stored; what scales them is zero, so that nothing is undefined.
    const bool exists = row < tile_.num_columns;
    const int64_t x_scale_cols = shape_.cols / Format::kStageCols * (4 * Format::kScaleWords);
    const uint8_t* const from = x_scales_ + memory_.x_rows[exists ? row : 0] * x_scale_cols +
                                int64_t{stage} * (4 * Format::kScaleWords);
#pragma unroll
    for (int word = 0; word < Format::kScaleWords; ++word)
      CopyAsync4(SharedAddress(memory_.b_scales[slot][word]) + place, from + word * 4, exists);
  }

  BlockScaledMemory<kStep>& memory_;
  const DeviceWeight& shape_;
  const BlockScaledTile& tile_;
  const uint8_t* const x_codes_;
  const uint8_t* const x_scales_;
  uint32_t shared_scale_ = 0;
};

// The whole of a block; memory.x_rows and y_rows are filled by all threads before. emit(column, row, sum)
// stores, row of the matrix.
template <BlockScaledStep kStep, typename Emit>
__device__ void MultiplyBlockScaledTile(BlockScaledMemory<kStep>& memory, const DeviceWeight& shape,
                                        const BlockScaledTile& tile, const uint8_t* x_codes,
                                        const uint8_t* x_scales, Emit&& emit) {
  using Format = BlockScaledFormat<kStep>;
  constexpr int kStages = kBlockScaledStages;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  constexpr int kMultiplier = kBlockScaledCopiers / 32;  // Role among the block's warps.
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&memory.full[i], kBlockScaledCopiers);
      InitBarrier(&memory.empty[i], 1);
    }
    InitBarrier(&memory.done, 1);
    PublishBarriers();
  }
  if (warp == kMultiplier) AllocateTensorMemory<kTensorColumns>(&memory.tensor_memory);
  BeforeThreadsMeet();
  __syncthreads();
  AfterThreadsMet();
  const uint32_t tensor = memory.tensor_memory;
  const int num_stages = static_cast<int>(shape.cols) / Format::kStageCols;

  if (warp == kMultiplier) {
    if (lane == 0) {
      // Whole groups of sixteen columns; what lies in those past the last is not stored.
      const uint32_t descriptor = StepDescriptor(kStep, (tile.num_columns + 15) / 16 * 16);
      for (int stage = 0; stage < num_stages; ++stage) {
        const int slot = stage % kStages;
        WaitForPhase(&memory.full[slot], static_cast<uint32_t>(stage / kStages % 2));
        AfterThreadsMet();
        const uint32_t a_scales = tensor + kTensorScales + static_cast<uint32_t>(slot) * 32;
        const uint32_t b_scales = a_scales + 16;
#pragma unroll
        for (int word = 0; word < Format::kScaleWords; ++word) {
          CopyScales(a_scales + word * 4, ScalesDescriptor(SharedAddress(memory.a_scales[slot][word])));
          CopyScales(b_scales + word * 4, ScalesDescriptor(SharedAddress(memory.b_scales[slot][word])));
        }
        const uint64_t a = OperandDescriptor(SharedAddress(memory.a[slot]));
        const uint64_t b = OperandDescriptor(SharedAddress(memory.b[slot]));
#pragma unroll
        for (uint32_t step = 0; step < 4; ++step) {
          // A step takes one scale a row of the stage's word, or the step's word.
          MultiplyBlockScaled<kStep>(tensor, a + step * kOperandStep, b + step * kOperandStep,
                                     Format::kFp4 ? descriptor : WithScale(descriptor, step),
                                     a_scales + (Format::kFp4 ? step * 4 : 0),
                                     b_scales + (Format::kFp4 ? step * 4 : 0), stage > 0 || step > 0 ? 1 : 0);
        }
        ArriveWhenMultiplied(&memory.empty[slot]);
      }
      ArriveWhenMultiplied(&memory.done);
    }
    __syncwarp();
  } else {
    BlockScaledCopier<kStep> copier(memory, shape, tile, x_codes, x_scales);
    // A stage is told when the copies of the one behind it are in flight and its own have come.
    const auto tell = [&](int stage) {
      PublishToMatrixSteps();
      Arrive(&memory.full[stage % kStages]);
    };
    for (int stage = 0; stage < num_stages; ++stage) {
      const int slot = stage % kStages;
      WaitForPhase(&memory.empty[slot], static_cast<uint32_t>(stage / kStages % 2) ^ 1U);
      copier.Copy(stage, slot);
      if (stage >= kStages - 1) {
        WaitForCopies<kStages - 1>();
        tell(stage - (kStages - 1));
      }
    }
    WaitForCopies<0>();
    for (int stage = max(0, num_stages - (kStages - 1)); stage < num_stages; ++stage) tell(stage);

    WaitForPhase(&memory.done, 0);
    AfterThreadsMet();
    const int row = tile.first_row + thread;
    for (int first = 0; first < tile.num_columns; first += 16) {
      float sums[16];
      LoadTensorColumns(tensor + (static_cast<uint32_t>(warp * 32) << 16) + static_cast<uint32_t>(first),
                        sums);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (first + i < tile.num_columns && row < tile.row_end) emit(first + i, row, sums[i]);
      }
    }
    BeforeThreadsMeet();
  }
  __syncthreads();
  if (warp == kMultiplier) {
    AfterThreadsMet();
    FreeTensorMemory<kTensorColumns>(tensor);
  }
}

}  // namespace dsv4::backend::cuda
