// Work of ops that turn rows into rows: norms, rotary embedding, rounding, scaling, and storing rows where
// they are kept. Those called one after the other run as one launch. Steps on the same rows follow each other
// in the block that holds the row. Steps on other rows are other blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/device/numeric/device_array.h"
#include "backend/cuda/device/sync/fault.h"
#include "backend/cuda/lowering/select/hyper_connection.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/memory_range.h"
#include "tensor/cache_format.h"

namespace dsv4::backend::cuda {

enum class RowStepKind : uint8_t {
  kPool,
  kRmsNorm,
  kHeadRmsNorm,
  kRope,
  kSimulateFp8,
  kHadamardFp4,
  kRoundFp4,
  kScale,
  kStore,
  kHistory,
};
inline constexpr int kNumRowStepKinds = 10;

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
  int64_t first_entry;  // This step's, in `pooled`.
  float* values;        // History rings of `capacity` rows.
  float* scores;
  int value_capacity;
  int score_capacity;
  int value_slot;  // The first token's position modulo each capacity
  int score_slot;
  int phase;         // and modulo the ratio.
  int has_previous;  // Whether an entry comes before the first of this step.
};

// One step. What a kind does not name is unused and zero.
struct RowStep {
  RowStepKind kind = RowStepKind::kScale;
  bool inverse = false;                  // kRope
  CacheCode code = CacheCode::kNone;     // kStore: rows are packed, with e8m0 scales (PackedFormat).
  CacheScale scale = CacheScale::kE8m0;  // kRoundFp4
  int num_columns = 0;                   // kSimulateFp8, kStore; kRope: frequencies; kPool, kHistory: ratio
  // kSimulateFp8, kRoundFp4, kStore: columns; kRope: rows that share a position; kPool: 1 with overlap
  int group = 0;
  float factor = 0.0F;                            // kRmsNorm, kHeadRmsNorm: eps; kScale
  const float* weight = nullptr;                  // kRmsNorm; kRope: the frequencies; kPool, kHistory: ape
  const int32_t* positions = nullptr;             // kRope
  const float* scores = nullptr;                  // kPool, kHistory: of the tokens
  DeviceArray<StoredRun> runs = {};               // kStore
  DeviceArray<CompressorHistory> histories = {};  // kPool, kHistory
};

// Format of a step that stores: null codes are rows as they are.
constexpr CacheFormat PackedFormat(const RowStep& store) {
  switch (store.code) {
    case CacheCode::kE4m3:
      return CacheFormat::Fp8(store.num_columns, store.group);
    case CacheCode::kE2m1:
      return CacheFormat::Fp4(store.num_columns, store.group);
    case CacheCode::kNone:
      break;
  }
  return {};
}

// Rows that are read at `in` and left at `out`, which may be the same. For kPool, which comes first, `in` has
// the step's values, one row a token and not an entry. They are fp32 whatever in_is_bf16 says, which is that
// of `out`.
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

// A step as it is recorded.
struct RowsWork {
  RowsOperand rows;
  RowStep step;
  // Ranges that it reads or writes beside its rows, if another step may write it.
  std::vector<MemoryRange> touches;
  // The rows of another step that may run at the same time although both touch the same memory. Neither
  // writes bytes that the other reads or writes.
  const void* beside = nullptr;
};

// --- Launches --------------------------------------------------------------------------------------------------------

inline constexpr int kMaxTracks = 8;  // A launch's.
inline constexpr int kMaxTrackSteps = 5;

// Memory in which a block has its row.
enum class RowPlace : uint8_t { kShared, kRegisters, kPooledInRegisters, kNowhere };
// Rows, and what is done to each of them.
struct RowTrack {
  RowsOperand rows;
  int num_steps;
  RowPlace place;
  signed char first[kNumRowStepKinds];  // The first step of a kind, or -1.
  RowStep steps[kMaxTrackSteps];

#ifdef __CUDACC__
  __device__ const RowStep* First(RowStepKind kind) const {
    const int i = first[static_cast<int>(kind)];
    return i < 0 ? nullptr : steps + i;
  }
#endif
};

struct RowTracks {
  int num_tracks;
  int max_width;
  int max_frequencies;
  int first_blocks[kMaxTracks];  // Tracks'.
  Fault* fault;
  RowTrack tracks[kMaxTracks];  // Last (ClearPadding).
};
static_assert(offsetof(RowTracks, tracks) + sizeof(RowTracks::tracks) == sizeof(RowTracks));
static_assert(offsetof(RowTrack, steps) + sizeof(RowTrack::steps) == sizeof(RowTrack));
static_assert(sizeof(RowTracks) <= 4000);  // Arguments of a launch.

// Parameters of kernels/rows/head_rows.cu: rows of bf16 and the steps on them, in this order.
struct HeadRows {
  const uint16_t* in;
  uint16_t* out;  // May be in.
  int64_t in_stride;
  int64_t out_stride;
  const float* frequencies;  // kRotatedColumns / 2 of them.
  const int32_t* positions;  // One for every `group` rows.
  Fault* fault;
  int64_t num_rows;
  int width;
  int group;
  float eps;
  bool has_norm;  // head_rms_norm
  bool has_rope;  // The last kRotatedColumns columns'.
  bool inverse;
  bool has_hadamard;  // hadamard_fp4
};

inline constexpr int kRotatedColumns = 64;
inline constexpr int kHeadRowsOfWarp = 4;
// Parameters of kernels/rows/many_rows.cu: rows of bf16 and the steps on them, in this order.
struct ManyRows {
  const uint16_t* in;
  uint16_t* out;  // May be in.
  int64_t in_stride;
  int64_t out_stride;
  int64_t num_rows;
  int width;
  float eps;
  const float* weight;  // rms_norm
  // The others are of rows of 512.
  const int32_t* positions;  // rope of the last 64 columns, of one for every `group` rows; or null.
  const float* frequencies;
  int group;
  bool inverse;
  int num_simulated;            // simulate_fp8 of the first columns by groups of 64, or 0.
  int num_packed;               // Columns stored packed: num_simulated, which become e4m3, or 0: as they are.
  DeviceArray<StoredRun> runs;  // store_rows, or none.
  Fault* fault;
};

inline constexpr int kManyRowsRotated = 64;
inline constexpr int kManyRowsGroup = 64;
// Steps of RegisterRow (kernels/rows/row_registers.cuh), beside rows of kMaxRegisterRow.
inline constexpr int kRegisterHadamard =
    kNarrowRowThreads;  // Elements of a row of hadamard_fp4: one a thread.

}  // namespace dsv4::backend::cuda
