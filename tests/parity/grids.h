// The grids of narrow formats, written down arithmetically: the nearest multiple of a step that depends on the binade.
#pragma once

#include <cmath>

namespace dsv4::test {

inline double NearestE4m3(double x) {
  const double magnitude = std::fabs(x);
  const int exponent =
      magnitude < std::ldexp(1.0, -6) ? -6 : static_cast<int>(std::floor(std::log2(magnitude)));
  const double step = std::ldexp(1.0, exponent - 3);
  return std::nearbyint(x / step) * step;
}

inline double NearestE2m1(double x) {
  const double magnitude = std::fabs(x);
  const double step = magnitude < 2 ? 0.5 : (magnitude < 4 ? 1.0 : 2.0);
  return std::nearbyint(x / step) * step;
}

}  // namespace dsv4::test
