// Check `decode-prefill`: one pass, chunks and single tokens compared tensor by tensor, and the first
// difference explained.
#include "diag/checks/decode_prefill_check.h"

#include <fmt/format.h>

#include <optional>

#include "base/text.h"
#include "diag/recording.h"
#include "diag/report/logit_plots.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

struct Difference {
  const RecordedTensor* tensor = nullptr;
  int64_t row = 0;
  double error = 0;
};

// The first tensor in graph order with a row past the tolerance; pass.* says how the run was cut and always
// differs.
Result<std::optional<Difference>> FirstDifference(const Recording& prefill, const Recording& other,
                                                  double tolerance) {
  for (const RecordedTensor& tensor : prefill.tensors()) {
    if (tensor.name.starts_with("pass.")) continue;
    const RecordedTensor* same = other.Find(tensor.layer, tensor.name);
    if (same == nullptr || same->num_rows != tensor.num_rows) {
      return Error(Internal(fmt::format("decode-prefill: layer {}, {}: {} by prefill, {} in pieces",
                                        tensor.layer, tensor.name, Counted(tensor.num_rows, "row"),
                                        same == nullptr ? 0 : same->num_rows)));
    }
    for (int64_t row = 0; row < tensor.num_rows; ++row) {
      const double error = RelativeError(tensor.Row(row), same->Row(row));
      if (error > (tensor.exact() ? 0.0 : tolerance)) return Difference{&tensor, row, error};
    }
  }
  return std::nullopt;
}

// The recordings of two cuts, of the tensors the filter lets through.
struct Cuts {
  Recording prefill;
  Recording pieces;
};

Result<Cuts> RunCuts(const Subject& subject, std::span<const int32_t> tokens, int64_t piece,
                     const Recording::Filter& filter) {
  DSV4_ASSIGN_OR_RETURN(Recording prefill, Record(subject, tokens, {}, model::LogitsRows::kAll, filter));
  DSV4_ASSIGN_OR_RETURN(Recording pieces,
                        Record(subject, tokens, std::span(&piece, 1), model::LogitsRows::kAll, filter));
  return Cuts{std::move(prefill), std::move(pieces)};
}

// Only what leaves a layer: all tensors of a large model would not fit in memory.
bool IsLayerOutput(int layer, std::string_view name) {
  return layer < 0 ? name != "head.streams" : name == "attn.streams" || name == "ffn.streams";
}

int64_t PositionOf(const model::ModelConfig& config, const RecordedTensor& tensor, int64_t row) {
  const bool entry = tensor.name.ends_with("compressed") || tensor.name.ends_with("compressor.pooled") ||
                     tensor.name.ends_with("compressor.norm");
  return entry ? row * config.layers[static_cast<size_t>(tensor.layer)].ratio : row;
}

// The ops that may be at fault: the one that wrote the tensor and, where it reads rows that another op
// stored, that one.
std::string Candidates(std::string_view tensor) {
  const std::string op(OpBehind(tensor));
  return op == "attention" || op == "indexer_select" ? op + ", store_rows" : op;
}

// The cut's verdict: nothing, or where it first leaves prefill.
struct CutResult {
  std::optional<Location> location;
  double error = 0;
  PositionLogits logits;              // The prefill's,
  std::vector<double> logit_changes;  // and how far the pieces' are off.
};

Result<CutResult> CompareCut(const Subject& subject, std::span<const int32_t> tokens, int64_t piece,
                             double tolerance) {
  DSV4_ASSIGN_OR_RETURN(Cuts cuts, RunCuts(subject, tokens, piece, IsLayerOutput));
  DSV4_ASSIGN_OR_RETURN(std::optional<Difference> first,
                        FirstDifference(cuts.prefill, cuts.pieces, tolerance));
  CutResult result;
  const RecordedTensor* prefill = cuts.prefill.Find(-1, "logits");
  const RecordedTensor* pieces = cuts.pieces.Find(-1, "logits");
  if (prefill != nullptr && pieces != nullptr) {
    result.logits = MeasureLogits(prefill->values, prefill->width);
    result.logit_changes = LargestChanges(prefill->values, pieces->values, prefill->width);
  }
  if (!first) return result;
  const int layer = first->tensor->layer;
  // The same again inside that layer.
  DSV4_ASSIGN_OR_RETURN(
      Cuts inside, RunCuts(subject, tokens, piece, [&](int at, std::string_view) { return at == layer; }));
  DSV4_ASSIGN_OR_RETURN(const std::optional<Difference> exact,
                        FirstDifference(inside.prefill, inside.pieces, tolerance));
  if (exact) {
    cuts = std::move(inside);
    first = exact;
  }
  const RecordedTensor& tensor = *first->tensor;
  result.location = Location{layer, tensor.name, Candidates(tensor.name),
                             PositionOf(subject.model.config(), tensor, first->row)};
  result.error = first->error;
  return result;
}

// Advice on how a sequence's state bears on the op, for the next step.
std::string_view Advice(std::string_view op) {
  if (op == "compressor_pool") {
    return "the inputs of this pass agree, so the compressor's history does not: look at what an earlier "
           "piece left there "
           "(remainder, previous block, reset at sequence start)";
  }
  if (op.starts_with("attention")) {
    return "the inputs of this pass agree, so cached rows or the visible set do not: dsv4 diagnose visible, "
           "then the ring's "
           "slots and the entries stored by earlier pieces";
  }
  if (op.starts_with("indexer_select"))
    return "the indexer's keys of earlier pieces, or the count of visible entries, differ";
  return "the op's result for a row depends on the other rows of the batch; look at its reductions and its "
         "positions";
}

}  // namespace

Result<CheckReport> CheckDecodePrefill(const Subject& subject, std::span<const int32_t> tokens,
                                       const DecodePrefillOptions& options) {
  CheckReport report{.check = "decode-prefill"};
  if (tokens.size() < 2) return NotApplicable(std::move(report), "one token has only one way to be computed");
  report.evidence.push_back(
      options.tolerance == 0
          ? fmt::format("{}; every tensor compared bit for bit", Counted(tokens.size(), "token"))
          : fmt::format("{}; relative error of a row at most {:g}", Counted(tokens.size(), "token"),
                        options.tolerance));
  struct Cut {
    std::string name;
    int64_t piece;
  };
  PositionLogits logits;
  std::vector<LogitChange> changes;
  for (const Cut& cut :
       {Cut{fmt::format("chunks of {}", options.chunk), options.chunk}, Cut{"token by token", 1}}) {
    DSV4_ASSIGN_OR_RETURN(CutResult result, CompareCut(subject, tokens, cut.piece, options.tolerance));
    logits = std::move(result.logits);  // The same prefill each time.
    changes.push_back({cut.name, std::move(result.logit_changes)});
    if (!result.location) {
      report.evidence.push_back(fmt::format("{}: the same as one prefill", cut.name));
      continue;
    }
    report.evidence.push_back(fmt::format("{}: first differs from one prefill at {}, relative error {:.3g}",
                                          cut.name, result.location->ToString(), result.error));
    if (report.verdict == Verdict::kFinding) continue;
    report.verdict = Verdict::kFinding;
    report.location = result.location;
    report.headline =
        fmt::format("{} differs from one prefill, first at {}", cut.name, result.location->ToString());
    report.next_step = Advice(result.location->op);
  }
  if (!logits.margin.empty()) report.plots = {MarginPlot(logits, changes), TopPlot(logits)};
  if (report.verdict == Verdict::kPass) {
    report.headline = "one prefill, chunks and single tokens give the same numbers in every layer";
    report.rules_out = {
        "the sequence's state (rings, entries, compressor history) and separate decode arithmetic"};
    report.next_step =
        "an error left over is in prefill and decode alike: compare with another engine (dsv4 diagnose "
        "compare)";
  }
  return report;
}

}  // namespace dsv4::diag
