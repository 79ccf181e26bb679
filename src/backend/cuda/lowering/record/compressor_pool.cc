// The op compressor_pool: entries of few tokens are steps on rows, others a launch in front of the step that
// fills the rings.
#include "backend/cuda/kernels/rows/compressor_pool.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/lowering/record/rows.h"
#include "backend/cuda/lowering/select/rows.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

// Whether no row that goes to a ring lies where the entries of this step read another: it may go there while
// they are pooled.
bool KeepsWhatIsRead(const ops::CompressorSequence& s, int64_t ratio, bool overlap) {
  if (ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio) == 0) return true;
  const int64_t entry = s.first_position / ratio;
  const int64_t first_read = (overlap && entry > 0 ? entry - 1 : entry) * ratio;
  const int64_t rows = s.first_position + s.num_tokens - first_read;
  return rows <= s.value_history.capacity && rows <= s.score_history.capacity;
}

void AppendHistories(std::span<const ops::CompressorSequence> sequences, int64_t ratio,
                     std::vector<CompressorHistory>* list) {
  int64_t num_entries = 0;
  for (const ops::CompressorSequence& s : sequences) {
    if (s.num_tokens == 0) continue;
    list->push_back({.token_begin = s.token_begin,
                     .num_tokens = s.num_tokens,
                     .first_entry = num_entries,
                     .values = static_cast<float*>(s.value_history.data),
                     .scores = static_cast<float*>(s.score_history.data),
                     .value_capacity = static_cast<int>(s.value_history.capacity),
                     .score_capacity = static_cast<int>(s.score_history.capacity),
                     .value_slot = static_cast<int>(s.first_position % s.value_history.capacity),
                     .score_slot = static_cast<int>(s.first_position % s.score_history.capacity),
                     .phase = static_cast<int>(s.first_position % ratio),
                     .has_previous = s.first_position >= ratio ? 1 : 0});
    num_entries += ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio);
  }
}

}  // namespace

Status CompressorPool(CudaContext& context, const ops::CompressorPoolArgs& args) {
  const int64_t num_tokens = args.values.shape[0];
  if (args.values.num_elements() == 0) return {};
  const int64_t num_entries = context.NumberFrom(
      args.sequences, [ratio = args.ratio](std::span<const ops::CompressorSequence> sequences) {
        int64_t count = 0;
        for (const ops::CompressorSequence& s : sequences)
          count += ops::NumCompletedEntries(s.first_position, s.num_tokens, ratio);
        return count;
      });
  const bool keeps_what_is_read =
      context.NumberFrom(args.sequences, [ratio = args.ratio, overlap = args.overlap](
                                             std::span<const ops::CompressorSequence> sequences) {
        return std::ranges::all_of(sequences, [&](const ops::CompressorSequence& s) {
          return s.num_tokens == 0 || KeepsWhatIsRead(s, ratio, overlap);
        });
      }) != 0;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const DeviceArray<CompressorHistory> sequences,
      context.StageFrom<CompressorHistory>(
          args.sequences,
          [ratio = args.ratio](std::span<const ops::CompressorSequence> all,
                               std::vector<CompressorHistory>* list) { AppendHistories(all, ratio, list); }));
  const CompressorPoolParams params = {.values = args.values.as<const float>(),
                                       .scores = args.scores.as<const float>(),
                                       .ape = args.ape.as<const float>(),
                                       .width = args.values.shape[1],
                                       .pooled_width = static_cast<int>(args.pooled.shape[1]),
                                       .ratio = static_cast<int>(args.ratio),
                                       .overlap = args.overlap};
  std::vector<MemoryRange> touches = {{args.scores.data, static_cast<size_t>(args.scores.num_bytes())},
                                      {args.values.data, static_cast<size_t>(args.values.num_bytes())}};
  // Rings of other sequences lie apart in the same way.
  for (const ops::CompressorSequence& s : args.sequences) {
    if (s.num_tokens == 0) continue;
    for (const RingRows& ring : {s.value_history, s.score_history})
      touches.push_back({ring.data, static_cast<size_t>(ring.capacity * params.width) * sizeof(float)});
  }
  const Plan<PoolPath> plan = FirstFit(PoolRules(),
                                       {.dtype = args.pooled.dtype,
                                        .tokens_of_entry = args.ratio * (args.overlap ? 2 : 1),
                                        .width = params.pooled_width},
                                       context.limits());
  const bool in_rows = plan.kernel == PoolPath::kRows;
  if (num_entries > 0) context.Chose(plan);
  if (num_entries > 0 && in_rows) {
    const RowsOperand entries = {.in = params.values,
                                 .in_stride = params.width,
                                 .out = args.pooled.data,
                                 .out_stride = params.pooled_width,
                                 .num_rows = num_entries,
                                 .width = params.pooled_width,
                                 .in_is_bf16 = true,
                                 .out_is_bf16 = true};
    DSV4_RETURN_IF_ERROR(AddRowStep(context, entries,
                                    {.kind = RowStepKind::kPool,
                                     .num_columns = params.ratio,
                                     .group = params.overlap ? 1 : 0,
                                     .weight = params.ape,
                                     .scores = params.scores,
                                     .histories = sequences},
                                    touches));
  } else if (num_entries > 0) {
    LaunchCompressorPool(context, sequences, params, num_entries, args.pooled);
  }
  // Only now, unless they are other rows of the rings than those that this step's entries read.
  const RowsOperand rows = {
      .in = params.values, .in_stride = params.width, .num_rows = num_tokens, .width = params.width};
  return AddRowStep(context, rows,
                    {.kind = RowStepKind::kHistory,
                     .num_columns = params.ratio,
                     .weight = params.ape,
                     .scores = params.scores,
                     .histories = sequences},
                    touches, num_entries > 0 && in_rows && keeps_what_is_read ? args.pooled.data : nullptr);
}

}  // namespace dsv4::backend::cuda
