// Mean time of the slowest tier when experts are drawn at random.
#include "model/placement/expert_draws.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dsv4::model {
namespace {

constexpr double kNegligible = 1e-12;  // The probability of what is left out.

class Counts {
 public:
  explicit Counts(int64_t most) {
    for (int64_t n = 0; n <= most; ++n) log_factorials_.push_back(std::lgamma(static_cast<double>(n) + 1.0));
  }

  // Probability of `k` marked ones when `drawn` of `total` things, `marked` of them, are taken at once.
  double Hypergeometric(int64_t total, int64_t marked, int64_t drawn, int64_t k) const {
    if (k < 0 || k > marked || drawn - k < 0 || drawn - k > total - marked) return 0;
    return std::exp(LogWays(marked, k) + LogWays(total - marked, drawn - k) - LogWays(total, drawn));
  }
  // Probability of `k` successes in `trials` with the probability `p` each.
  double Binomial(int64_t trials, double p, int64_t k) const {
    if (p <= 0) return k == 0 ? 1 : 0;
    if (p >= 1) return k == trials ? 1 : 0;
    return std::exp(LogWays(trials, k) + static_cast<double>(k) * std::log(p) +
                    static_cast<double>(trials - k) * std::log1p(-p));
  }

 private:
  double LogWays(int64_t n, int64_t k) const { return At(n) - At(k) - At(n - k); }
  double At(int64_t n) const { return log_factorials_[static_cast<size_t>(n)]; }

  std::vector<double> log_factorials_;
};

// By number: how probable it is that the tokens choose so many different experts.
std::vector<double> DifferentExperts(const ExpertDraws& draws, int64_t chosen, const Counts& counts) {
  std::vector<double> now(static_cast<size_t>(draws.num_experts) + 1);
  now[0] = 1;
  for (int64_t token = 0; token < draws.batch; ++token) {
    std::vector<double> next(now.size());
    for (int64_t before = 0; before <= draws.num_experts; ++before) {
      const double p = now[static_cast<size_t>(before)];
      if (p < kNegligible) continue;
      for (int64_t fresh = 0; fresh <= std::min(chosen, draws.num_experts - before); ++fresh) {
        next[static_cast<size_t>(before + fresh)] +=
            p * counts.Hypergeometric(draws.num_experts, draws.num_experts - before, chosen, fresh);
      }
    }
    now = std::move(next);
  }
  return now;
}

// By number: how probable it is that so many of `taken` experts, none of them the host's, are brought.
std::vector<double> Brought(const ExpertDraws& draws, int64_t taken, const Counts& counts) {
  std::vector<double> probabilities(static_cast<size_t>(taken) + 1);
  for (int64_t cached = 0; cached <= std::min(taken, draws.cached); ++cached) {
    const double p = counts.Hypergeometric(draws.num_experts - draws.host, draws.cached, taken, cached);
    if (p < kNegligible) continue;
    for (int64_t missed = 0; missed <= cached; ++missed) {
      probabilities[static_cast<size_t>(missed)] += p * counts.Binomial(cached, draws.miss_share, missed);
    }
  }
  return probabilities;
}

}  // namespace

double MeanSlowestTier(const ExpertDraws& draws, const TierSeconds& seconds) {
  const Counts counts(draws.num_experts);
  // Whichever experts the tokens choose: each set of so many is as probable as another.
  const std::vector<double> different =
      DifferentExperts(draws, std::min(draws.top_k, draws.num_experts), counts);
  std::vector<std::vector<double>> brought(
      different.size());  // By those that are not the host's; empty: not yet counted.
  double mean = 0;
  for (int64_t all = 0; all <= draws.num_experts; ++all) {
    for (int64_t host = 0; host <= std::min(all, draws.host); ++host) {
      const double p = different[static_cast<size_t>(all)] *
                       counts.Hypergeometric(draws.num_experts, draws.host, all, host);
      if (p < kNegligible) continue;
      std::vector<double>& of_device = brought[static_cast<size_t>(all - host)];
      if (of_device.empty()) of_device = Brought(draws, all - host, counts);
      const double without_link = std::max(static_cast<double>(host) * seconds.host,
                                           static_cast<double>(all - host) * seconds.device);
      for (size_t missed = 0; missed < of_device.size(); ++missed)
        mean += p * of_device[missed] * std::max(without_link, static_cast<double>(missed) * seconds.link);
    }
  }
  return mean;
}

}  // namespace dsv4::model
