#include "backend/cuda/lowering/record/linear.h"

#include "backend/cuda/lowering/lowering.h"
#include "backend/cuda/runtime/cuda_context.h"

namespace dsv4::backend::cuda {

void RecordLinear(CudaContext& context, const LinearWork& work) {
  const int64_t last_group = work.num_groups - 1;
  const MemoryRange x = RangeOfRows(
      work.x, work.x_stride, last_group * work.x_group_stride + work.weight.cols, true, work.num_tokens);
  const MemoryRange y =
      RangeOfRows(work.y, work.y_stride, last_group * work.y_group_stride + work.rows_per_group,
                  work.y_is_bf16, work.num_tokens);
  context.lowering().Record({.kind = work.num_groups == 1 ? OpKind::kLinear : OpKind::kGroupedLinear,
                             .accesses = {.reads = {{x}}, .writes = {{y}}},
                             .work = work});
}

void RecordExperts(CudaContext& context, const JointExpertsWork& work) {
  const auto bytes = [&](const void* data, int64_t bytes_of_token) {
    return Access{{data, static_cast<size_t>(work.num_tokens * bytes_of_token)}};
  };
  context.lowering().Record(
      {.kind = OpKind::kExperts,
       .accesses = {.reads = {bytes(work.x, work.w1.cols * 2), bytes(work.indices, int64_t{work.top_k} * 4),
                              bytes(work.routing, int64_t{work.top_k} * 4)},
                    .writes = {bytes(work.y, work.w2.rows * 4)}},
       .work = work});
}

}  // namespace dsv4::backend::cuda
