// Compressor of a layer: value and score rows, pooled entries, norm, rotation, rounding and stores.
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

// Rounds rows to the grid of their format.
Status RoundEntries(const LayerStep& step, const std::string& name, bool indexer, const TensorView& rows) {
  const ModelConfig& config = step.config();
  const CacheFormat& grid = indexer ? config.key_rows : config.entry_rows;
  if (grid.code == CacheCode::kE4m3) {
    return step.Run(name, step.ops().simulate_fp8,
                    {.x = rows, .num_columns = grid.num_coded, .group = grid.group});
  }
  return step.Run(
      name, step.ops().hadamard_fp4,
      {.x = rows, .rotate = indexer && config.hadamard_keys, .group = grid.group, .scale = grid.scale});
}

// Rows of the completed entries, or their keys: rotated, rounded and stored.
Status StoreEntries(const LayerStep& step, const std::string& name, bool indexer, const TensorView& rows) {
  const int64_t num_rows = rows.shape[0];
  // An entry is rotated as its first token.
  const TensorView& positions = step.plan().EntriesOf(step.layer_plan().ratio).positions;
  DSV4_RETURN_IF_ERROR(
      step.Rope(name, rows.Reshaped({num_rows, 1, rows.shape[1]}), positions, /*inverse=*/false));
  if (step.context().simulate()) DSV4_RETURN_IF_ERROR(RoundEntries(step, name, indexer, rows));
  step.Observe(name, rows);
  const PageKind kind = indexer ? PageKind::kIndexerKeys : PageKind::kEntries;
  const CacheFormat format = step.plan().sequences.empty()
                                 ? CacheFormat(rows.dtype)
                                 : step.plan().sequences[0].state->layout().PageFormat(kind);
  return step.StoreCacheRows(name, rows, step.Make(NewEntryRuns, indexer ? 1 : 0), format);
}

std::string NameOf(CompressorPart part) {
  return part == CompressorPart::kIndexer ? "attn.indexer.compressor" : "attn.compressor";
}

}  // namespace

Result<CompressorRows> ProjectRows(const LayerStep& step, CompressorPart part,
                                   const CompressorWeights& weights, const TensorView& u) {
  CompressorRows rows;
  if (step.layer_plan().pooling == Pooling::kSingle) {
    DSV4_ASSIGN_OR_RETURN(rows.values, step.Linear(NameOf(part) + ".values", u, weights.wkv, step.dtype()));
    return rows;
  }
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
  return StoreEntries(step, compressed, indexer, entries);
}

Status CompressLatents(const LayerStep& step, const LayerWeights& weights, const CompressorRows& rows) {
  TensorView latents = rows.values;
  if (step.layer_plan().pooling != Pooling::kSingle) {
    DSV4_ASSIGN_OR_RETURN_STATUS(
        latents, Pool(step, "attn.compressor.pooled", false, *weights.compressor, rows.values, rows.scores));
  }
  DSV4_RETURN_IF_ERROR(step.RmsNorm("attn.compressor.norm", latents, weights.compressor->norm));
  const Arena::Scope scope(step.context().arena);
  const KeyWeights& key = *weights.key_latents;
  DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView keys,
                               step.Linear("attn.indexer.k", latents, key.wk, step.dtype()));
  DSV4_RETURN_IF_ERROR(step.RmsNorm("attn.indexer.k_norm", keys, key.norm));
  DSV4_RETURN_IF_ERROR(StoreEntries(step, "attn.indexer.compressed", true, keys));
  return StoreEntries(step, "attn.compressed", false, latents);
}

}  // namespace dsv4::model
