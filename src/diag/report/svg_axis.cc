// Axes of plots: ranges, ticks, linear and logarithmic scales, and texts of numbers.
#include "diag/report/svg_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dsv4::diag {
namespace {

constexpr double kEdge = 0.09;  // Margin of the axis, for each edge.

struct Range {
  double low = 0;
  double high = 0;
  bool any = false;
  bool beyond = false;  // Infinity or NaN.
  bool below = false;   // Not positive.
};

Range Cover(std::span<const double> values, bool positive_only) {
  Range range;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      range.beyond = true;
    } else if (positive_only && value <= 0) {
      range.below = true;
    } else {
      range.low = range.any ? std::min(range.low, value) : value;
      range.high = range.any ? std::max(range.high, value) : value;
      range.any = true;
    }
  }
  return range;
}

}  // namespace

Axis Axis::Linear(std::span<const double> values, int max_ticks) {
  Axis axis;
  const Range range = Cover(values, false);
  if (range.any) {
    axis.low_ = range.low;
    axis.high_ = range.high;
  }
  if (axis.low_ == axis.high_) {
    const double margin = axis.low_ == 0 ? 1 : std::abs(axis.low_) * 0.5;
    axis.low_ -= margin;
    axis.high_ += margin;
  }
  // The smallest step of 1, 2 or 5 times a power of ten that needs no more than max_ticks.
  const double rough = (axis.high_ - axis.low_) / std::max(1, max_ticks - 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * (1 - 1e-9)) step = factor * power;
  }
  if (range.beyond) {
    axis.end_ = 1 - kEdge;
    axis.ticks_.push_back({1, "∞, NaN"});
  }
  for (double i = std::ceil(axis.low_ / step - 1e-9); i * step <= axis.high_ + 1e-9 * step; ++i) {
    axis.ticks_.push_back({axis.At(i * step), fmt::format("{:.6g}", i == 0 ? 0.0 : i * step)});
  }
  return axis;
}

Axis Axis::Log(std::span<const double> values, int max_ticks) {
  Axis axis;
  axis.log_ = true;
  const Range range = Cover(values, true);
  axis.low_ = range.any ? std::floor(std::log10(range.low)) : -1;
  axis.high_ = range.any ? std::ceil(std::log10(range.high)) : 0;
  if (axis.low_ == axis.high_) axis.high_ += 1;
  if (range.below) {
    axis.begin_ = kEdge;
    axis.ticks_.push_back({0, "0"});
  }
  if (range.beyond) {
    axis.end_ = 1 - kEdge;
    axis.ticks_.push_back({1, "∞, NaN"});
  }
  const double step = std::max(1.0, std::ceil((axis.high_ - axis.low_) / std::max(1, max_ticks - 1)));
  for (double decade = axis.low_; decade <= axis.high_; decade += step) {
    const bool plain = decade >= -2 && decade <= 3;
    axis.ticks_.push_back({axis.At(std::pow(10.0, decade)), plain
                                                                ? fmt::format("{:g}", std::pow(10.0, decade))
                                                                : fmt::format("1e{:.0f}", decade)});
  }
  return axis;
}

double Axis::At(double value) const {
  if (!std::isfinite(value)) return 1;
  if (log_ && value <= 0) return 0;
  const double share = ((log_ ? std::log10(value) : value) - low_) / (high_ - low_);
  return begin_ + (end_ - begin_) * share;
}

std::string FigureText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
  return fmt::format("{:.4g}", value);
}

}  // namespace dsv4::diag
