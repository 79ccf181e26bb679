// Comparison of values with bounds: steps of bf16, cosine, NaN in the same places.
#include "tests/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/number_formats.h"

namespace dsv4::testing {
namespace {

// bf16 values in order of magnitude and sign, one apart for neighbours; both zeros are 0.
int64_t OrderedBf16(float value) {
  const uint16_t bits = Bf16FromFloat(value);
  const auto magnitude = static_cast<int64_t>(bits & 0x7FFFU);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

bool SameNonFinite(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b;
}

// Fills what is wrong with sizes and non-finite places; empty when the elements can be compared.
std::string PlacesMessage(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size()) return fmt::format("{} elements, wanted {}", got.size(), want.size());
  if (got.empty()) return "nothing to compare";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(got[i]) && std::isfinite(want[i])) continue;
    if (!SameNonFinite(got[i], want[i]))
      return fmt::format("element {}: got {}, wanted {}", i, got[i], want[i]);
  }
  return "";
}

// `excess(i)` is how far element i is past its bound as a multiple of it: above 1 fails.
template <typename Excess>
Comparison CompareWith(std::span<const float> got, std::span<const float> want, double max_changed_share,
                       const Excess& excess) {
  Comparison result;
  if (result.message = PlacesMessage(got, want); !result.message.empty()) return result;
  double worst = -1;
  int64_t changed = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(want[i])) continue;
    if (got[i] != want[i]) ++changed;
    const double e = excess(i);
    if (e > worst) {
      worst = e;
      result.worst_index = static_cast<int64_t>(i);
    }
  }
  result.changed_share = static_cast<double>(changed) / static_cast<double>(got.size());
  result.passed = worst <= 1 && result.changed_share <= max_changed_share;
  const auto at = static_cast<size_t>(std::max<int64_t>(result.worst_index, 0));
  result.message = fmt::format(
      "element {}: got {:.9g}, wanted {:.9g}, {:.3g} of its bound; {:.3g}% of {} changed, allowed {:.3g}%",
      at, got[at], want[at], worst, 100 * result.changed_share, got.size(), 100 * max_changed_share);
  return result;
}

}  // namespace

double Bf16Epsilon() { return std::ldexp(1.0, -7); }
double Fp32Epsilon() { return std::numeric_limits<float>::epsilon(); }

ElementBound RoundedSumBound(double epsilon, int roundings, int64_t length, double magnitude) {
  return {.absolute = static_cast<double>(length) * Fp32Epsilon() / 2 * magnitude,
          .relative = std::max(1, roundings) * epsilon / 2};
}

Comparison CompareElements(std::span<const float> got, std::span<const float> want, ElementBound bound) {
  return CompareWith(got, want, 1.0, [&](size_t i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    const double allowed = bound.absolute + bound.relative * std::abs(static_cast<double>(want[i]));
    if (error == 0) return 0.0;
    return allowed > 0 ? error / allowed : std::numeric_limits<double>::infinity();
  });
}

Comparison CompareBf16(std::span<const float> got, std::span<const float> want, double max_changed_share,
                       double tiny) {
  return CompareWith(got, want, max_changed_share, [&](size_t i) {
    if (std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= tiny) return 0.0;
    if (RoundToBf16(got[i]) != got[i]) return std::numeric_limits<double>::infinity();
    return static_cast<double>(std::abs(OrderedBf16(got[i]) - OrderedBf16(want[i])));
  });
}

Comparison CompareExactly(std::span<const float> got, std::span<const float> want) {
  return CompareElements(got, want, {});
}

std::vector<double> RowCosines(std::span<const float> got, std::span<const float> want, int64_t width) {
  std::vector<double> cosines;
  if (got.size() != want.size() || width <= 0 || got.size() % static_cast<size_t>(width) != 0) return cosines;
  for (size_t row = 0; row < got.size(); row += static_cast<size_t>(width)) {
    double dot = 0;
    double got_square = 0;
    double want_square = 0;
    for (size_t i = row; i < row + static_cast<size_t>(width); ++i) {
      const double a = got[i];
      const double b = want[i];
      dot += a * b;
      got_square += a * a;
      want_square += b * b;
    }
    const double cosine =
        got_square == 0 && want_square == 0 ? 1.0 : dot / std::sqrt(got_square * want_square);
    cosines.push_back(std::isfinite(cosine) ? cosine : -1.0);
  }
  return cosines;
}

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

Comparison CheckCosines(std::span<const double> cosines, CosineBound bound) {
  Comparison result;
  if (cosines.empty()) {
    result.message = "no positions to compare (sizes differ?)";
    return result;
  }
  const std::vector<double> values(cosines.begin(), cosines.end());
  const auto worst = std::min_element(values.begin(), values.end());
  result.worst_index = worst - values.begin();
  const double median = Percentile(values, 50);
  const double p5 = Percentile(values, 5);
  result.passed = *worst >= bound.min && median >= bound.median && p5 >= bound.p5;
  result.message = fmt::format(
      "{} positions: median {:.7f} (bound {}), 5th percentile {:.7f} (bound {}), least {:.7f} at {} (bound "
      "{})",
      values.size(), median, bound.median, p5, bound.p5, *worst, result.worst_index, bound.min);
  return result;
}

}  // namespace dsv4::testing
