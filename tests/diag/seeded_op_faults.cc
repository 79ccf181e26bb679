// Ops that are wrong in one way. Those of tests/golden/faults that look at one row at a time serve here too.
// The others are made again so that they survive any cut of the tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "backend/cpu/cpu_backend.h"
#include "tests/diag/seeded_faults.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {
namespace {

using ops::OpContext;

const ops::OpTable& Cpu() {
  static const ops::Backend backend = *backend::MakeCpuBackend({.num_threads = 1, .isa = {}});
  return backend.table;
}

TensorView F32(std::vector<float>& values, const Shape& shape) {
  return TensorView::Contiguous(values.data(), DType::kF32, shape);
}

// --- Attention ---

Status NoSink(OpContext& context, const ops::AttentionArgs& args) {
  std::vector<float> sinks(static_cast<size_t>(args.sink.num_elements()),
                           -std::numeric_limits<float>::infinity());
  ops::AttentionArgs wrong = args;
  wrong.sink = F32(sinks, args.sink.shape);
  return Cpu().attention(context, wrong);
}

Status SinkScaled(OpContext& context, const ops::AttentionArgs& args) {
  std::vector<float> sinks;
  for (const double sink : Values(args.sink)) sinks.push_back(static_cast<float>(sink) * args.softmax_scale);
  ops::AttentionArgs wrong = args;
  wrong.sink = F32(sinks, args.sink.shape);
  return Cpu().attention(context, wrong);
}

Status WindowShort(OpContext& context, const ops::AttentionArgs& args) {
  ops::AttentionArgs wrong = args;
  wrong.window_size -= 1;
  return Cpu().attention(context, wrong);
}

// The newest of the selected entries is not looked at.
Status NewestEntryMissed(OpContext& context, const ops::AttentionArgs& args) {
  if (args.selected.is_null()) return Cpu().attention(context, args);
  const int64_t top_k = args.selected.shape[1];
  const auto* right = args.selected.as<const int32_t>();
  std::vector<int32_t> selected(right, right + args.selected.num_elements());
  for (int64_t t = 0; t < args.selected.shape[0]; ++t) {
    int32_t* row = selected.data() + t * top_k;
    *std::max_element(row, row + top_k) = -1;
  }
  ops::AttentionArgs wrong = args;
  wrong.selected = TensorView::Contiguous(selected.data(), DType::kI32, args.selected.shape);
  return Cpu().attention(context, wrong);
}

// If every entry is seen, only those below `count(position)` are looked at.
template <typename Count>
Status EntriesBelow(OpContext& context, const ops::AttentionArgs& args, const Count& count) {
  if (args.ratio == 0 || !args.selected.is_null()) return Cpu().attention(context, args);
  const int64_t top_k = std::max<int64_t>(1, args.sequences[0].entries.num_rows);
  std::vector<int32_t> selected(static_cast<size_t>(args.q.shape[0] * top_k), -1);
  for (int64_t t = 0; t < args.q.shape[0]; ++t) {
    for (int64_t j = 0; j < count(args.sequences[0].first_position + t); ++j)
      selected[static_cast<size_t>(t * top_k + j)] = static_cast<int32_t>(j);
  }
  ops::AttentionArgs wrong = args;
  wrong.selected = TensorView::Contiguous(selected.data(), DType::kI32, {args.q.shape[0], top_k});
  return Cpu().attention(context, wrong);
}

// The newest is taken to be incomplete.
Status NewestBlockMissed(OpContext& context, const ops::AttentionArgs& args) {
  return EntriesBelow(context, args, [&](int64_t position) { return (position + 1) / args.ratio - 1; });
}

// The first row's valid length serves all rows.
Status OneLengthForAllRows(OpContext& context, const ops::AttentionArgs& args) {
  return EntriesBelow(context, args,
                      [&](int64_t) { return (args.sequences[0].first_position + 1) / args.ratio; });
}

Status ScaleSquared(OpContext& context, const ops::AttentionArgs& args) {
  ops::AttentionArgs wrong = args;
  if (args.ratio > 0) wrong.softmax_scale *= 1.6F;
  return Cpu().attention(context, wrong);
}

// --- Rotation. A layer rotates q, kv, then the indexer's entries and queries, then the entries, and o back. ---

int g_single_rows = 0;  // Rotations of single rows since the layer began.

enum class Rotated : uint8_t { kWindow, kIndexerEntries, kEntries, kOther };

Rotated WhatIsRotated(const ops::RopeArgs& args) {
  if (args.inverse) g_single_rows = 0;
  if (args.inverse || args.x.shape[1] > 1) return Rotated::kOther;
  const int number = g_single_rows++;
  if (number == 0) return Rotated::kWindow;
  // Only CSA layers have a third; HCA entries come second and lie 128 positions apart.
  return number == 1 ? Rotated::kIndexerEntries : Rotated::kEntries;
}

Status EntryAtLast(OpContext& context, const ops::RopeArgs& args) {
  if (WhatIsRotated(args) != Rotated::kEntries) return Cpu().rope(context, args);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < args.x.shape[0]; ++i)
    positions.push_back(args.positions.as<const int32_t>()[i] + 3);
  ops::RopeArgs wrong = args;
  wrong.positions = TensorView::Contiguous(positions.data(), DType::kI32, args.positions.shape);
  return Cpu().rope(context, wrong);
}

Status EntryWithWindowTheta(OpContext& context, const ops::RopeArgs& args) {
  if (WhatIsRotated(args) != Rotated::kEntries) return Cpu().rope(context, args);
  ops::RopeArgs wrong = args;
  wrong.frequencies = F32(TheScene().plain_frequencies, args.frequencies.shape);
  return Cpu().rope(context, wrong);
}

Status WindowWithPlainTheta(OpContext& context, const ops::RopeArgs& args) {
  if (WhatIsRotated(args) != Rotated::kWindow) return Cpu().rope(context, args);
  ops::RopeArgs wrong = args;
  wrong.frequencies = F32(TheScene().plain_frequencies, args.frequencies.shape);
  return Cpu().rope(context, wrong);
}

Status IndexerUnrotated(OpContext& context, const ops::RopeArgs& args) {
  const bool compressed = TheScene().IsCompressTable(args.frequencies);
  const bool skip = WhatIsRotated(args) == Rotated::kIndexerEntries && compressed;
  return skip ? Status() : Cpu().rope(context, args);
}

// --- Compressor and indexer ---

// Unfinished rows of a chunk are not kept.
Status RemainderLost(OpContext& context, const ops::CompressorPoolArgs& args) {
  DSV4_RETURN_IF_ERROR(Cpu().compressor_pool(context, args));
  for (const ops::CompressorSequence& sequence : args.sequences) {
    const int64_t end = sequence.first_position + sequence.num_tokens;
    for (const RingRows& ring : {sequence.value_history, sequence.score_history}) {
      for (int64_t p = std::max(sequence.first_position, end / args.ratio * args.ratio); p < end; ++p) {
        float* row = static_cast<float*>(ring.data) + p % ring.capacity * ring.width;
        std::fill(row, row + ring.width, 0.0F);
      }
    }
  }
  return {};
}

// Scores come with ape in them; here it is added once more.
Status ApeTwice(OpContext& context, const ops::CompressorPoolArgs& args) {
  std::vector<float> ape;
  for (const double value : Values(args.ape)) ape.push_back(static_cast<float>(2 * value));
  ops::CompressorPoolArgs wrong = args;
  wrong.ape = F32(ape, args.ape.shape);
  return Cpu().compressor_pool(context, wrong);
}

// The two halves of the channels, previous and own block's, for one another.
Status HalvesSwapped(OpContext& context, const ops::CompressorPoolArgs& args) {
  if (!args.overlap) return Cpu().compressor_pool(context, args);
  const auto swapped = [&](const TensorView& view) {
    const std::vector<double> values = Values(view);
    const auto width = static_cast<size_t>(view.shape[1]);
    std::vector<float> out;
    for (size_t i = 0; i < values.size(); ++i) {
      out.push_back(static_cast<float>(values[i / width * width + (i % width + width / 2) % width]));
    }
    return out;
  };
  std::vector<float> values = swapped(args.values);
  std::vector<float> scores = swapped(args.scores);
  std::vector<float> ape = swapped(args.ape);
  ops::CompressorPoolArgs wrong = args;
  wrong.values = F32(values, args.values.shape);
  wrong.scores = F32(scores, args.scores.shape);
  wrong.ape = F32(ape, args.ape.shape);
  return Cpu().compressor_pool(context, wrong);
}

Status OldestEntries(OpContext& context, const ops::IndexerSelectArgs& args) {
  DSV4_RETURN_IF_ERROR(Cpu().indexer_select(context, args));
  const int64_t top_k = args.selected.shape[1];
  for (int64_t t = 0; t < args.selected.shape[0]; ++t) {
    auto* row = args.selected.as<int32_t>() + t * top_k;
    for (int64_t i = 0; i < top_k && row[i] >= 0; ++i) row[i] = static_cast<int32_t>(i);
  }
  return {};
}

Status HeadWeightsUnscaled(OpContext& context, const ops::ScaleArgs& args) {
  ops::ScaleArgs wrong = args;
  wrong.factor = 1;
  return Cpu().scale(context, wrong);
}

// --- State ---

// The rows of a run are written one place further, the last one first.
Status ShiftedSlots(OpContext& context, const ops::StoreRowsArgs& args) {
  std::vector<RowRun> runs;
  const int64_t row_bytes = args.StoredBytes();
  for (const RowRun& run : args.runs) {
    auto* place = static_cast<std::byte*>(run.destination);
    for (int64_t i = 0; i < run.num_rows; ++i) {
      runs.push_back({run.source_begin + i, 1, place + (i + 1) % run.num_rows * row_bytes});
    }
  }
  return Cpu().store_rows(context, {.source = args.source, .runs = runs, .pack = args.pack});
}

// --- Matrix products, experts, head ---

// The scale of the first row is taken for every row's.
Status OneActivationScale(OpContext& context, const ops::LinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Cpu().linear(context, args));
  if (args.weight->activation == ActivationQuant::kNone || args.x.shape[0] == 0) return {};
  const std::vector<double> x = Values(args.x);
  const auto width = static_cast<size_t>(args.x.shape[1]);
  std::vector<double> amax(static_cast<size_t>(args.x.shape[0]), 1e-9);
  for (size_t i = 0; i < x.size(); ++i) amax[i / width] = std::max(amax[i / width], std::abs(x[i]));
  std::vector<double> y = Values(args.y);
  const auto columns = static_cast<size_t>(args.y.shape[1]);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= amax[0] / amax[i / columns];
  SetValues(args.y, y);
  return {};
}

// The checkpoint's input_scale, met by few activations, in place of one from the data: what lies above its
// range is cut off.
Status StaticActivationScale(OpContext& context, const ops::LinearArgs& args) {
  if (args.weight->activation == ActivationQuant::kNone) return Cpu().linear(context, args);
  std::vector<double> x = Values(args.x);
  for (double& value : x) value = std::clamp(value, -1.0, 1.0);
  std::vector<std::byte> bytes(static_cast<size_t>(args.x.num_bytes()));
  ops::LinearArgs wrong = args;
  wrong.x = TensorView::Contiguous(bytes.data(), args.x.dtype, args.x.shape);
  SetValues(wrong.x, x);
  return Cpu().linear(context, wrong);
}

Status GroupsSwapped(OpContext& context, const ops::GroupedLinearArgs& args) {
  DSV4_RETURN_IF_ERROR(Cpu().grouped_linear(context, args));
  const std::vector<double> right = Values(args.y);
  const auto row = static_cast<size_t>(args.y.shape[1] * args.y.shape[2]);
  std::vector<double> y(right.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = right[i / row * row + (i + static_cast<size_t>(args.y.shape[2])) % row];
  }
  SetValues(args.y, y);
  return {};
}

Status GateAndUpSwapped(OpContext& context, const ops::RoutedExpertsArgs& args) {
  std::vector<ops::ExpertWeights> experts(args.experts.begin(), args.experts.end());
  for (ops::ExpertWeights& expert : experts) std::swap(expert.w1, expert.w3);
  ops::RoutedExpertsArgs wrong = args;
  wrong.experts = experts;
  return Cpu().routed_experts(context, wrong);
}

Status SharedGateAndUpSwapped(OpContext& context, const ops::SwigluArgs& args) {
  ops::SwigluArgs wrong = args;
  std::swap(wrong.gate, wrong.up);
  return Cpu().swiglu(context, wrong);
}

Status SharedExpertLost(OpContext& context, const ops::MoeCombineArgs& args) {
  SetValues(args.shared, std::vector<double>(static_cast<size_t>(args.shared.num_elements()), 0.0));
  return Cpu().moe_combine(context, args);
}

// weight_scale_2 is read as 1.
Status TensorScaleDropped(OpContext& context, const ops::PrepareWeightArgs& args) {
  DSV4_RETURN_IF_ERROR(Cpu().prepare_weight(context, args));
  if (args.prepared->format == WeightFormat::kNvFp4) args.prepared->global_scale = 1;
  return {};
}

Status NextToken(OpContext& context, const ops::EmbedArgs& args) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < args.token_ids.shape[0]; ++i) {
    ids.push_back((args.token_ids.as<const int32_t>()[i] + 1) % static_cast<int32_t>(args.table.shape[0]));
  }
  ops::EmbedArgs wrong = args;
  wrong.token_ids = TensorView::Contiguous(ids.data(), DType::kI32, args.token_ids.shape);
  return Cpu().embed(context, wrong);
}

bool g_head_follows = false;

Status NoteHead(OpContext& context, const ops::HcHeadArgs& args) {
  g_head_follows = true;
  return Cpu().hc_head(context, args);
}

// The norm behind hc_head is the final one.
Status NoFinalNorm(OpContext& context, const ops::RmsNormArgs& args) {
  return std::exchange(g_head_follows, false) ? Status() : Cpu().rms_norm(context, args);
}

// A fault of tests/golden/faults that looks at one row at a time.
OpFault Golden(const std::string& mistake, Expected expected, const std::string& numerics = "release") {
  return {mistake, AllSeededMistakes().at(mistake).mutation.ops, std::move(expected), numerics};
}

// An op replaced by a wrong one.
#define DSV4_FAULT(op, Wrong) [](ops::OpTable& table) { table.op = Wrong; }

}  // namespace

std::vector<OpFault> SeededOpFaults() {
  return {
      {"sink missing", DSV4_FAULT(attention, NoSink), {"visible", 0, "attention"}},
      {"sink times the softmax scale", DSV4_FAULT(attention, SinkScaled), {"visible", 0, "attention"}},
      {"window one short", DSV4_FAULT(attention, WindowShort), {"visible", 0, "attention"}},
      {"newest selected entry missed", DSV4_FAULT(attention, NewestEntryMissed), {"visible", 2, "attention"}},
      {"visible from floor(p / r)", DSV4_FAULT(attention, NewestBlockMissed), {"visible", 3, "attention"}},
      {"one valid length for all rows",
       DSV4_FAULT(attention, OneLengthForAllRows),
       {"visible", 3, "attention"}},
      {"YaRN amplitude in the softmax scale",
       DSV4_FAULT(attention, ScaleSquared),
       {"compare", 2, "attention"}},
      {"entry at its last position", DSV4_FAULT(rope, EntryAtLast), {"compare", 2, "rope"}},
      {"entry with theta 10000", DSV4_FAULT(rope, EntryWithWindowTheta), {"compare", 2, "rope"}},
      {"window rows with theta 10000", DSV4_FAULT(rope, WindowWithPlainTheta), {"compare", 2, "rope"}},
      {"indexer entries unrotated", DSV4_FAULT(rope, IndexerUnrotated), {"compare", 2, "rope"}},
      Golden("08-rope-half-split", {"compare", 0, "rope"}),
      Golden("12-no-inverse-rope", {"compare", 0, "rope"}),
      Golden("12-inverse-at-zero", {"compare", 0, "rope"}),
      Golden("12-inverse-other-table", {"compare", 0, "rope"}),
      Golden("07-no-head-norm", {"compare", 0, "head_rms_norm"}),
      Golden("26-fp8-rope-dims", {"compare", 0, "simulate_fp8"}),
      Golden("21-no-hadamard", {"compare", 2, "hadamard_fp4"}),
      {"stale compressor state",
       DSV4_FAULT(compressor_pool, RemainderLost),
       {"decode-prefill", 2, "compressor_pool"}},
      {"ape twice", DSV4_FAULT(compressor_pool, ApeTwice), {"compare", 2, "compressor_pool"}},
      {"compressor halves swapped",
       DSV4_FAULT(compressor_pool, HalvesSwapped),
       {"compare", 2, "compressor_pool"}},
      {"oldest entries instead of the best",
       DSV4_FAULT(indexer_select, OldestEntries),
       {"visible", 2, "indexer_select"},
       "release",
       280},
      {"indexer head weights unscaled", DSV4_FAULT(scale, HeadWeightsUnscaled), {"compare", 2, "scale"}},
      {"window slots shifted", DSV4_FAULT(store_rows, ShiftedSlots), {"decode-prefill", 0, "store_rows"}},
      {"one activation scale for all rows",
       DSV4_FAULT(linear, OneActivationScale),
       {"decode-prefill", 0, "linear"}},
      {"input_scale for the activations",
       DSV4_FAULT(linear, StaticActivationScale),
       {"compare", 0, "linear"}},
      {"groups of wo_a swapped", DSV4_FAULT(grouped_linear, GroupsSwapped), {"compare", 0, "grouped_linear"}},
      {"gate and up swapped", DSV4_FAULT(routed_experts, GateAndUpSwapped), {"compare", 0, "routed_experts"}},
      {"gate and up of the shared expert swapped",
       DSV4_FAULT(swiglu, SharedGateAndUpSwapped),
       {"compare", 0, "swiglu"}},
      {"shared expert lost", DSV4_FAULT(moe_combine, SharedExpertLost), {"compare", 0, "moe_combine"}},
      // It shows where the weights are used.
      {"weight_scale_2 dropped",
       DSV4_FAULT(prepare_weight, TensorScaleDropped),
       {"compare", 0, "routed_experts"}},
      {"embedding of the next id", DSV4_FAULT(embed, NextToken), {"compare", -1, "embed"}},
      {"final norm missing",
       [](ops::OpTable& table) {
         table.hc_head = NoteHead;
         table.rms_norm = NoFinalNorm;
       },
       {"scale-invariance", -1, "rms_norm"}},
      Golden("01-split-order", {"compare", 0, "hc_pre"}),
      Golden("03-sinkhorn-exp", {"compare", 0, "hc_pre"}),
      Golden("03-sinkhorn-first-row", {"compare", 0, "hc_pre"}),
      Golden("04-pre-no-eps",
             {.check = "compare",
              .layer = 0,
              .op = "hc_pre",
              .missed_because = "eps is 1e-6 in this model: the error is below every bound"},
             "plain"),
      Golden("04-post-no-factor", {"compare", 0, "hc_pre"}),
      Golden("05-hc-norm-per-stream", {"compare", 0, "hc_pre"}),
      Golden("02-comb-straight", {"compare", 0, "hc_post"}),
      Golden("22-bias-in-weights", {"compare", 2, "router"}),
      Golden("22-router-softmax", {"compare", 0, "router"}),
      Golden("22-no-sqrt", {"compare", 0, "router"}),
      Golden("23-hash-int32", {"compare", 0, "router"}),
  };
}

}  // namespace dsv4::testing
