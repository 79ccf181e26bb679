// The op attention: the tables of sequences for its kernels, lists of chosen entries in order, and rows
// widened where that pays. Then the choice of the kernel, and the record of the one for a few tokens.
#include "backend/cuda/kernels/attention/attention.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/kernels/attention/attention_mma.h"
#include "backend/cuda/kernels/attention/hopper_cluster_columns.h"
#include "backend/cuda/kernels/attention/hopper_in_registers.h"
#include "backend/cuda/kernels/attention/hopper_two_pass.h"
#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/kernels/attention/widen_rows.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/access_of.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

// Sets the lists of `params`, where there are some.
Status FindLists(CudaContext& context, const SequenceTable& table, const ops::AttentionArgs& args,
                 AttentionParams& params) {
  if (args.selected.is_null()) return {};
  params.top_k = args.selected.shape[1];
  if (args.ordered) {
    params.entries = args.selected.as<const int32_t>();
    return {};
  }
  const int64_t num_tokens = args.q.shape[0];
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const entries, context.Scratch<int32_t>(num_tokens * params.top_k));
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const counts, context.Scratch<int32_t>(num_tokens));
  LaunchSortEntries(context, table,
                    {.selected = args.selected.as<const int32_t>(),
                     .entries = entries,
                     .num_entries = counts,
                     .num_tokens = num_tokens,
                     .top_k = params.top_k,
                     .ratio = args.ratio});
  params.entries = entries;
  params.num_entries = counts;
  return {};
}

// Rows that the queries of a sequence may read.
RowsRead RowsReadBy(const ops::AttentionSequence& s, int64_t window_size, int64_t ratio) {
  const int64_t window_begin = std::max<int64_t>(s.first_position + 1 - window_size, 0);
  return {.window_begin = window_begin,
          .num_window = s.first_position + s.num_tokens - window_begin,
          .num_entries = VisibleEntries(s, ratio)};
}

// Makes `table` that of wide rows where it pays.
Status WidenFirst(CudaContext& context, const ops::AttentionArgs& args, int64_t most_chosen,
                  SequenceTable& table) {
  const bool widens =
      context.NumberFrom(
          args.sequences, [window = args.window_size, ratio = args.ratio, most_chosen, form = table.form,
                           num_tokens = args.q.shape[0]](std::span<const ops::AttentionSequence> sequences) {
            RowReads reads = {.rows = form, .num_tokens = num_tokens, .num_rows = 0, .num_reads = 0};
            for (const ops::AttentionSequence& s : sequences) {
              if (s.num_tokens == 0) continue;
              const RowsRead rows = RowsReadBy(s, window, ratio);
              reads.num_rows += rows.num_window + rows.num_entries;
              reads.num_reads += s.num_tokens * (std::min(window, s.first_position + s.num_tokens) +
                                                 std::min(rows.num_entries, most_chosen));
            }
            return int64_t{WidensFirst(reads) ? 1 : 0};
          }) != 0;
  if (!widens) return {};
  std::vector<SequenceRows> sequences;
  std::vector<RowsRead> rows;
  for (const ops::AttentionSequence& s : args.sequences) {
    if (s.num_tokens == 0) continue;
    sequences.push_back(
        {.token_begin = s.token_begin, .num_tokens = s.num_tokens, .first_position = s.first_position});
    rows.push_back(RowsReadBy(s, args.window_size, args.ratio));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(table, WidenRows(context, table, sequences, rows));
  return {};
}

Status CheckSizes(const ops::AttentionArgs& args) {
  if (args.q.shape[2] > kMaxAttentionHeadDim) {
    return Unimplemented("op attention: q: " + args.q.shape.ToString() +
                         ", this backend takes a head_dim of up to 1024");
  }
  if (!args.selected.is_null() && args.selected.shape[1] > kMaxAttentionList) {
    return Unimplemented("op attention: selected: " + args.selected.shape.ToString() +
                         ", this backend takes lists of up to 8192");
  }
  return {};
}

}  // namespace

Status Attention(CudaContext& context, const ops::AttentionArgs& args) {
  if (args.q.num_elements() == 0) return {};
  DSV4_RETURN_IF_ERROR(CheckSizes(args));
  const int64_t num_tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  const int64_t most_chosen = args.selected.is_null() ? INT64_MAX : args.selected.shape[1];
  const int64_t max_keys =
      context.NumberFrom(args.sequences, [window = args.window_size, ratio = args.ratio,
                                          most_chosen](std::span<const ops::AttentionSequence> sequences) {
        int64_t most = 0;
        for (const ops::AttentionSequence& s : sequences) {
          most = std::max(most, std::min(window, s.first_position + s.num_tokens) +
                                    std::min(VisibleEntries(s, ratio), most_chosen));
        }
        return KeysInSteps(most);
      });
  DSV4_ASSIGN_OR_RETURN_STATUS(
      SequenceTable table,
      StageSequences(context, args.sequences,
                     {.ratio = args.ratio, .shard = {}, .width = head_dim, .dtype = args.q.dtype}));
  DSV4_RETURN_IF_ERROR(WidenFirst(context, args, most_chosen, table));
  AttentionParams params = {.q = args.q.data,
                            .sink = args.sink.as<const float>(),
                            .o = args.o.data,
                            .entries = nullptr,
                            .num_entries = nullptr,
                            .top_k = 0,
                            .window_size = args.window_size,
                            .ratio = args.ratio,
                            .softmax_scale = args.softmax_scale,
                            .num_tokens = static_cast<int>(num_tokens),
                            .num_heads = static_cast<int>(args.q.shape[1]),
                            .head_dim = static_cast<int>(head_dim)};
  DSV4_RETURN_IF_ERROR(FindLists(context, table, args, params));
  const auto column_clusters = [&](int blocks) { return ColumnClusters(context, blocks); };
  const AttentionShape shape = {.dtype = args.q.dtype,
                                .num_tokens = num_tokens,
                                .num_heads = params.num_heads,
                                .head_dim = head_dim,
                                .max_keys = max_keys,
                                .rows = table.form,
                                .q = args.q.data,
                                .o = args.o.data,
                                .column_clusters = column_clusters};
  const Plan<AttentionPath> plan = ChooseAttention(shape, context.limits());
  context.Chose(plan);
  switch (plan.kernel) {
    case AttentionPath::kHopperClusterColumns:
      return HopperClusterColumns(context, table, params, BlocksOfColumns(shape));
    case AttentionPath::kHopperInRegisters:
      return HopperInRegisters(context, table, params);
    case AttentionPath::kHopperTwoPass:
      return HopperTwoPass(context, table, params);
    case AttentionPath::kDecodeCluster:
      context.lowering().Record({.kind = OpKind::kAttention,
                                 .accesses = {.reads = {}, .writes = {AccessOf(args.o, Division::kHeads)}},
                                 .work = AttentionWork{table, params, max_keys}});
      return {};
    case AttentionPath::kMma:
      return AttentionMma(context, table, params, max_keys);
    case AttentionPath::kAny:
      break;
  }
  LaunchAttentionOfAny(context, table, params, args.q.dtype);
  return {};
}

}  // namespace dsv4::backend::cuda
