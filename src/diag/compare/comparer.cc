// Observer that compares each tensor of a run with another run's and may replace it by the other's.
#include "diag/compare/comparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "diag/recording.h"
#include "diag/report/logit_plots.h"
#include "diag/statistics.h"
#include "formats/cache_rows.h"

namespace dsv4::diag {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
    if (!std::isfinite(delta)) return kInfinity;
    difference += delta * delta;
    norm += static_cast<double>(theirs[i]) * theirs[i];
  }
  if (difference == 0) return 0;
  return norm == 0 ? kInfinity : std::sqrt(difference / norm);
}

bool SameSet(std::span<const float> a, std::span<const float> b) {
  std::vector<float> x(a.begin(), a.end());
  std::vector<float> y(b.begin(), b.end());
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  return x == y;
}

std::span<const float> RowOf(const std::vector<float>& values, int64_t row, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

}  // namespace

double Compared::error() const {
  if (sum_squared_difference == 0) return 0;
  return std::sqrt(sum_squared_difference / std::max(sum_squared, std::numeric_limits<double>::min()));
}

OpHooks Comparer::Hooks() {
  OpHooks hooks;
#define DSV4_TRACE_OP(op_name, Op)                                                         \
  hooks.op_name = [this](const InnerOp<ops::Op##Args>& inner, const ops::Op##Args& args) { \
    Trace(#op_name);                                                                       \
    return inner(args);                                                                    \
  };
  DSV4_FOR_EACH_OP(DSV4_TRACE_OP)
#undef DSV4_TRACE_OP
  // It comes behind the tensor that it stores, so it is not among the ops of the next one.
  hooks.store_rows = [this](const InnerOp<ops::StoreRowsArgs>& inner, const ops::StoreRowsArgs& args) {
    DSV4_RETURN_IF_ERROR(inner(args));
    return CheckStored(args);
  };
  return hooks;
}

void Comparer::Trace(std::string_view op) {
  if (pending_ops_.find(op) != std::string::npos) return;
  pending_ops_ += pending_ops_.empty() ? "" : ", ";
  pending_ops_ += op;
}

// The rows lie bit for bit where they were sent, packed ones as PackRow packs them.
Status Comparer::CheckStored(const ops::StoreRowsArgs& args) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::byte> source,
                               ToHostBytes(subject_.context(), args.source));
  const auto row_bytes = static_cast<size_t>(args.StoredBytes());
  std::vector<float> values;  // Values of packed rows.
  if (args.pack.has_value()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(values, ToHostFloats(subject_.context(), args.source));
  }
  const auto width = static_cast<size_t>(args.source.shape[1]);
  std::vector<std::byte> packed(row_bytes);
  for (const RowRun& run : args.runs) {
    const TensorView place = TensorView::Contiguous(run.destination, DType::kU8,
                                                    {run.num_rows, args.StoredBytes()}, args.source.device);
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<std::byte> stored, ToHostBytes(subject_.context(), place));
    for (int64_t row = 0; row < run.num_rows; ++row) {
      const auto of_source = static_cast<size_t>(run.source_begin + row);
      const std::byte* want = source.data() + of_source * row_bytes;
      if (args.pack.has_value()) {
        DSV4_RETURN_IF_ERROR(
            PackRow(*args.pack, std::span(values).subspan(of_source * width, width), packed.data()));
        want = packed.data();
      }
      if (std::memcmp(stored.data() + static_cast<size_t>(row) * row_bytes, want, row_bytes) == 0) continue;
      // The head gathers its rows before the next op sees them.
      const bool head = last_tensor_.second == "ffn.streams";
      compared_.push_back({.layer = head ? -1 : last_tensor_.first,
                           .name = head ? "head.streams" : last_tensor_.second,
                           .ops = "store_rows",
                           .num_rows = args.source.shape[0],
                           .worst_error = kInfinity,
                           .worst_row = run.source_begin + row,
                           .first_bad_row = run.source_begin + row,
                           .sum_squared_difference = kInfinity});
      return {};
    }
  }
  return {};
}

void Comparer::OnTensor(int layer, std::string_view name, const TensorView& tensor) {
  // An op that writes several tensors stands for all of them.
  if (!pending_ops_.empty()) last_ops_ = std::exchange(pending_ops_, {});
  if (!status_.ok() || name.starts_with("pass.")) return;
  last_tensor_ = {layer, std::string(name)};
  if (!other_.Has(layer, name)) {
    absent_.insert(last_tensor_);
    return;
  }
  status_ = Compare(layer, name, tensor)
                .WithContext(layer < 0 ? std::string(name) : fmt::format("layer {}, {}", layer, name));
}

Status Comparer::Compare(int layer, std::string_view name, const TensorView& tensor) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> ours, ToHostFloats(subject_.context(), tensor));
  const int64_t num_rows = tensor.shape[0];
  const int64_t width = num_rows == 0 ? 0 : tensor.num_elements() / num_rows;
  // The head comes in several parts, and a step in several passes: rows go on where the last part ended.
  const auto [place, added] = index_.try_emplace({layer, std::string(name)}, compared_.size());
  if (added) {
    compared_.push_back({.layer = layer,
                         .name = std::string(name),
                         .ops = last_ops_,
                         .choice = tensor.dtype == DType::kI32,
                         .bound = bound_of_(name, tensor.dtype)});
  }
  Compared& compared = compared_[place->second];
  const int64_t first = compared.num_rows;
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> theirs,
                               other_.Rows(layer, name, first, num_rows, width));
  compared.num_rows += num_rows;
  if (name == "ffn.router.indices") {
    compared.by_table =
        subject_.model.config().layers[static_cast<size_t>(layer)].router == model::RouterKind::kTokenIds;
    compared.choices.insert(compared.choices.end(), theirs.begin(), theirs.end());
  }
  // The weights go with the choice that the router made.
  const auto choice =
      name == "ffn.router.weights" ? index_.find({layer, "ffn.router.indices"}) : index_.end();
  for (int64_t row = 0; row < num_rows; ++row) {
    if (choice != index_.end() && compared_[choice->second].reordered.contains(first + row)) continue;
    CompareRow(compared, first + row, RowOf(ours, row, width), RowOf(theirs, row, width));
    if (name == "logits") CompareLogits(RowOf(ours, row, width), RowOf(theirs, row, width));
  }
  if (!shared_inputs_ || num_rows == 0 || !CanSubstitute(layer, name)) return {};
  return FromHostFloats(subject_.context(), theirs, tensor);
}

// A choice of experts without its weights, or the weights alone, would mix two routings.
bool Comparer::CanSubstitute(int layer, std::string_view name) const {
  if (!name.starts_with("ffn.router.") || name == "ffn.router.logits") return true;
  return other_.Has(layer, "ffn.router.indices") && other_.Has(layer, "ffn.router.weights");
}

void Comparer::CompareRow(Compared& compared, int64_t row, std::span<const float> ours,
                          std::span<const float> theirs) const {
  if (compared.choice) {
    if (!std::equal(ours.begin(), ours.end(), theirs.begin())) compared.reordered.insert(row);
    if (SameSet(ours, theirs)) return;
    if (compared.num_flipped++ > 0) return;
    compared.first_bad_row = row;
    compared.our_choice.assign(ours.begin(), ours.end());
    compared.their_choice.assign(theirs.begin(), theirs.end());
    return;
  }
  double difference = 0;
  double norm = 0;
  const double error = RowError(ours, theirs, difference, norm);
  compared.sum_squared_difference += std::isfinite(error) ? difference : kInfinity;
  compared.sum_squared += norm;
  if (compared.name == "ffn.routed") compared.row_errors.push_back(error);
  if (error > compared.worst_error) {
    compared.worst_error = error;
    compared.worst_row = row;
  }
  if (error > compared.bound && compared.first_bad_row < 0) compared.first_bad_row = row;
}

void Comparer::CompareLogits(std::span<const float> ours, std::span<const float> theirs) {
  const double kl = SoftmaxKl(theirs, ours);
  const int64_t ours_best = ArgMax(ours);
  const int64_t theirs_best = ArgMax(theirs);
  if (ours_best != theirs_best) logits_.other_top1.push_back({logits_.num_rows, ours_best, theirs_best});
  logits_.kl.push_back(kl);
  logits_.margin.push_back(Margin(theirs));
  logits_.change.push_back(LargestChanges(ours, theirs, static_cast<int64_t>(ours.size()))[0]);
  logits_.num_rows += 1;
  logits_.sum_kl += kl;
  logits_.worst_kl = std::max(logits_.worst_kl, kl);
  logits_.num_same_top1 += ours_best == theirs_best ? 1 : 0;
}

}  // namespace dsv4::diag
