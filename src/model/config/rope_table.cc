// Rotary frequencies with and without YaRN's ramp.
#include "model/config/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dsv4::model {
namespace {

// The pair that makes `rotations` full turns over the original context, as a real number.
double CorrectionPair(const RopeConfig& config, int64_t rope_dim, double rotations) {
  const auto context = static_cast<double>(config.original_max_position_embeddings);
  return static_cast<double>(rope_dim) * std::log(context / (2 * std::numbers::pi * rotations)) /
         (2 * std::log(config.theta));
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeConfig& config, int64_t rope_dim) {
  std::vector<float> frequencies(static_cast<size_t>(rope_dim / 2));
  double low = 0;
  double high = 0;
  if (config.yarn) {
    low = std::max(std::floor(CorrectionPair(config, rope_dim, config.beta_fast)), 0.0);
    high = std::min(std::ceil(CorrectionPair(config, rope_dim, config.beta_slow)),
                    static_cast<double>(rope_dim - 1));
    if (low == high) high += 0.001;  // A step instead of a division by zero.
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(config.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
    if (config.yarn) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequency = frequency / config.factor * ramp + frequency * (1 - ramp);
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace dsv4::model
