#include "model/graph/compressor.h"

#include <span>
#include <string>
#include <vector>

namespace dsv4::model {
namespace {

using kv::PageKind;
using kv::RingKind;

// `which` of a recipe: 1 for the indexer's.
void PooledSequences(const PassPlan& plan, const PassArrays::Of& of,
                     std::vector<ops::CompressorSequence>* out) {
  const bool indexer = of.which != 0;
  for (const PassSequence& sequence : plan.sequences) {
    const kv::SequenceState& state = *sequence.state;
    out->push_back({.token_begin = sequence.token_begin,
                    .num_tokens = sequence.num_tokens,
                    .first_position = sequence.first_position,
                    .value_history = state.Ring(
                        of.layer, indexer ? RingKind::kIndexerValues : RingKind::kCompressorValues),
                    .score_history = state.Ring(
                        of.layer, indexer ? RingKind::kIndexerScores : RingKind::kCompressorScores)});
  }
}

void NewEntryRuns(const PassPlan& plan, const PassArrays::Of& of, std::vector<RowRun>* out) {
  int64_t begin = 0;
  for (const PassSequence& sequence : plan.sequences) {
    sequence.state->EntryRuns(of.layer, of.which != 0 ? PageKind::kIndexerKeys : PageKind::kEntries, begin,
                              out);
    begin += sequence.state->NumNewEntries(of.layer);
  }
}

// Pools this pass's raw rows, and those in the rings before them, to the completed entries of all sequences.
Result<TensorView> Pool(const LayerStep& step, const std::string& name, bool indexer,
                        const CompressorWeights& weights, const TensorView& values,
                        const TensorView& scores) {
  const std::span<const ops::CompressorSequence> sequences = step.Make(PooledSequences, indexer ? 1 : 0);
  const int64_t num_entries = step.plan().EntriesOf(step.layer_plan().ratio).num_new;
  const LayerPlan& layer = step.layer_plan();
  DSV4_ASSIGN_OR_RETURN(const TensorView pooled,
                        step.NewTensor(step.dtype(), {num_entries, weights.wkv.rows / layer.overlap}));
  DSV4_TRY(step.Run(name, step.ops().compressor_pool,
                    {.values = values,
                     .scores = scores,
                     .ape = weights.ape,
                     .pooled = pooled,
                     .ratio = layer.ratio,
                     .overlap = layer.overlap == 2,
                     .sequences = sequences}));
  step.Observe(name, pooled);
  return pooled;
}

std::string NameOf(CompressorPart part) {
  return part == CompressorPart::kIndexer ? "attn.indexer.compressor" : "attn.compressor";
}

}  // namespace

Result<CompressorRows> ProjectRows(const LayerStep& step, CompressorPart part,
                                   const CompressorWeights& weights, const TensorView& u) {
  CompressorRows rows;
  DSV4_ASSIGN_OR_RETURN(rows.values, step.Linear(NameOf(part) + ".values", u, weights.wkv, DType::kF32));
  DSV4_ASSIGN_OR_RETURN(rows.scores, step.Linear(NameOf(part) + ".scores", u, weights.wgate, DType::kF32));
  return rows;
}

Status Compress(const LayerStep& step, CompressorPart part, const CompressorWeights& weights,
                const CompressorRows& rows) {
  const bool indexer = part == CompressorPart::kIndexer;
  const std::string compressor = NameOf(part);
  const std::string compressed = indexer ? "attn.indexer.compressed" : "attn.compressed";

  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView entries, Pool(step, compressor + ".pooled", indexer, weights,
                                                              rows.values, rows.scores));

  DSV4_RETURN_IF_ERROR(step.RmsNorm(compressor + ".norm", entries, weights.norm));
  const int64_t num_entries = entries.shape[0];
  const int64_t width = entries.shape[1];
  // An entry is rotated as its first token.
  const TensorView& positions = step.plan().EntriesOf(step.layer_plan().ratio).positions;
  DSV4_RETURN_IF_ERROR(
      step.Rope(compressed, entries.Reshaped({num_entries, 1, width}), positions, /*inverse=*/false));
  if (step.context().simulate()) {
    if (indexer) {
      DSV4_RETURN_IF_ERROR(step.Run(compressed, step.ops().hadamard_fp4, {.x = entries}));
    } else {
      DSV4_RETURN_IF_ERROR(step.Run(compressed, step.ops().simulate_fp8,
                                    {.x = entries, .num_columns = step.config().nope_head_dim()}));
    }
  }
  step.Observe(compressed, entries);

  const PageKind kind = indexer ? PageKind::kIndexerKeys : PageKind::kEntries;
  const CacheFormat format = step.plan().sequences.empty()
                                 ? CacheFormat(entries.dtype)
                                 : step.plan().sequences[0].state->layout().PageFormat(kind);
  return step.StoreCacheRows(compressed, entries, step.Make(NewEntryRuns, indexer ? 1 : 0), format);
}

}  // namespace dsv4::model
