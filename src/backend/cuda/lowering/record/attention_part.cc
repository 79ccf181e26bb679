// The ops attention_part and merge_attention: what a launch over ranks takes of them, else which kernel does.
#include "backend/cuda/kernels/attention/attention_part.h"

#include <algorithm>
#include <string>

#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {

Status AttentionPart(CudaContext& context, const ops::AttentionPartArgs& args) {
  if (args.part.num_elements() == 0) return {};
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  const int64_t top_k = args.selected.is_null() ? 0 : args.selected.shape[1];
  if (head_dim > kMaxAttentionHeadDim || top_k > kMaxAttentionList) {
    return Unimplemented("op attention_part: q: " + args.q.shape.ToString() + ", lists of " +
                         std::to_string(top_k) + ", this backend takes a head_dim of up to 1024 and 8192");
  }
  const int64_t most_chosen = args.selected.is_null() ? INT64_MAX : top_k;
  const int64_t max_keys =
      context.NumberFrom(args.sequences, [window = args.window_size, ratio = args.ratio, shard = args.shard,
                                          most_chosen](std::span<const ops::AttentionSequence> sequences) {
        int64_t most = 1;
        for (const ops::AttentionSequence& s : sequences) {
          most = std::max(most, std::min(window, s.first_position + s.num_tokens) +
                                    std::min(shard.NumRows(VisibleEntries(s, ratio)), most_chosen));
        }
        return KeysInSteps(most);
      });
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const SequenceTable table,
      StageSequences(context, args.sequences,
                     {.ratio = args.ratio, .shard = args.shard, .width = head_dim, .dtype = args.q.dtype}));
  AttentionPartWork work = {.table = table,
                            .params = {.q = args.q.data,
                                       .part = args.part.as<float>(),
                                       .rows = nullptr,
                                       .num_rows = nullptr,
                                       .top_k = top_k,
                                       .window_size = args.window_size,
                                       .ratio = args.ratio,
                                       .shard_index = args.shard.index,
                                       .shard_count = args.shard.count,
                                       .num_tokens = num_tokens,
                                       .softmax_scale = args.softmax_scale,
                                       .num_heads = static_cast<int>(args.q.shape[1]),
                                       .head_dim = static_cast<int>(head_dim)},
                            .dtype = args.q.dtype,
                            .max_keys = max_keys,
                            .list = {}};
  const RowsChosenHere chosen = FindRowsChosenHere(context, args);
  if (chosen.rows != nullptr) {
    work.params.rows = chosen.rows;
    work.params.num_rows = chosen.num_rows;
  } else if (!args.selected.is_null() && args.ratio > 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const rows,
                                 context.Scratch<int32_t>(std::max<int64_t>(num_tokens * top_k, 1)));
    DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const counts, context.Scratch<int32_t>(num_tokens));
    work.params.rows = rows;
    work.params.num_rows = counts;
    work.list = {.selected = args.selected.as<const int32_t>(), .rows = rows, .num_rows = counts};
  }
  // Queries that are still to be gathered are gathered by the kernel that reads them.
  if (FuseAttentionPart(context, work)) return {};
  if (work.list.selected != nullptr) LaunchPartRows(context, table, work.params, work.list);
  const Plan<AttentionPartPath> plan =
      ChooseAttentionPart({.dtype = args.q.dtype, .head_dim = head_dim}, context.limits());
  context.Chose(plan);
  return LaunchAttentionPart(context, work, plan.kernel);
}

Status MergeAttention(CudaContext& context, const ops::MergeAttentionArgs& args) {
  if (args.o.num_elements() == 0 || FuseMergeAttention(context, args)) return {};
  LaunchMergeAttention(context, args);
  return {};
}

}  // namespace dsv4::backend::cuda
