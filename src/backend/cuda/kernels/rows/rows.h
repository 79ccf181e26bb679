// Ops that turn rows into rows: norms, rotary embedding, rounding, scaling, and storing rows where they are kept. Those called
// one after the other run as one launch: steps on the same rows follow each other in the block that holds the row, steps on
// other rows are other blocks.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cuda/device/numeric/device_array.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/runtime/memory_range.h"

namespace dsv4::backend::cuda {

enum class RowStepKind : uint8_t {
  kPool,
  kRmsNorm,
  kHeadRmsNorm,
  kRope,
  kSimulateFp8,
  kHadamardFp4,
  kScale,
  kStore,
  kHistory,
};
inline constexpr int kNumRowStepKinds = 9;

// Rows [begin, end) of the source go to `destination`.
struct StoredRun {
  int64_t begin;
  int64_t end;
  std::byte* destination;
};

// A sequence's tokens of a step, and its compressor rings (compressor_pool).
struct CompressorHistory {
  int64_t token_begin;
  int64_t num_tokens;
  int64_t first_entry;  // Of this step, in `pooled`.
  float* values;        // History rings of `capacity` rows.
  float* scores;
  int value_capacity;
  int score_capacity;
  int value_slot;  // The first token's position modulo each capacity
  int score_slot;
  int phase;         // and modulo the ratio.
  int has_previous;  // Whether an entry comes before the first of this step.
};
// What PooledRow (compressor_rows.cuh) takes: so many tokens of an entry, and columns (kMaxRegisterRow).
inline constexpr int kMaxPooledInRows = 8;
inline constexpr int64_t kMaxPooledWidth = 512;

// One step. What a kind does not name is unused and zero.
struct RowStep {
  RowStepKind kind = RowStepKind::kScale;
  bool inverse = false;  // kRope
  int num_columns = 0;   // kSimulateFp8; kRope: frequencies; kPool, kHistory: ratio
  int group = 0;         // kSimulateFp8: columns; kRope: rows that share a position; kPool: 1 with overlap
  float factor = 0.0F;   // kRmsNorm, kHeadRmsNorm: eps; kScale
  const float* weight = nullptr;                  // kRmsNorm; kRope: the frequencies; kPool, kHistory: ape
  const int32_t* positions = nullptr;             // kRope
  const float* scores = nullptr;                  // kPool, kHistory: of the tokens
  DeviceArray<StoredRun> runs = {};               // kStore
  DeviceArray<CompressorHistory> histories = {};  // kPool, kHistory
};

// Rows that are read at `in` and left at `out`, which may be the same. Of kPool, which comes first, `in` are the step's values, one row a
// token and not an entry, of fp32 whatever in_is_bf16 says: that of `out`.
struct RowsOperand {
  const void* in = nullptr;
  int64_t in_stride = 0;  // Elements between rows.
  void* out = nullptr;    // Null: nothing is left (kHistory).
  int64_t out_stride = 0;
  int64_t num_rows = 0;
  int64_t width = 0;
  bool in_is_bf16 = false;
  bool out_is_bf16 = false;
};

// Rows of up to so many elements.
inline constexpr int64_t kMaxRowWidth = 16384;

// Of a step that stores: a block looks through them at once.
inline constexpr size_t kMaxJoinedRuns = 64;

// Queues the step. `touches`: what it reads or writes beside its rows, if another step may write it. `beside`: the rows of another
// step that may run at the same time, though both touch the same memory, since neither writes what the other reads or writes.
Status AddRowStep(CudaContext& context, const RowsOperand& rows, const RowStep& step,
                  std::span<const MemoryRange> touches = {}, const void* beside = nullptr);

// Whether the last launch has left `rows`, so that another step on them costs no launch.
bool ContinuesRows(CudaContext& context, const RowsOperand& rows);

}  // namespace dsv4::backend::cuda
