// Rows of many heads, normed, rotated, or rotated and rounded: a warp goes through some rows and keeps them in registers. What it
// gives are the bits of the same steps in row_tracks.cu, whose blocks of a row each would be too many.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "backend/cuda/runtime/device_queue.h"

namespace dsv4::backend::cuda {

// Rows of bf16 and the steps on them, in this order.
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
  bool has_rope;  // Of the last kRotatedColumns columns.
  bool inverse;
  bool has_hadamard;  // hadamard_fp4
};

inline constexpr int kRotatedColumns = 64;
inline constexpr int kHeadRowsOfWarp = 4;
// Rows of this width, in memory of this form.
bool FitsHeadRows(int64_t width, const void* in, int64_t in_stride, const void* out, int64_t out_stride);

// Puts it in place of launch `before`, or adds it (0): its number, 0 if that is too late.
uint64_t LaunchHeadRows(CudaContext& context, const HeadRows& rows, uint64_t before);

}  // namespace dsv4::backend::cuda
