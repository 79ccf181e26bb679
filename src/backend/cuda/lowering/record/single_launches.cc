// The ops embed, sum_rows and sum_terms: one launch each, recorded at once.
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "backend/cuda/kernels/elementwise/embed.h"
#include "backend/cuda/kernels/moe/gemv_experts.h"
#include "backend/cuda/kernels/moe/sum_terms.h"
#include "backend/cuda/kernels/rows/sum_rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {

Status Embed(CudaContext& context, const ops::EmbedArgs& args) {
  if (args.streams.num_elements() > 0) LaunchEmbed(context, args);
  return {};
}

Status SumRows(CudaContext& context, const ops::SumRowsArgs& args) {
  if (args.out.num_elements() == 0) return {};
  const auto num_targets = static_cast<size_t>(args.out.shape[0]);
  std::vector<int32_t> begins(num_targets + 1, 0);
  for (const int32_t target : args.targets) ++begins[static_cast<size_t>(target) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<int32_t> order(args.targets.size());
  std::vector<int32_t> next(begins.begin(), begins.end() - 1);
  for (size_t i = 0; i < args.targets.size(); ++i)
    order[static_cast<size_t>(next[static_cast<size_t>(args.targets[i])]++)] = static_cast<int32_t>(i);
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<int32_t> device_begins,
                               context.Stage(std::span<const int32_t>(begins)));
  DSV4_ASSIGN_OR_RETURN_STATUS(const DeviceArray<int32_t> device_order,
                               context.Stage(std::span<const int32_t>(order)));
  LaunchSumRows(context, device_begins, device_order, args.rows, args.out);
  return {};
}

Status SumTerms(CudaContext& context, const ops::SumTermsArgs& args) {
  if (args.y.num_elements() == 0) return {};
  if (args.indices.shape[1] > kMaxTopK) {
    return Unimplemented("op sum_terms: indices " + args.indices.shape.ToString() +
                         ", this backend takes up to 64 choices");
  }
  LaunchSumTerms(context, args);
  return {};
}

}  // namespace dsv4::backend::cuda
