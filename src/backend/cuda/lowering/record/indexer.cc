// The ops indexer_select, indexer_candidates and merge_candidates: which kernels score and choose, and what
// attention behind them may know.
#include "backend/cuda/lowering/record/indexer.h"

#include <algorithm>
#include <string>

#include "backend/cuda/kernels/attention/sequences.h"
#include "backend/cuda/kernels/indexer/indexer_candidates.h"
#include "backend/cuda/kernels/indexer/indexer_cluster.h"
#include "backend/cuda/kernels/indexer/indexer_decode.h"
#include "backend/cuda/kernels/indexer/indexer_select.h"
#include "backend/cuda/kernels/indexer/indexer_wgmma.h"
#include "backend/cuda/kernels/indexer/top_k.h"
#include "backend/cuda/lowering/launch/lowering.h"
#include "backend/cuda/lowering/record/over_ranks.h"
#include "backend/cuda/lowering/select/indexer.h"
#include "backend/cuda/runtime/cuda_ops.h"

namespace dsv4::backend::cuda {
namespace {

IndexerShape ShapeOf(const SequenceTable& table, const ScoreParams& params, DType dtype, int64_t num_tokens) {
  return {.dtype = dtype,
          .num_tokens = num_tokens,
          .num_sequences = table.sequences.size,
          .num_heads = params.num_heads,
          .width = params.width,
          .max_visible = params.max_visible,
          .top_k = params.top_k,
          .keys = table.form,
          .rows_per_page = table.rows_per_page,
          .clusters = {}};
}

}  // namespace

void ScoreEntries(CudaContext& context, const SequenceTable& table, ScoreParams params, DType dtype,
                  unsigned num_tokens) {
  const Plan<IndexerPath> plan = ChooseScores(ShapeOf(table, params, dtype, num_tokens), context.limits());
  context.Chose(plan);
  switch (plan.kernel) {
    case IndexerPath::kWgmma:
    case IndexerPath::kMma:
      params.tiles_per_block =
          ScoreTilesOfBlock(plan.kernel, num_tokens, params.max_visible, context.limits());
      return plan.kernel == IndexerPath::kWgmma ? LaunchIndexerScoresWgmma(context, table, params, num_tokens)
                                                : LaunchIndexerScoresMma(context, table, params, num_tokens);
    case IndexerPath::kDecode:
      return LaunchIndexerScoresDecode(context, table, params, num_tokens,
                                       DecodeScoreBlocks(num_tokens, params.max_visible, context.limits()));
    case IndexerPath::kCluster:  // It chooses too: not for scores alone (ChooseScores).
    case IndexerPath::kAny:
      break;
  }
  LaunchIndexerScores(context, table, params, dtype, num_tokens);
}

Status ScoreAndChoose(CudaContext& context, const SequenceTable& table, const ScoredChoice& choice,
                      const ChosenOf& then) {
  ScoreParams score = choice.score;
  const int64_t at_once =
      choice.scored ? TokensScoredAtOnce(choice.num_tokens, score.max_visible) : choice.num_tokens;
  score.scores = nullptr;
  if (choice.scored) {
    DSV4_ASSIGN_OR_RETURN_STATUS(score.scores, context.Scratch<float>(at_once * score.max_visible));
  }
  const TopKParams entries = {
      .scores = score.scores,
      .selected = choice.selected,
      .stride = score.max_visible,
      .max_items = choice.within == nullptr
                       ? score.max_visible
                       : std::min(score.max_visible, choice.num_blocks * choice.block_size),
      .top_k = choice.top_k,
      .ratio = score.ratio,
      .rounded = choice.dtype == DType::kBF16,
      .block_size = choice.within == nullptr ? 1 : static_cast<int>(choice.block_size),
      .within = choice.within,
      .num_blocks = static_cast<int>(choice.num_blocks),
      .fault = context.fault()};
  TopKParams blocks = entries;
  if (choice.best != nullptr) {
    blocks.max_items = (score.max_visible + choice.block_size - 1) / choice.block_size;
    blocks.stride = blocks.max_items;
    blocks.selected = choice.best;
    blocks.top_k = choice.num_blocks;
    blocks.block_size = static_cast<int>(choice.block_size);
    if (choice.scored) {
      DSV4_ASSIGN_OR_RETURN_STATUS(float* const of_blocks, context.Scratch<float>(at_once * blocks.stride));
      blocks.scores = of_blocks;
    }
  }
  const auto choose = [&](TopKParams params, int64_t begin, unsigned count) {
    if (params.top_k == 0) return;
    params.first_token = begin;
    const Plan<TopKPath> plan =
        ChooseTopK({.has_scores = choice.scored, .max_visible = params.max_items}, context.limits());
    context.Chose(plan);
    LaunchTopK(context, table, params, plan.kernel, count);
  };
  for (int64_t begin = 0; begin < choice.num_tokens; begin += at_once) {
    const auto count = static_cast<unsigned>(std::min(at_once, choice.num_tokens - begin));
    score.first_token = begin;
    if (choice.scored) ScoreEntries(context, table, score, choice.dtype, count);
    choose(entries, begin, count);
    if (choice.best != nullptr) {
      if (choice.scored) {
        LaunchBlockScores(context, table,
                          {.scores = score.scores,
                           .blocks = const_cast<float*>(blocks.scores),
                           .first_token = begin,
                           .max_visible = score.max_visible,
                           .max_blocks = blocks.stride,
                           .most_unscored = choice.num_blocks,
                           .ratio = score.ratio,
                           .block_size = blocks.block_size},
                          count);
      }
      choose(blocks, begin, count);
    }
    if (then) then(score.scores, begin, count);
  }
  return {};
}

Status IndexerSelect(CudaContext& context, const ops::IndexerSelectArgs& args) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.selected.shape[1];
  if (num_tokens == 0 || (top_k == 0 && args.best.is_null())) return {};
  const TensorView& blocks = args.best.is_null() ? args.within : args.best;
  const int64_t num_blocks = blocks.is_null() ? 0 : blocks.shape[1];
  // Tokens that see no more are not scored.
  const int64_t unscored = args.best.is_null() ? top_k : std::min(top_k, num_blocks * args.block_size);
  // For as many as there may soon be: the launches of a sequence's steps stay the same.
  const int64_t max_visible = context.NumberFrom(
      args.sequences, [unscored, ratio = args.ratio](std::span<const ops::IndexerSequence> sequences) {
        return EntriesInSteps(MostVisible(sequences, ratio), unscored);
      });
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const SequenceTable table,
      StageSequences(context, args.sequences,
                     {.ratio = args.ratio, .shard = {}, .width = width, .dtype = args.q.dtype}));
  if (!CanScore(context.limits(), num_heads, width, max_visible)) {
    return Unimplemented("op indexer_select: q: " + args.q.shape.ToString() + " and " +
                         std::to_string(max_visible) +
                         " entries, this backend takes up to 50000 elements a token and 2097120 entries");
  }
  const ScoreParams score = {.q = args.q.data,
                             .weights = args.weights.data,
                             .scores = nullptr,
                             .first_token = 0,
                             .max_visible = max_visible,
                             .top_k = unscored,
                             .ratio = args.ratio,
                             .num_heads = static_cast<int>(num_heads),
                             .width = static_cast<int>(width)};
  IndexerShape shape = ShapeOf(table, score, args.q.dtype, num_tokens);
  const auto clusters = [&](int) { return IndexerClusters(context); };
  shape.clusters = clusters;
  shape.blocks = num_blocks > 0;
  const Plan<IndexerPath> plan = ChooseIndexer(shape, context.limits());
  if (plan.kernel == IndexerPath::kCluster) {
    context.Chose(plan);
    LaunchIndexerCluster(context, table, score, args.selected.as<int32_t>(), num_tokens);
  } else {
    DSV4_RETURN_IF_ERROR(ScoreAndChoose(context, table,
                                        {.score = score,
                                         .dtype = args.q.dtype,
                                         .num_tokens = num_tokens,
                                         .scored = max_visible > unscored,
                                         .selected = args.selected.as<int32_t>(),
                                         .top_k = top_k,
                                         .within = args.within.as<const int32_t>(),
                                         .best = args.best.as<int32_t>(),
                                         .num_blocks = num_blocks,
                                         .block_size = std::max<int64_t>(args.block_size, 1)},
                                        {}));
  }
  return {};
}

Status IndexerCandidates(CudaContext& context, const ops::IndexerCandidatesArgs& args) {
  const int64_t num_tokens = args.q.shape[0];
  const int64_t num_heads = args.q.shape[1];
  const int64_t width = args.q.shape[2];
  const int64_t top_k = args.candidates.shape[1];
  if (num_tokens == 0 || top_k == 0) return {};
  const EntryShard& shard = args.shard;
  // Row j here is entry j * count + index. So of floor((p + 1) / ratio) entries floor((p + shift + 1) /
  // (ratio * count)) rows are here. The kernels for all entries count these if they are given later
  // positions.
  const int64_t shift = args.ratio * (shard.count - 1 - shard.index);
  // As in IndexerSelect: for as many as there may soon be. Of all ranks, and of those here.
  const int64_t max_entries = context.NumberFrom(
      args.sequences,
      [top_k, ratio = args.ratio, num_ranks = shard.count](std::span<const ops::IndexerSequence> sequences) {
        return SharedEntriesInSteps(MostVisible(sequences, ratio), top_k, num_ranks);
      });
  const bool scored = max_entries > top_k;
  const int64_t rows_here = context.NumberFrom(
      args.sequences, [shard, ratio = args.ratio](std::span<const ops::IndexerSequence> sequences) {
        return EntriesInSteps(shard.NumRows(MostVisible(sequences, ratio)), -1);
      });
  const int64_t max_visible = scored ? rows_here : top_k;
  if (!CanScore(context.limits(), num_heads, width, max_visible) ||
      !HoldsCandidates(context.limits(), top_k)) {
    return Unimplemented(
        "op indexer_candidates: q: " + args.q.shape.ToString() + ", " + std::to_string(max_visible) +
        " entries and the best " + std::to_string(top_k) +
        ", this backend takes up to 50000 elements a token, 2097120 entries and 25600 of them");
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(
      const SequenceTable table,
      StageSequences(
          context, args.sequences,
          {.ratio = args.ratio, .shard = shard, .shift = shift, .width = width, .dtype = args.q.dtype}));
  const ScoreParams score = {.q = args.q.data,
                             .weights = args.weights.data,
                             .scores = nullptr,
                             .first_token = 0,
                             .max_visible = max_visible,
                             .top_k = 0,
                             .ratio = args.ratio * shard.count,
                             .num_heads = static_cast<int>(num_heads),
                             .width = static_cast<int>(width)};
  DSV4_ASSIGN_OR_RETURN_STATUS(const bool in_cluster,
                               RecordCandidates(context, args, table, score, max_entries));
  if (in_cluster) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(int32_t* const rows, context.Scratch<int32_t>(num_tokens * top_k));
  return ScoreAndChoose(context, table,
                        {.score = score,
                         .dtype = args.q.dtype,
                         .num_tokens = num_tokens,
                         .scored = scored,
                         .selected = rows,
                         .top_k = top_k},
                        [&](const float* scores, int64_t first_token, unsigned count) {
                          LaunchIndexerCandidates(context, table,
                                                  {.rows = rows,
                                                   .scores = scores,
                                                   .candidates = args.candidates.as<uint64_t>(),
                                                   .first_token = first_token,
                                                   .max_visible = max_visible,
                                                   .top_k = top_k,
                                                   .shift = shift,
                                                   .ratio = args.ratio,
                                                   .shard_index = shard.index,
                                                   .shard_count = shard.count},
                                                  count);
                        });
}

Status MergeCandidates(CudaContext& context, const ops::MergeCandidatesArgs& args) {
  const int64_t top_k = args.selected.shape[1];
  if (args.candidates.shape[0] == 0 || top_k == 0 || FuseMergeCandidates(context, args)) return {};
  if (!HoldsMerge(context.limits(), args.candidates.shape[1], top_k)) {
    return Unimplemented("op merge_candidates: candidates: " + args.candidates.shape.ToString() +
                         ", this backend takes as many as fit into 200 KB with those chosen");
  }
  LaunchMergeCandidates(context, args);
  return {};
}

}  // namespace dsv4::backend::cuda
