// Check `compare`: the first op past its bound against another run, with tables by layer and the effect on
// logits.
#include "diag/checks/compare_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "diag/compare/blame.h"
#include "diag/compare/compare_plots.h"
#include "diag/compare/comparer.h"

namespace dsv4::diag {
namespace {

// The share of rows with another choice that near-ties may explain. Rounding that adds up flips more of them:
// a release-format model's CPU and reference runs differ in 3 %.
constexpr double kMaxFlipped = 0.01;
constexpr double kMaxFlippedAccumulatedBf16 = 0.1;

// Change that rounding alone may do to a bf16 tensor: every element to its neighbour.
constexpr double kBf16Step = 0x1p-8;

// With errors that add up typical rows decide, since a single one may flip an expert within rounding. An op's
// own error holds for every row.
bool PastBound(const Compared& compared, CompareMode mode, double max_flipped) {
  if (compared.by_table) return compared.num_flipped > 0;
  if (compared.choice) {
    return static_cast<double>(compared.num_flipped) > max_flipped * static_cast<double>(compared.num_rows);
  }
  return (mode == CompareMode::kSharedInputs ? compared.worst_error : compared.error()) > compared.bound;
}

// Tensors behind a rounding to 8 or 4 bits of something that was rounded to bf16 before: a neighbour there is
// a whole step here.
bool IsRoundedTwice(std::string_view name) {
  return name == "attn.kv" || name == "attn.compressed" || name == "attn.indexer.compressed" ||
         name == "attn.indexer.q" || name == "ffn.routed";
}

double DefaultBound(const CompareOptions& options, bool bf16, std::string_view name, DType dtype) {
  if (options.mode == CompareMode::kAccumulated) return AccumulatedBound(bf16);
  if (!bf16) return 1e-4;
  if (!options.same_contract || IsRoundedTwice(name)) return 0.02;
  return dtype == DType::kF32 ? 1e-4 : kBf16Step;
}

std::string LogitsLine(const LogitsAgreement& logits) {
  return fmt::format("logits: KL(other || ours) mean {:.3g}, worst {:.3g} nats; top-1 agrees at {} of {}",
                     logits.sum_kl / static_cast<double>(logits.num_rows), logits.worst_kl,
                     logits.num_same_top1, Counted(logits.num_rows, "position"));
}

// Answers of both runs where they disagree: "token 381 (other: 278) at position 17, ...". Empty where they
// agree.
std::string OutputsLine(const LogitsAgreement& logits) {
  constexpr size_t kShown = 5;
  std::string line;
  for (size_t i = 0; i < std::min(kShown, logits.other_top1.size()); ++i) {
    const LogitsAgreement::Top1& top1 = logits.other_top1[i];
    line += fmt::format("{}{} (other: {}) at position {}", i == 0 ? "best tokens that differ: " : ", ",
                        top1.ours, top1.theirs, top1.position);
  }
  if (logits.other_top1.size() > kShown)
    line += fmt::format(" and {} more", logits.other_top1.size() - kShown);
  return line;
}

// The error behind every layer, which is what grows.
Table LayerTable(const std::vector<Compared>& compared) {
  Table table{.title = "relative error behind each layer",
              .columns = {"layer", "tensor", "all rows", "worst row", "at row"}};
  for (const Compared& tensor : compared) {
    if (tensor.choice || (tensor.layer >= 0 && !tensor.name.ends_with("streams"))) continue;
    table.rows.push_back({std::to_string(tensor.layer), tensor.name, fmt::format("{:.3g}", tensor.error()),
                          fmt::format("{:.3g}", tensor.worst_error), std::to_string(tensor.worst_row)});
  }
  return table;
}

Table WorstTable(std::vector<Compared> compared) {
  std::stable_sort(compared.begin(), compared.end(),
                   [](const Compared& a, const Compared& b) { return a.error() > b.error(); });
  Table table{.title = "largest errors",
              .columns = {"layer", "tensor", "ops", "all rows", "worst row", "at row"}};
  for (const Compared& tensor : compared) {
    if (table.rows.size() == 8 || tensor.error() == 0) break;
    table.rows.push_back({std::to_string(tensor.layer), tensor.name, tensor.ops,
                          fmt::format("{:.3g}", tensor.error()), fmt::format("{:.3g}", tensor.worst_error),
                          std::to_string(tensor.worst_row)});
  }
  return table;
}

// "0.02", "0.0001 to 0.02".
std::string BoundRange(const std::vector<Compared>& compared) {
  const auto [least, most] = std::minmax_element(
      compared.begin(), compared.end(), [](const auto& a, const auto& b) { return a.bound < b.bound; });
  return least->bound == most->bound ? fmt::format("{:g}", most->bound)
                                     : fmt::format("{:g} to {:g} by tensor", least->bound, most->bound);
}

struct Comparison {
  CheckReport report;
  int64_t num_absent = 0;
  std::vector<Compared> compared;
};

Location LocationOf(const Compared& tensor) {
  return {tensor.layer, tensor.name, tensor.ops,
          std::max<int64_t>(tensor.first_bad_row < 0 ? tensor.worst_row : tensor.first_bad_row, 0)};
}

// With what each op was given by the other run: which experts the error of ffn.routed is that of.
std::vector<int64_t> GuiltyExperts(const std::vector<Compared>& own, const Compared& routed) {
  if (routed.name != "ffn.routed") return {};
  for (const Compared& tensor : own) {
    if (tensor.layer == routed.layer && tensor.name == "ffn.router.indices")
      return ExpertsBehind(routed.row_errors, tensor.choices);
  }
  return {};
}

// Complaint about the first tensor past its bound, behind its name.
std::string Complaint(const Compared& first, std::span<const int32_t> tokens) {
  if (first.by_table) {
    return fmt::format(
        "{} of {} other experts, by a table that knows no near-ties: token id {} has "
        "{}, {} in the other run",
        first.num_flipped, Counted(first.num_rows, "token has", "tokens have"),
        tokens[static_cast<size_t>(first.first_bad_row)], fmt::join(first.our_choice, " "),
        fmt::join(first.their_choice, " "));
  }
  if (first.choice)
    return fmt::format("{} of {} otherwise", first.num_flipped,
                       Counted(first.num_rows, "row chooses", "rows choose"));
  return fmt::format("relative error {:.3g}", first.error());
}

Result<Comparison> Run(const Subject& subject, std::span<const int32_t> tokens, TensorSource& other,
                       const CompareOptions& options) {
  const bool bf16 = subject.model.options().numerics == model::Numerics::kRelease || other.rounds_to_bf16();
  const bool shared = options.mode == CompareMode::kSharedInputs;
  const double max_flipped = bf16 && !shared ? kMaxFlippedAccumulatedBf16 : kMaxFlipped;
  Comparer comparer(subject, other, shared, [&](std::string_view name, DType dtype) {
    return options.bound.value_or(DefaultBound(options, bf16, name, dtype));
  });
  Result<std::vector<float>> logits;
  {
    const HookedBackend::Scope scope(subject.backend, comparer.Hooks());
    logits = RunTokens(subject, tokens, {}, model::LogitsRows::kAll, &comparer);
  }
  DSV4_TRY(comparer.status());
  if (!logits) return Error(logits.error());
  if (comparer.compared().empty()) {
    return Error(
        InvalidArgument("compare: the other run has no tensor that this model computes; names are those of "
                        "docs/dump-format.md"));
  }
  CheckReport report{.check = "compare"};
  int64_t num_flipped = 0;
  const Compared* first = nullptr;
  for (const Compared& tensor : comparer.compared()) {
    num_flipped += tensor.num_flipped;
    if (first == nullptr && PastBound(tensor, options.mode, max_flipped)) first = &tensor;
  }
  report.evidence = {
      fmt::format("{} of {}, {}; bound on the relative error {}",
                  Counted(comparer.compared().size(), "tensor"), Counted(tokens.size(), "token"),
                  shared ? "each op fed with the other run's inputs: its own error"
                         : "both runs from the token ids: accumulated error",
                  BoundRange(comparer.compared())),
      fmt::format("{} chose other experts or entries", Counted(num_flipped, "row"))};
  if (!shared) {
    if (comparer.logits().num_rows > 0) report.evidence.push_back(LogitsLine(comparer.logits()));
    if (std::string line = OutputsLine(comparer.logits()); !line.empty())
      report.evidence.push_back(std::move(line));
    report.tables.push_back(LayerTable(comparer.compared()));
  }
  if (Table worst = WorstTable(comparer.compared()); !worst.rows.empty())
    report.tables.push_back(std::move(worst));
  report.plots = ComparePlots(comparer.compared(), comparer.logits(), shared);
  if (first != nullptr) {
    report.verdict = Verdict::kFinding;
    report.location = LocationOf(*first);
    if (shared) report.location->experts = GuiltyExperts(comparer.compared(), *first);
    report.headline = fmt::format("{} is the first past its bound: {}", report.location->ToString(),
                                  Complaint(*first, tokens));
    report.next_step =
        shared ? "this op computes something else from the same inputs: read its contract in src/ops"
               : "run again with --shared: does this op err by itself, or only carry on what came before?";
  } else {
    report.headline = "no op is past its bound";
    report.rules_out = {shared ? "an op that computes something else from the same inputs"
                               : "a difference between the two runs, from the token ids to the logits"};
    report.next_step = shared ? "run without --shared: errors may add up"
                              : "the other run's answers come from its prompt or "
                                "its sampling: dsv4 diagnose prompt --against";
  }
  return Comparison{std::move(report), comparer.num_absent(), comparer.compared()};
}

// Blame for a finding where no op's own error is past its bound: what is past its bound first carries on what
// came before.
void BlameWhatErrsByItself(const std::vector<Compared>& own, CheckReport& report) {
  const std::string added_up = report.headline;
  const Compared* suspect = MostUnusual(own);
  if (suspect == nullptr) {
    report.headline = added_up + "; no op errs by itself: the difference is in what feeds the layers' state";
    return;
  }
  report.location = LocationOf(*suspect);
  report.location->experts = GuiltyExperts(own, *suspect);
  report.headline = fmt::format(
      "{} errs by itself beside what is usual ({}), under its bound; added up, {}",
      report.location->ToString(),
      suspect->choice
          ? fmt::format("{} of {} otherwise", suspect->num_flipped,
                        Counted(suspect->num_rows, "row chooses", "rows choose"))
          : fmt::format("relative error {:.3g}, worst row {:.3g}", suspect->error(), suspect->worst_error),
      added_up);
  report.next_step =
      "compare the weights that this op reads with the other engine's: dsv4 diagnose checkpoint";
}

}  // namespace

double AccumulatedBound(bool bf16) { return bf16 ? 0.2 : 1e-3; }

Result<CheckReport> CheckCompare(const Subject& subject, std::span<const int32_t> tokens, TensorSource& other,
                                 const CompareOptions& options) {
  DSV4_ASSIGN_OR_RETURN(Comparison comparison, Run(subject, tokens, other, options));
  return std::move(comparison.report);
}

Result<CheckReport> CheckAgainstDump(const Subject& subject, std::span<const int32_t> tokens,
                                     TensorSource& dump, const CompareOptions& options) {
  CompareOptions mode = options;
  mode.mode = CompareMode::kSharedInputs;
  DSV4_ASSIGN_OR_RETURN(Comparison shared, Run(subject, tokens, dump, mode));
  mode.mode = CompareMode::kAccumulated;
  DSV4_ASSIGN_OR_RETURN(Comparison accumulated, Run(subject, tokens, dump, mode));
  // Between tensors that the dump lacks errors add up, and the bound on an op's own error is not theirs.
  if (shared.num_absent > 0) return std::move(accumulated.report);
  // An op's own error says more than what it grows into, which goes along as evidence.
  const bool shared_first = shared.report.verdict == Verdict::kFinding;
  CheckReport report = std::move(shared_first ? shared.report : accumulated.report);
  CheckReport& other = shared_first ? accumulated.report : shared.report;
  report.evidence.insert(report.evidence.end(), other.evidence.begin(), other.evidence.end());
  report.tables.insert(report.tables.end(), other.tables.begin(), other.tables.end());
  report.plots.insert(report.plots.end(), other.plots.begin(), other.plots.end());
  if (!shared_first && report.verdict == Verdict::kFinding) BlameWhatErrsByItself(shared.compared, report);
  if (report.verdict == Verdict::kPass) {
    report.rules_out.insert(report.rules_out.end(), other.rules_out.begin(), other.rules_out.end());
  }
  return report;
}

}  // namespace dsv4::diag
