// Wilson intervals of shares and bootstrapped intervals of means.
#include "apps/eval/intervals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace dsv4::apps {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

std::string ToText(const Interval& interval, int digits) {
  if (!std::isfinite(interval.low)) return fmt::format("{:.{}f}", interval.value, digits);
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", interval.value, digits, interval.low, digits,
                     interval.high, digits);
}

Json ToJson(const Interval& interval) {
  return {{"value", NumberOrNull(interval.value)},
          {"low", NumberOrNull(interval.low)},
          {"high", NumberOrNull(interval.high)}};
}

Interval ShareInterval(int64_t successes, int64_t trials) {
  if (trials == 0) return {kNone, kNone, kNone};
  constexpr double kZ = 1.959964;
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(successes) / n;
  const double scale = 1 + kZ * kZ / n;
  const double middle = (share + kZ * kZ / (2 * n)) / scale;
  const double half = kZ / scale * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  return {share, std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Interval MeanInterval(std::span<const Block> blocks) {
  const auto mean = [](const Block& block) { return block.count > 0 ? block.sum / block.count : kNone; };
  Block all;
  for (const Block& block : blocks) {
    all.sum += block.sum;
    all.count += block.count;
  }
  if (blocks.size() < 2 || !std::isfinite(all.sum)) return {mean(all), kNone, kNone};
  constexpr int kDraws = 2000;
  std::mt19937_64 random(1);
  std::vector<double> means;
  for (int draw = 0; draw < kDraws; ++draw) {
    Block drawn;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[random() % blocks.size()];
      drawn.sum += block.sum;
      drawn.count += block.count;
    }
    means.push_back(mean(drawn));
  }
  std::sort(means.begin(), means.end());
  return {mean(all), means[static_cast<size_t>(0.025 * kDraws)], means[static_cast<size_t>(0.975 * kDraws)]};
}

void Blocks::Add(double term) {
  if (begins_ || blocks_.back().count >= kBlockTerms) blocks_.emplace_back();
  begins_ = false;
  blocks_.back().sum += term;
  blocks_.back().count += 1;
}

double Blocks::sum() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), 0.0,
                         [](double sum, const Block& block) { return sum + block.sum; });
}

double Blocks::count() const {
  return std::accumulate(blocks_.begin(), blocks_.end(), 0.0,
                         [](double sum, const Block& block) { return sum + block.count; });
}

}  // namespace dsv4::apps
