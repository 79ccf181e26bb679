// RMS, cosine, relative error, median, margins and KL of float vectors.
#include "diag/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsv4::diag {
namespace {

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float logit : logits) result.push_back(logit - highest - std::log(sum));
  return result;
}

}  // namespace

double Rms(std::span<const float> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double MaxAbs(std::span<const float> values) {
  double highest = 0;
  for (const float value : values) highest = std::max(highest, std::abs(static_cast<double>(value)));
  return highest;
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

double Cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  if (aa == 0 && bb == 0) return 1;
  if (aa == 0 || bb == 0) return 0;
  return dot / std::sqrt(aa * bb);
}

double Correlation(std::span<const double> a, std::span<const double> b, double least) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  const double lengths = std::sqrt(aa * bb);
  return lengths > least && std::isfinite(lengths) ? ab / lengths : 0;
}

double RelativeError(std::span<const float> a, std::span<const float> b) {
  if (std::equal(a.begin(), a.end(), b.begin(), b.end())) return 0;
  if (!AllFinite(a) || !AllFinite(b)) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst / std::max(Rms(a), Rms(b));
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int64_t ArgMax(std::span<const float> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

double Margin(std::span<const float> values) {
  const auto best = static_cast<size_t>(ArgMax(values));
  double second = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != best) second = std::max(second, static_cast<double>(values[i]));
  }
  return values[best] - second;
}

double LogProbability(std::span<const float> logits, int32_t token) {
  return LogSoftmax(logits)[static_cast<size_t>(token)];
}

double SoftmaxKl(std::span<const float> a, std::span<const float> b) {
  const std::vector<double> log_a = LogSoftmax(a);
  const std::vector<double> log_b = LogSoftmax(b);
  double kl = 0;
  for (size_t i = 0; i < log_a.size(); ++i) kl += std::exp(log_a[i]) * (log_a[i] - log_b[i]);
  return std::max(kl, 0.0);
}

}  // namespace dsv4::diag
