// The shapes that the kernels for few tokens (GEMV and split-K) take, and how they cut a matrix. Host code,
// in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

// --- Activations -----------------------------------------------------------------------------------------------------

// Elements of a row of activations in shared memory. Zeros behind the last column fill whole tiles, and 16
// bytes more put the rows of eight tokens in different banks.
constexpr int64_t StreamRow(int64_t cols) { return (cols + 127) / 128 * 128 + 8; }

constexpr size_t StreamRowsBytes(int64_t cols, int64_t num_rows) {
  return static_cast<size_t>(num_rows * StreamRow(cols)) * sizeof(uint16_t);
}

// Rings of weights of a block's 16 warps, of so many stages (WarpRing in gemv_warps.cuh). Three or four cover
// the bytes that an H200 reads before the first weight has come. One is enough for half that rate an SM, and
// leaves room where a block has 99 KB of shared memory.
constexpr size_t WarpRingsBytes(int stages) { return static_cast<size_t>(stages) * 16 * 2304; }

// Bytes of activations where a block may have so much shared memory: beside the smallest rings, sums, and
// what there is for each row tile.
constexpr size_t MaxStreamRowsBytes(size_t shared_bytes) {
  constexpr size_t kMost = size_t{96} * 1024;
  constexpr size_t kOthers = WarpRingsBytes(1) + size_t{16 + 8} * 1024;
  return shared_bytes >= kMost + kOthers ? kMost : shared_bytes - kOthers;
}

// Bytes of all forms in which matrices of one launch want the same activations. It is the room of two forms
// of eight tokens of 4096 columns, where two stages of rings fit beside them.
constexpr size_t MaxStreamFormsBytes(size_t shared_bytes) {
  constexpr size_t kMost = size_t{132} * 1024;
  constexpr size_t kOthers = WarpRingsBytes(2) + size_t{16 + 6} * 1024;
  return shared_bytes >= kMost + kOthers ? kMost : MaxStreamRowsBytes(shared_bytes);
}

// Whether rows of x can be loaded as they are: bf16, aligned, and not too many.
inline bool CanStreamRows(DType dtype, const void* x, int64_t cols, int64_t stride, int64_t num_rows,
                          size_t shared_bytes) {
  return dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(x) % 16 == 0 && cols % 8 == 0 &&
         (stride % 8 == 0 || num_rows == 1) &&
         StreamRowsBytes(cols, num_rows) <= MaxStreamRowsBytes(shared_bytes);
}

// How a weight is multiplied: FP8 by activations that are rounded to FP8 by 128 columns too, or by any. No weight
// is kMxFp8Halves: a kernel takes kMxFp8 for it where halves hold the activations (gemv_units.cuh).
enum class StreamKind : uint8_t {
  kBf16,
  kFp8,
  kFp8Plain,
  kMxFp8,
  kMxFp8Halves,
  kMxFp4,
  kMxFp4Stored,
  kNvFp4
};
// Whether block scales are applied to sums, not to weights.
constexpr bool HasScaledSums(StreamKind kind) {
  return kind == StreamKind::kFp8 || kind == StreamKind::kFp8Plain;
}

constexpr bool IsFp4(StreamKind kind) {
  return kind == StreamKind::kMxFp4 || kind == StreamKind::kMxFp4Stored || kind == StreamKind::kNvFp4;
}

inline StreamKind StreamKindOf(const DeviceWeight& weight) {
  switch (weight.kind) {
    case MatmulKind::kMmaFp8:
      return weight.x_group == kActivationBlock ? StreamKind::kFp8 : StreamKind::kFp8Plain;
    case MatmulKind::kMmaMxFp8:
      return StreamKind::kMxFp8;
    case MatmulKind::kMmaMxFp4:
      return StreamKind::kMxFp4;
    case MatmulKind::kMmaMxFp4Stored:
      return StreamKind::kMxFp4Stored;
    case MatmulKind::kMmaNvFp4:
      return StreamKind::kNvFp4;
    default:
      return StreamKind::kBf16;
  }
}

// Calls f<kKind>() for `kind`.
template <typename F>
void ForStreamKind(StreamKind kind, F&& f) {
  switch (kind) {
    case StreamKind::kBf16:
      return f.template operator()<StreamKind::kBf16>();
    case StreamKind::kFp8:
      return f.template operator()<StreamKind::kFp8>();
    case StreamKind::kFp8Plain:
      return f.template operator()<StreamKind::kFp8Plain>();
    case StreamKind::kMxFp8:
    case StreamKind::kMxFp8Halves:
      return f.template operator()<StreamKind::kMxFp8>();
    case StreamKind::kMxFp4:
      return f.template operator()<StreamKind::kMxFp4>();
    case StreamKind::kMxFp4Stored:
      return f.template operator()<StreamKind::kMxFp4Stored>();
    case StreamKind::kNvFp4:
      return f.template operator()<StreamKind::kNvFp4>();
  }
}

// How a weight wants its activations.
enum class StreamForm : uint8_t {
  kPlain,        // As they are.
  kTwos,         // In the order of FP8 (Unpack::kPairDistance),
  kFours,        // of FP4.
  kRoundedTwos,  // The same, rounded to FP8 by 128 columns,
  kRoundedFours,
  kFineTwos,  // or by 32.
  kFineFours,
  kHalves,  // Rounded to FP8, as halves beside their scales.
};

// The forms that a launch needs.
struct StreamForms {
  static constexpr int kMax = 8;
  int count = 0;
  StreamForm forms[kMax] = {};

  // The number of a form, which is added if it is not there.
  int Add(StreamForm form) {
    for (int i = 0; i < count; ++i) {
      if (forms[i] == form) return i;
    }
    forms[count] = form;
    return count++;
  }
};

inline StreamForm FormOf(const DeviceWeight& weight) {
  const auto of_group = [&](StreamForm plain, StreamForm rounded, StreamForm fine) {
    return weight.x_group == 0 ? plain : (RoundsFine(weight) ? fine : rounded);
  };
  switch (StreamKindOf(weight)) {
    case StreamKind::kFp8:
      return StreamForm::kHalves;
    case StreamKind::kFp8Plain:
    case StreamKind::kMxFp8:
      return of_group(StreamForm::kTwos, StreamForm::kRoundedTwos, StreamForm::kFineTwos);
    case StreamKind::kMxFp4:
    case StreamKind::kMxFp4Stored:
    case StreamKind::kNvFp4:
      return of_group(StreamForm::kFours, StreamForm::kRoundedFours, StreamForm::kFineFours);
    default:
      return StreamForm::kPlain;
  }
}

inline StreamForms FormsOf(const DeviceWeight& weight) {
  StreamForms forms;
  forms.Add(FormOf(weight));
  return forms;
}

// Groups of 128 columns that share a scale of activations.
constexpr int64_t StreamGroups(int64_t cols) { return (cols + 127) / 128; }
constexpr size_t StreamScalesBytes(int64_t cols, int64_t num_rows) {
  return static_cast<size_t>(StreamGroups(cols) * num_rows) * sizeof(float);
}

// --- Weights ---------------------------------------------------------------------------------------------------------

// A matrix but for where it lies.
struct StreamShape {
  int row_bytes;         // The elements', whole units.
  int units;             // 64 bytes'.
  int segment_units;     // In a segment of columns; the last may have fewer.
  int num_segments;      // At most kSegments.
  int scale_row_bytes;   // FP4: between rows of scales.
  int scale_cols;        // FP8: the blocks, of kMxFp8 words of four of them,
  int block_units_log2;  // Not of kMxFp8, whose units have two blocks.
  DType scale_dtype;
  StreamKind kind;
  bool global_scale_divides;
  uint8_t x_group;  // DeviceWeight's.
  uint8_t block_rows_log2;
  ScaleCodes scale_codes;  // kMxFp8.

  // Octaves between the scales of kMxFp8, by which activations in halves are made smaller. It is -1 where halves
  // cannot hold that, or where sums could be too small for fp32.
  constexpr int halves_span() const {
    constexpr int kMostOctaves = 14;
    constexpr int kLeastCode = 17;
    const int span = scale_codes.largest - scale_codes.least;
    return kind == StreamKind::kMxFp8 && span >= 0 && span <= kMostOctaves && scale_codes.least >= kLeastCode
               ? span
               : -1;
  }
};

// Whether the kernels for a few tokens know such a matrix: whole units and tiles (of rows_per_group rows),
// scales of FP8 that a tile shares.
inline constexpr int64_t kGemvTileRows = 16;
inline bool CanStreamWeight(const DeviceWeight& weight, int64_t rows_per_group) {
  constexpr int64_t kMaxRowBytes = int64_t{1} << 20;
  if (rows_per_group % kGemvTileRows != 0 || weight.cols * 2 > kMaxRowBytes) return false;
  switch (weight.kind) {
    case MatmulKind::kMmaBf16:
      return weight.cols % 32 == 0 && !weight.quantized_x;
    case MatmulKind::kMmaFp8:
      return weight.cols % 64 == 0 && weight.block_rows % kGemvTileRows == 0;
    case MatmulKind::kMmaMxFp8:
      return weight.cols % 128 == 0 && weight.block_rows % kGemvTileRows == 0 &&
             reinterpret_cast<uintptr_t>(weight.scale) % sizeof(uint32_t) == 0;
    case MatmulKind::kMmaMxFp4:
    case MatmulKind::kMmaMxFp4Stored:
    case MatmulKind::kMmaNvFp4:
      return weight.cols % 128 == 0;
    case MatmulKind::kGeneral:
      return false;
  }
  return false;
}

// Shape of a weight that CanStreamWeight takes.
inline StreamShape ShapeOf(const DeviceWeight& weight) {
  constexpr int kSegments = 8;
  constexpr int kUnitBytes = 64;
  const bool fp4 = IsFp4(weight.kind);
  const bool fp8 = weight.kind == MatmulKind::kMmaFp8 || weight.kind == MatmulKind::kMmaMxFp8;
  const auto row_bytes = static_cast<int>(fp4 ? weight.cols / 2 : weight.cols * (fp8 ? 1 : 2));
  const int units = row_bytes / kUnitBytes;
  const int segment_units = (units + kSegments - 1) / kSegments;
  return {.row_bytes = row_bytes,
          .units = units,
          .segment_units = segment_units,
          .num_segments = (units + segment_units - 1) / segment_units,
          .scale_row_bytes = fp4 ? static_cast<int>(weight.scale_cols) : 0,
          .scale_cols = static_cast<int>(weight.kind == MatmulKind::kMmaMxFp8 ? weight.cols / 128
                                         : fp8                                ? weight.scale_cols
                                                                              : 0),
          .block_units_log2 = weight.kind == MatmulKind::kMmaFp8 ? weight.block_cols_log2 - 6 : 0,
          .scale_dtype = weight.scale_dtype,
          .kind = StreamKindOf(weight),
          .global_scale_divides = weight.global_scale_divides,
          .x_group = static_cast<uint8_t>(weight.x_group),
          .block_rows_log2 = static_cast<uint8_t>(fp8 ? weight.block_rows_log2 : 0),
          .scale_codes = weight.scale_codes};
}

}  // namespace dsv4::backend::cuda
