// Factors of MXFP4 experts in e4m3: found once a table, and said where they are not exact.
#include "backend/cuda/kernels/packing/e4m3_experts.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/runtime/cuda_context.h"
#include "base/log.h"
#include "base/text.h"

namespace dsv4::backend::cuda {

Result<const E4m3Experts*> FindE4m3Experts(CudaContext& context, const ExpertTable& table,
                                           int64_t num_experts) {
  if (table.e4m3 != nullptr) return table.e4m3.get();
  auto found = std::make_shared<E4m3Experts>();
  found->max_rows = std::max(table.w1.rows, table.w2.rows);
  const int64_t num_scales = num_experts * kE4m3Matrices * found->max_rows;
  // The count lies behind them.
  constexpr auto kCountBytes = static_cast<int64_t>(sizeof(int));
  const int64_t count_at = (num_scales + kCountBytes - 1) / kCountBytes * kCountBytes;
  DSV4_ASSIGN_OR_RETURN(found->buffer,
                        context.memory().Allocate(static_cast<size_t>(count_at) + sizeof(int)));
  auto* const scales = static_cast<uint8_t*>(found->buffer.data());
  found->largest_scales = scales;
  LaunchLargestScales(context, table.weights, num_experts, found->max_rows, scales,
                      reinterpret_cast<int*>(scales + count_at));
  int inexact = 0;
  DSV4_TRY(context.memory().CopyToHost(&inexact, scales + count_at, sizeof(inexact), nullptr));
  found->exact = inexact == 0;
  if (!found->exact) {
    context.CountInexactExperts();
    LogWarning("backend cuda: " + std::to_string(num_experts) + " routed experts of [" +
               std::to_string(table.w1.rows) + ", " + std::to_string(table.w1.cols) + "]: the scales of " +
               Counted(inexact, "row lies", "rows lie") +
               " further apart than e4m3 reaches; DSV4_CUDA_FP8_PRODUCTS leaves them in bf16");
  }
  table.e4m3 = std::move(found);
  return table.e4m3.get();
}

}  // namespace dsv4::backend::cuda
