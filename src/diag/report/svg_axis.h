// The arithmetic of a plot's axis: a range that covers the values, and round numbers to mark it with. Values
// that no range covers have marks of their own.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dsv4::diag {

struct Tick {
  double place = 0;  // 0 (begin of the axis) .. 1 (end).
  std::string label;
};

class Axis {
 public:
  // Covers every finite value; a logarithmic axis whole decades of the positive ones. Without any: 0..1.
  static Axis Linear(std::span<const double> values, int max_ticks);
  // Has an edge below for zeros and negative values if there are some, as both kinds have one above for
  // infinity and NaN.
  static Axis Log(std::span<const double> values, int max_ticks);

  // 0..1, also for values that only an edge can show.
  double At(double value) const;
  const std::vector<Tick>& ticks() const& { return ticks_; }

 private:
  bool log_ = false;
  double low_ = 0;
  double high_ = 1;
  double begin_ = 0;  // Ends of the axis at low_ and high_.
  double end_ = 1;
  std::vector<Tick> ticks_;
};

// 4 significant digits; "infinity" and "NaN" as words.
std::string FigureText(double value);

}  // namespace dsv4::diag
