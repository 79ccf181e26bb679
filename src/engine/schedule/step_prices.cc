// Prices of steps, learnt from those that ran.
#include "engine/schedule/step_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dsv4::engine {
namespace {

// Weight of the newest step. It weighs more, the longer ago the one before was.
constexpr double kNewest = 0.2;
constexpr double kOfAge = 0.01;
// Part of a step's deviation that holds for steps of other sizes too: a longer context makes all of them
// slower.
constexpr double kShared = 0.5;

}  // namespace

int PriceCurve::IndexOf(int64_t rows) {
  const double octaves = std::log2(static_cast<double>(std::clamp<int64_t>(rows, 1, kMostRows)));
  return static_cast<int>(std::lround(2.0 * octaves));
}

void PriceCurve::Saw(int64_t rows, double seconds) {
  if (rows < 1 || !(seconds > 0.0)) return;
  Point& point = points_[static_cast<size_t>(IndexOf(rows))];
  smallest_ = smallest_ == 0 ? rows : std::min(smallest_, rows);
  largest_ = std::max(largest_, rows);
  for (Point& other : points_) ++other.age;
  const int64_t age = std::exchange(point.age, 0);
  const auto count = static_cast<double>(rows);
  if (point.seen++ == 0) {
    point.rows = count;
    point.seconds = seconds;
    return;
  }
  // The first step of a size also pays for memory that later ones find.
  if (point.seen == 2 && seconds < point.seconds) {
    point.rows = count;
    point.seconds = seconds;
    return;
  }
  const double weight = std::min(1.0, kNewest + kOfAge * static_cast<double>(age));
  const double before = point.seconds;
  // A step that something else held up says little.
  point.seconds += weight * (std::clamp(seconds, before / 2.0, before * 2.0) - before);
  point.rows += weight * (count - point.rows);
  const double change = std::pow(point.seconds / before, kShared);
  for (Point& other : points_) {
    if (&other != &point) other.seconds *= change;
  }
}

double PriceCurve::At(int64_t rows) const {
  const auto wanted = static_cast<double>(std::max<int64_t>(rows, 1));
  // From above: the least of all larger points, then the line to the one below.
  const Point* above = nullptr;
  double least = 0.0;
  for (size_t i = points_.size(); i-- > 0;) {
    const Point& point = points_[i];
    if (point.seen == 0) continue;
    if (point.rows >= wanted) {
      if (above == nullptr || point.seconds < least) least = point.seconds;
      above = &point;
      continue;
    }
    if (above == nullptr) return point.seconds * wanted / point.rows;
    const double below = std::min(point.seconds, least);
    return below + (least - below) * (wanted - point.rows) / (above->rows - point.rows);
  }
  return least;  // No more than the smallest.
}

void StepPrices::RecordStep(int64_t decode, int64_t prefill, double seconds) {
  if (prefill > 0) {
    mixed_.Saw(decode + prefill, seconds);
  } else {
    decode_.Saw(decode, seconds);
  }
}

double StepPrices::Mixed(int64_t decode, int64_t prefill) const {
  const int64_t rows = decode + prefill;
  const int64_t least = mixed_.smallest();
  const double of_decode = decode > 0 ? Decode(decode) : 0.0;
  if (rows >= least) return std::max(mixed_.At(rows), of_decode);
  // Smaller steps than were seen: between one without prompts and the smallest.
  const double of_least = std::max(mixed_.At(least), of_decode);
  return of_decode +
         (of_least - of_decode) * static_cast<double>(prefill) / static_cast<double>(least - decode);
}

}  // namespace dsv4::engine
