// MXFP4 experts as weights of e4m3. A code of e2m1 times 2^s is an e4m3 for s from -8 to 6. So a row whose
// scales lie within 2^14 of each other is a row of e4m3 times one power of two. The device checks that.
#pragma once

#include <cstdint>

#include "backend/cuda/runtime/launch_context.h"
#include "backend/cuda/weights/expert_table.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

class CudaContext;

inline constexpr int kE4m3Matrices = 3;  // Matrices of an expert in its table.
// Exponents of a block's scale below its row's largest, and where the largest stands: e2m1's 6 becomes 384.
inline constexpr int kE4m3ScaleSpan = 14;
inline constexpr int kE4m3LargestScale = 6;

struct E4m3Experts {
  Buffer buffer;
  const uint8_t* largest_scales =
      nullptr;           // Device memory, [num_experts, w1, w3, w2][max_rows]: of a row, e8m0.
  int64_t max_rows = 0;  // Rows of w1 and w2.
  // No row's scales lie further apart, disregarding blocks that are all zero. No scale is NaN or so small
  // that its power of two is no normal number.
  bool exact = false;
};

// Factors of `num_experts` experts that are alike and MXFP4, found once a table, for which the device is
// waited for. Where they are not exact, it is said in a warning and counted (CudaCounters::inexact_experts).
Result<const E4m3Experts*> FindE4m3Experts(CudaContext& context, const ExpertTable& table,
                                           int64_t num_experts);

// The largest scale of each row, [num_experts, kE4m3Matrices][max_rows], and, added to `inexact`, how many rows are not exact.
void LaunchLargestScales(LaunchContext& context, const DeviceWeight* weights, int64_t num_experts,
                         int64_t max_rows, uint8_t* largest_scales, int* inexact);

}  // namespace dsv4::backend::cuda
