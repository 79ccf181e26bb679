// LogSum: the sum in log-probabilities, defined to the last bit in whatever order it is made. So every backend makes the same.
//
//   weight  e^(logit - highest) in double by ExpInSteps, cut to a multiple of 2^-63; 0 below e^-44.
//   sum     of all weights, as an integer of 2^-63, exact: the high and the low half of each weight are added up apart.
//   log     highest + ln(sum) in double, on the host; a log-probability is a logit less that, rounded to float.
//
// The sum of a vocabulary is off by less than 2^-45 of it, and each exponential by less than 2^-51.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace dsv4::sampling {

// e^x in steps of 2^-63, for x <= 0. Every operation is rounded by itself: callers are compiled without fusing. Device code calls it too.
constexpr uint64_t ExpInSteps(double x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2, as in ExpOfNonPositive.
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kHighLn2 = 6.93147180369123816490e-01;  // Products with n are exact.
  constexpr double kLowLn2 = 1.90821492927058770002e-10;
  if (!(x >= -44.0)) return 0;
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kHighLn2) - n * kLowLn2;
  constexpr double kInverses[] = {1.0 / 12, 1.0 / 11, 1.0 / 10, 1.0 / 9, 1.0 / 8, 1.0 / 7,
                                  1.0 / 6,  1.0 / 5,  1.0 / 4,  1.0 / 3, 1.0 / 2, 1.0};
  double series = 1.0 + r * (1.0 / 13);
  for (const double inverse : kInverses) series = 1.0 + r * inverse * series;
  const auto power = std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kRound) + 63;
  return static_cast<uint64_t>(std::bit_cast<double>(std::bit_cast<uint64_t>(series) + (power << 52)));
}

struct LogSum {
  float highest = -std::numeric_limits<float>::infinity();
  uint64_t high = 0;  // Sum of the high 32 bits of all weights,
  uint64_t low = 0;   // and of the low ones.

  void Add(float logit) {
    const uint64_t steps = ExpInSteps(static_cast<double>(logit) - static_cast<double>(highest));
    high += steps >> 32;
    low += steps & 0xFFFFFFFFU;
  }
  double Log() const {
    return static_cast<double>(highest) +
           std::log(static_cast<double>(high) * 0x1p-31 + static_cast<double>(low) * 0x1p-63);
  }
};

// Sum of all of them; NaN or +infinity among them, or nothing finite, makes every log-probability NaN.
LogSum SumOf(std::span<const float> logits);

}  // namespace dsv4::sampling
