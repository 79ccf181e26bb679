// Products of many rows with many rows that lie anywhere: the matrix kernels of attention and the indexer,
// where neither side is a stored weight.
//
// Both operands are packed into panels of `lanes` vectors each. A panel is a sequence of steps. A step holds
// `step` consecutive elements of every lane: lane after lane, `step` elements each, four bytes a lane. `step`
// is 1 with fp32 elements, 2 with bf16 ones (the operand of a bf16 dot product).
//
// An output is summed over its elements in order, from zero, in runs of kPanelRun elements. The fp32 sums of
// the runs are then added in order. An output depends on its two vectors alone. Elements that are zero in one
// of them (and finite in the other) change nothing, if they are whole pairs of a bf16 step.
#pragma once

#include <cstdint>

namespace dsv4::backend::cpu {

inline constexpr int64_t kPanelRun = 256;
inline constexpr int64_t kRowsAsTheyLie = 8;

struct PanelKernels {
  int64_t lanes = 0;
  int64_t step = 1;

  // Lane r is row r: `depth` elements, bf16 (`bf16`) or fp32, at any address. Rows that are null and those
  // past num_rows are zero. With step 2 rows must be bf16. Writes PanelBytes(depth).
  void (*pack_lanes)(const uint8_t* const* rows, int64_t num_rows, bool bf16, int64_t depth,
                     uint8_t* panel) = nullptr;
  // The other way around: element k of every lane comes from row k. Columns [first, first + num_columns) make
  // consecutive panels, `panel_bytes` apart, the last one padded with zeros; null rows are zero. Writes
  // PanelBytes(num_rows) of each.
  void (*pack_columns)(const uint8_t* const* rows, int64_t num_rows, bool bf16, int64_t first,
                       int64_t num_columns, uint8_t* panels, int64_t panel_bytes) = nullptr;
  // Stores out[r * out_stride + p * lanes + c] = sum of lane r of `a` times lane c of panel p of `b`. It does
  // so for r < num_rows and all lanes of num_panels panels that are `b_bytes` apart. With `add` the sums are
  // added to `out`.
  void (*multiply)(const uint8_t* a, const uint8_t* b, int64_t b_bytes, int64_t num_panels, int64_t depth,
                   int64_t num_rows, bool add, float* out, int64_t out_stride) = nullptr;

  // The same sums with the rows as they lie, for a row that meets too few others to be packed for them. Rows
  // are bf16. Null where the tier has none.
  //
  // out[c * out_stride + r] = row r times lane c of panel c / lanes of `b`, for num_rows <= kRowsAsTheyLie
  // and num_lanes lanes. depth is even.
  void (*multiply_rows)(const uint8_t* const* rows, int64_t num_rows, const uint8_t* b, int64_t b_bytes,
                        int64_t num_lanes, int64_t depth, float* out, int64_t out_stride) = nullptr;
  // Stores out[r * out_stride + c] = sum over k of element k of weight row r times element first + c of row
  // k. There are num_columns columns, a multiple of 32. Weight row r lies at weights + r * weight_bytes and
  // has num_rows elements, an even number. With `add` the sums are added to `out`.
  void (*multiply_columns)(const uint8_t* weights, int64_t weight_bytes, int64_t num_weights,
                           const uint8_t* const* rows, int64_t num_rows, int64_t first, int64_t num_columns,
                           bool add, float* out, int64_t out_stride) = nullptr;

  int64_t StepBytes() const { return 4 * lanes; }
  int64_t PanelBytes(int64_t depth) const { return (depth + step - 1) / step * StepBytes(); }
};

namespace scalar {
[[gnu::weak]] extern const PanelKernels kPanels;
}
namespace avx2 {
[[gnu::weak]] extern const PanelKernels kPanels;
}
namespace avx512 {
[[gnu::weak]] extern const PanelKernels kPanels;
}
namespace avx512bf16 {
[[gnu::weak]] extern const PanelKernels kPanels;
}

}  // namespace dsv4::backend::cpu
