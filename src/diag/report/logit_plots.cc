// Plots of logits by position: margin of the best token, and changes that another run makes.
#include "diag/report/logit_plots.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

std::span<const float> Row(std::span<const float> logits, size_t row, int64_t vocab_size) {
  return logits.subspan(row * static_cast<size_t>(vocab_size), static_cast<size_t>(vocab_size));
}

Series ByPosition(std::string name, const std::vector<double>& values, int color, SeriesStyle style) {
  Series series{.name = std::move(name), .style = style, .color = color};
  for (size_t i = 0; i < values.size(); ++i) series.Add(static_cast<double>(i), values[i]);
  return series;
}

}  // namespace

PositionLogits MeasureLogits(std::span<const float> logits, int64_t vocab_size) {
  constexpr size_t kTop = 5;
  PositionLogits measured;
  for (size_t row = 0; row < logits.size() / static_cast<size_t>(vocab_size); ++row) {
    const std::span<const float> values = Row(logits, row, vocab_size);
    measured.margin.push_back(Margin(values));
    std::vector<float> sorted(values.begin(), values.end());
    const size_t count = std::min(kTop, sorted.size());
    // NaN orders with nothing; such a row has no probabilities.
    if (!AllFinite(values)) {
      measured.top1.push_back(std::numeric_limits<double>::quiet_NaN());
      measured.top5.push_back(std::numeric_limits<double>::quiet_NaN());
      continue;
    }
    std::partial_sort(sorted.begin(), sorted.begin() + static_cast<int64_t>(count), sorted.end(),
                      std::greater<>());
    double all = 0;
    for (const float logit : values) all += std::exp(static_cast<double>(logit) - sorted[0]);
    double top = 0;
    for (size_t i = 0; i < count; ++i) top += std::exp(static_cast<double>(sorted[i]) - sorted[0]);
    measured.top1.push_back(1 / all);
    measured.top5.push_back(top / all);
  }
  return measured;
}

std::vector<double> LargestChanges(std::span<const float> a, std::span<const float> b, int64_t vocab_size) {
  std::vector<double> largest;
  for (size_t row = 0; row < a.size() / static_cast<size_t>(vocab_size); ++row) {
    const std::span<const float> x = Row(a, row, vocab_size);
    const std::span<const float> y = Row(b, row, vocab_size);
    double change = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i]) continue;
      const double delta = std::abs(static_cast<double>(x[i]) - y[i]);
      change = std::isfinite(delta) ? std::max(change, delta) : std::numeric_limits<double>::infinity();
    }
    largest.push_back(change);
  }
  return largest;
}

Plot MarginPlot(const PositionLogits& logits, const std::vector<LogitChange>& changes) {
  Plot plot{
      .title = "Margin of the best token, by position",
      .reading =
          "How far the highest logit leads the second. Where the lead is small, rounding decides the token.",
      .x_label = "position",
      .y_label = "difference of logits",
      .log_y = true};
  plot.series.push_back(ByPosition("lead of the best token", logits.margin, 0, SeriesStyle::kLine));
  for (size_t i = 0; i < changes.size(); ++i) {
    plot.series.push_back(ByPosition("largest change: " + changes[i].name, changes[i].largest,
                                     static_cast<int>(i) + 1, SeriesStyle::kPoints));
  }
  if (!changes.empty()) plot.reading += " Where a change reaches half the lead, another token can win.";
  return plot;
}

Plot TopPlot(const PositionLogits& logits) {
  Plot plot{
      .title = "Probability of the best tokens, by position",
      .reading =
          "A model that reads its prompt as it was trained to is often sure; one that is never sure, or "
          "always, was fed or computed wrongly.",
      .x_label = "position",
      .y_label = "probability"};
  plot.series = {ByPosition("most probable", logits.top1, 0, SeriesStyle::kLine),
                 ByPosition("five most probable", logits.top5, 1, SeriesStyle::kLine)};
  return plot;
}

}  // namespace dsv4::diag
