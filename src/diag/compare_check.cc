#include "diag/compare_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

// The share of rows with another choice that near-ties may explain. Rounding that adds up flips more of them: a release-format
// model's CPU and reference runs differ in 3 %.
constexpr double kMaxFlipped = 0.01;
constexpr double kMaxFlippedAccumulatedBf16 = 0.1;

// One tensor of both runs.
struct Compared {
  int layer = -1;
  std::string name;
  std::string ops;  // Those that ran since the tensor before it.
  bool choice = false;
  int64_t num_rows = 0;
  int64_t num_flipped = 0;  // Of a choice.
  double worst_error = 0;   // Of a row.
  int64_t worst_row = 0;
  int64_t first_bad_row = -1;
  std::set<int64_t> reordered;  // Rows of a choice that list it in another order, or choose otherwise.
  double sum_squared = 0;
  double sum_squared_difference = 0;

  double error() const {
    if (sum_squared_difference == 0) return 0;
    return std::sqrt(sum_squared_difference / std::max(sum_squared, std::numeric_limits<double>::min()));
  }
};

// NaN against a number counts as infinite.
double RowError(std::span<const float> ours, std::span<const float> theirs, double& difference,
                double& norm) {
  difference = 0;
  norm = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i] == theirs[i]) {
      norm += static_cast<double>(theirs[i]) * theirs[i];
      continue;
    }
    const double delta = static_cast<double>(ours[i]) - theirs[i];
    if (!std::isfinite(delta)) return std::numeric_limits<double>::infinity();
    difference += delta * delta;
    norm += static_cast<double>(theirs[i]) * theirs[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

bool SameSet(std::span<const float> a, std::span<const float> b) {
  std::vector<float> x(a.begin(), a.end());
  std::vector<float> y(b.begin(), b.end());
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  return x == y;
}

// Compares every tensor as it arises and, with shared inputs, puts the other run's numbers in its place.
class Comparer final : public model::Observer {
 public:
  Comparer(const Subject& subject, const Dump& other, CompareMode mode, double bound)
      : subject_(subject), mode_(mode), bound_(bound) {
    for (const RecordedTensor& tensor : other.tensors) others_[{tensor.layer, tensor.name}] = &tensor;
  }

  // Notes which ops run between two tensors. store_rows comes behind the tensor it stores, so it says nothing.
  OpHooks Hooks() {
    OpHooks hooks;
#define DSV4_TRACE_OP(op_name, Args)                                               \
  hooks.op_name = [this](const InnerOp<ops::Args>& inner, const ops::Args& args) { \
    Trace(#op_name);                                                               \
    return inner(args);                                                            \
  };
    DSV4_FOR_EACH_OP(DSV4_TRACE_OP)
#undef DSV4_TRACE_OP
    return hooks;
  }

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override {
    // An op that writes several tensors stands for all of them.
    if (!pending_ops_.empty()) last_ops_ = std::exchange(pending_ops_, {});
    if (!status_.ok() || name.starts_with("pass.")) return;
    const auto found = others_.find({layer, std::string(name)});
    if (found == others_.end()) return;
    status_ = Compare(layer, name, last_ops_, tensor, *found->second)
                  .WithContext(layer < 0 ? std::string(name) : fmt::format("layer {}, {}", layer, name));
  }

  const Status& status() const { return status_; }
  const std::vector<Compared>& compared() const { return compared_; }

 private:
  void Trace(std::string_view op) {
    if (op == "store_rows" || pending_ops_.find(op) != std::string::npos) return;
    pending_ops_ += pending_ops_.empty() ? "" : ", ";
    pending_ops_ += op;
  }

  Status Compare(int layer, std::string_view name, const std::string& ops, const TensorView& tensor,
                 const RecordedTensor& other) {
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<float> ours, ToHostFloats(subject_.context(), tensor));
    const int64_t num_rows = tensor.shape[0];
    const int64_t width = num_rows == 0 ? other.width : tensor.num_elements() / num_rows;
    // The head comes in several parts, and a step in several passes: rows go on where the last part ended.
    const auto [place, added] = index_.try_emplace({layer, std::string(name)}, compared_.size());
    if (added)
      compared_.push_back(
          {.layer = layer, .name = std::string(name), .ops = ops, .choice = tensor.dtype == DType::kI32});
    Compared& compared = compared_[place->second];
    const int64_t first = compared.num_rows;
    if (width != other.width || first + num_rows > other.num_rows) {
      return InvalidArgument(fmt::format("the other run has [{}, {}], this model [{}, {}]", other.num_rows,
                                         other.width, first + num_rows, width));
    }
    compared.num_rows += num_rows;
    // The weights go with the choice that the router made.
    const auto choice =
        name == "ffn.router.weights" ? index_.find({layer, "ffn.router.indices"}) : index_.end();
    for (int64_t row = 0; row < num_rows; ++row) {
      const std::span<const float> a =
          std::span(ours).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
      if (choice != index_.end() && compared_[choice->second].reordered.contains(first + row)) continue;
      CompareRow(compared, first + row, a, other.Row(first + row));
    }
    if (mode_ == CompareMode::kAccumulated || num_rows == 0 || !CanSubstitute(layer, name)) return {};
    const auto begin = other.values.begin() + first * width;
    return FromHostFloats(subject_.context(), std::vector<float>(begin, begin + num_rows * width), tensor);
  }

  // A choice of experts without its weights, or the weights alone, would mix two routings.
  bool CanSubstitute(int layer, std::string_view name) const {
    if (!name.starts_with("ffn.router.") || name == "ffn.router.logits") return true;
    return others_.contains({layer, "ffn.router.indices"}) && others_.contains({layer, "ffn.router.weights"});
  }

  void CompareRow(Compared& compared, int64_t row, std::span<const float> ours,
                  std::span<const float> theirs) const {
    if (compared.choice) {
      if (!std::equal(ours.begin(), ours.end(), theirs.begin())) compared.reordered.insert(row);
      if (SameSet(ours, theirs)) return;
      if (compared.num_flipped++ == 0) compared.first_bad_row = row;
      return;
    }
    double difference = 0;
    double norm = 0;
    const double error = RowError(ours, theirs, difference, norm);
    compared.sum_squared_difference +=
        std::isfinite(error) ? difference : std::numeric_limits<double>::infinity();
    compared.sum_squared += norm;
    if (error > compared.worst_error) {
      compared.worst_error = error;
      compared.worst_row = row;
    }
    if (error > bound_ && compared.first_bad_row < 0) compared.first_bad_row = row;
  }

  const Subject& subject_;
  const CompareMode mode_;
  const double bound_;
  std::map<std::pair<int, std::string>, const RecordedTensor*> others_;
  std::map<std::pair<int, std::string>, size_t> index_;
  std::vector<Compared> compared_;
  std::string pending_ops_;
  std::string last_ops_;
  Status status_;
};

// With errors that add up typical rows decide, since a single one may flip an expert within rounding; an op's own error holds for
// every row.
bool PastBound(const Compared& compared, CompareMode mode, double bound, double max_flipped) {
  if (compared.choice) {
    return static_cast<double>(compared.num_flipped) > max_flipped * static_cast<double>(compared.num_rows);
  }
  return (mode == CompareMode::kSharedInputs ? compared.worst_error : compared.error()) > bound;
}

bool IsBf16(const Subject& subject, const Dump& other) {
  const auto is_bf16 = [](const RecordedTensor& tensor) { return tensor.dtype == DType::kBF16; };
  return subject.model.options().numerics == model::Numerics::kRelease ||
         std::any_of(other.tensors.begin(), other.tensors.end(), is_bf16);
}

double DefaultBound(CompareMode mode, bool bf16) {
  if (mode == CompareMode::kSharedInputs) return bf16 ? 0.02 : 1e-4;
  return bf16 ? 0.2 : 1e-3;
}

// "KL ..., top-1 ...": empty when the other run has no logits for all positions.
std::string LogitsLine(std::span<const float> ours, const Dump& other, int64_t vocab_size) {
  const RecordedTensor* theirs = other.Find(-1, "logits");
  if (theirs == nullptr || theirs->values.size() != ours.size()) return {};
  double sum = 0;
  double worst = 0;
  int64_t agree = 0;
  const int64_t rows = theirs->num_rows;
  for (int64_t row = 0; row < rows; ++row) {
    const auto mine = ours.subspan(static_cast<size_t>(row * vocab_size), static_cast<size_t>(vocab_size));
    const double kl = SoftmaxKl(theirs->Row(row), mine);
    sum += kl;
    worst = std::max(worst, kl);
    agree += ArgMax(mine) == ArgMax(theirs->Row(row)) ? 1 : 0;
  }
  return fmt::format(
      "logits: KL(other || ours) mean {:.3g}, worst {:.3g} nats; top-1 agrees at {} of {} positions",
      sum / static_cast<double>(rows), worst, agree, rows);
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

}  // namespace

Result<CheckReport> CheckCompare(const Subject& subject, std::span<const int32_t> tokens, const Dump& other,
                                 const CompareOptions& options) {
  const bool bf16 = IsBf16(subject, other);
  const bool shared = options.mode == CompareMode::kSharedInputs;
  const double bound = options.bound.value_or(DefaultBound(options.mode, bf16));
  const double max_flipped = bf16 && !shared ? kMaxFlippedAccumulatedBf16 : kMaxFlipped;
  Comparer comparer(subject, other, options.mode, bound);
  Result<std::vector<float>> logits;
  {
    const HookedBackend::Scope scope(subject.backend, comparer.Hooks());
    logits = RunTokens(subject, tokens, {}, model::LogitsRows::kAll, &comparer);
  }
  if (!logits) return Error(logits.error());
  DSV4_TRY(comparer.status());
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
    if (first == nullptr && PastBound(tensor, options.mode, bound, max_flipped)) first = &tensor;
  }
  report.evidence = {fmt::format("{} tensors of {} tokens, {}; bound on the relative error {:g}",
                                 comparer.compared().size(), tokens.size(),
                                 shared ? "each op fed with the other run's inputs: its own error"
                                        : "both runs from the token ids: accumulated error",
                                 bound),
                     fmt::format("{} rows chose other experts or entries", num_flipped)};
  if (!shared) {
    if (std::string line = LogitsLine(*logits, other, subject.model.config().vocab_size); !line.empty()) {
      report.evidence.push_back(std::move(line));
    }
    report.tables.push_back(LayerTable(comparer.compared()));
  }
  report.tables.push_back(WorstTable(comparer.compared()));
  if (first != nullptr) {
    report.verdict = Verdict::kFinding;
    report.place = Place{first->layer, first->name, first->ops, std::max<int64_t>(first->first_bad_row, 0)};
    report.headline = first->choice
                          ? fmt::format("{} is the first past its bound: {} of {} rows choose otherwise",
                                        report.place->ToString(), first->num_flipped, first->num_rows)
                          : fmt::format("{} is the first past its bound: relative error {:.3g}",
                                        report.place->ToString(), first->error());
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
  return report;
}

}  // namespace dsv4::diag
