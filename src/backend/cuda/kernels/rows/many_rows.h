// rms_norm of many tokens, with what follows where their window rows are stored: a warp goes through its rows and keeps them in registers.
// What it gives are the bits of the same steps in row_tracks.cu, where a block a row would spend most of its time on beginning and meeting.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/rows/rows.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

// Rows of bf16 and the steps on them, in this order.
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
  DeviceArray<StoredRun> runs;  // store_rows, or none.
  Fault* fault;
};

inline constexpr int kManyRowsRotated = 64;
inline constexpr int kManyRowsGroup = 64;
// Whether all of it is something that there is a kernel for.
bool HasManyRows(const ManyRows& rows);

// Puts it in place of launch `before`, or adds it (0): its number, 0 if that is too late.
uint64_t LaunchManyRows(CudaContext& context, const ManyRows& rows, uint64_t before);

}  // namespace dsv4::backend::cuda
