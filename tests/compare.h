// Comparing numbers with golden ones, for every test that does.
//
// A comparison first asks for non-finite values at the same indices, then for each element, then for the
// share of elements that are not bit-equal. Rounding points that are left out change many elements by one
// step. Honest sums in another order change few. Bounds follow from the dtype and the length of a sum, never
// from a typed constant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dsv4::testing {

struct Comparison {
  bool passed = false;
  std::string message;       // Worst element, both values, the bound and the share that changed.
  int64_t worst_index = -1;  // -1 when sizes or non-finite places differ, or nothing was compared.
  double changed_share = 0;  // Elements that are not equal.
};

// The distance of neighbouring values at 1: 2^-7 for bf16, 2^-23 for fp32.
double Bf16Epsilon();
double Fp32Epsilon();

struct ElementBound {
  double absolute = 0;  // |got - want| <= absolute + relative * |want|
  double relative = 0;
};

// Bound of a value that went through `roundings` roundings of `epsilon`, half a step each. They are on top of
// a sum of `length` products, accumulated in fp32, whose magnitudes add up to at most `magnitude`.
ElementBound RoundedSumBound(double epsilon, int roundings, int64_t length, double magnitude);

// Sizes differ, nothing to compare, a NaN or infinity (with its sign) in other places, or an element past the
// bound: fails.
Comparison CompareElements(std::span<const float> got, std::span<const float> want, ElementBound bound);

// For values on the bf16 grid. Each is at most one step from its golden value, or `tiny` apart for results
// that cancelled. No more than `max_changed_share` of them changed.
Comparison CompareBf16(std::span<const float> got, std::span<const float> want, double max_changed_share,
                       double tiny = 0);

// Bit-equal but for the sign of zero.
Comparison CompareExactly(std::span<const float> got, std::span<const float> want);

// Cosine of each row of `width`. A row with a non-finite value, or zero where the other is not, counts as -1.
std::vector<double> RowCosines(std::span<const float> got, std::span<const float> want, int64_t width);

struct CosineBound {
  double min = -1;
  double median = -1;
  double p5 = -1;  // 5th percentile, interpolated as NumPy does.
};
double Percentile(std::vector<double> values, double percent);
// No rows: fails.
Comparison CheckCosines(std::span<const double> cosines, CosineBound bound);

}  // namespace dsv4::testing
