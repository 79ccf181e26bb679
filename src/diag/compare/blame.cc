// Blame for an error: the op whose own error is unusual for its kind, and experts or tokens behind bad rows.
#include "diag/compare/blame.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr size_t kMaxExpertsNamed = 4;
constexpr size_t kMinLayers = 3;  // Fewer say nothing about what is usual.
// Rows that are off and rows that are not lie so far apart at least.
constexpr double kGap = 2;
// Share of an expert's rows that must be off, and of the rows that are off that must be explained.
constexpr double kMostRows = 0.95;

bool Differs(const Compared& tensor) {
  return tensor.choice ? tensor.num_flipped > 0 : tensor.error() > 0 || !std::isfinite(tensor.error());
}

// The error that rows which are not off do not exceed: below the widest gap. Infinite without one.
double LimitOfQuietRows(std::span<const double> errors) {
  std::vector<double> sorted(errors.begin(), errors.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() == 0) return 0;
  double limit = HUGE_VAL;
  double widest = kGap;
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    if (sorted[i + 1] < widest * sorted[i]) continue;
    widest = sorted[i + 1] / sorted[i];
    limit = sorted[i];
  }
  return limit;
}

}  // namespace

const Compared* MostUnusual(const std::vector<Compared>& own) {
  std::vector<double> all;
  std::map<std::string, std::vector<double>> by_name;
  for (const Compared& tensor : own) {
    if (tensor.choice || std::isnan(tensor.error())) continue;
    all.push_back(tensor.error());
    by_name[tensor.name].push_back(tensor.error());
  }
  const double usual = Median(all);
  const Compared* most = nullptr;
  double highest = 0;
  for (const Compared& tensor : own) {
    if (!Differs(tensor)) continue;
    if (usual == 0) return &tensor;
    if (tensor.choice) continue;
    const std::vector<double>& same = by_name[tensor.name];
    const double expected = same.size() < kMinLayers ? usual : Median(same);
    const double ratio = expected > 0 ? tensor.error() / expected : HUGE_VAL;
    if (ratio > highest) {
      highest = ratio;
      most = &tensor;
    }
  }
  return most;
}

std::vector<int64_t> ExpertsBehind(std::span<const double> row_errors, std::span<const float> choices) {
  if (row_errors.empty() || choices.size() % row_errors.size() != 0) return {};
  const size_t top_k = choices.size() / row_errors.size();
  const double limit = LimitOfQuietRows(row_errors);
  struct Rows {
    int64_t num_chosen = 0;
    std::set<size_t> off;
  };
  std::map<int64_t, Rows> experts;
  size_t num_off = 0;
  for (size_t row = 0; row < row_errors.size(); ++row) {
    const bool off = row_errors[row] > limit;
    num_off += off ? 1 : 0;
    for (const float choice : choices.subspan(row * top_k, top_k)) {
      Rows& rows = experts[static_cast<int64_t>(choice)];
      ++rows.num_chosen;
      if (off) rows.off.insert(row);
    }
  }
  if (num_off == 0 || num_off == row_errors.size()) return {};
  // Experts whose rows are all off, the one that explains most of what is left first.
  std::set<size_t> explained;
  std::vector<int64_t> named;
  while (static_cast<double>(explained.size()) < kMostRows * static_cast<double>(num_off)) {
    if (named.size() == kMaxExpertsNamed) return {};
    int64_t best = -1;
    size_t most = 0;
    for (const auto& [expert, rows] : experts) {
      if (static_cast<double>(rows.off.size()) < kMostRows * static_cast<double>(rows.num_chosen)) continue;
      const auto gain = static_cast<size_t>(std::count_if(
          rows.off.begin(), rows.off.end(), [&](size_t row) { return !explained.contains(row); }));
      if (gain > most) {
        most = gain;
        best = expert;
      }
    }
    if (best < 0) return {};
    named.push_back(best);
    explained.insert(experts[best].off.begin(), experts[best].off.end());
  }
  std::sort(named.begin(), named.end());
  return named;
}

}  // namespace dsv4::diag
