#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace dsv4::sampling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Higher value first, lower id on ties: the one order every choice here uses.
struct Ranked {
  float value;
  int32_t id;
  bool operator<(const Ranked& other) const {
    return value != other.value ? value > other.value : id < other.id;
  }
};

// The `count` best of `logits` in order; -inf entries are left out.
std::vector<Ranked> BestOf(std::span<const float> logits, size_t count) {
  std::vector<Ranked> ranked;
  ranked.reserve(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > kMinusInfinity) ranked.push_back({logits[id], static_cast<int32_t>(id)});
  }
  count = std::min(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count), ranked.end());
  ranked.resize(count);
  return ranked;
}

double LogSumExp(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

}  // namespace

void PenaltyWindow::Add(int32_t token) {
  ++counts_[token];
  if (window_ == 0) return;  // Everything is seen: nothing ever leaves.
  recent_.push_back(token);
  if (recent_.size() > static_cast<size_t>(window_)) {
    const auto oldest = counts_.find(recent_.front());
    if (--oldest->second == 0) counts_.erase(oldest);
    recent_.pop_front();
  }
}

void ApplyLogitBias(const SamplingParams& params, std::span<float> logits) {
  for (const auto& [id, bias] : params.logit_bias) logits[static_cast<size_t>(id)] += bias;
}

void ApplyPenalties(const SamplingParams& params, const PenaltyWindow& seen, std::span<float> logits) {
  if (params.repetition_penalty == 1.0F && params.presence_penalty == 0.0F &&
      params.frequency_penalty == 0.0F)
    return;
  for (const auto& [id, count] : seen.counts()) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
}

std::vector<Candidate> FilterCandidates(const SamplingParams& params, std::span<const float> logits) {
  DSV4_CHECK(params.temperature > 0.0F) << "temperature " << params.temperature;
  const size_t keep = params.top_k > 0 ? static_cast<size_t>(params.top_k) : logits.size();
  const std::vector<Ranked> ranked = BestOf(logits, keep);
  DSV4_CHECK(!ranked.empty());

  // Probabilities of what top-k kept, in double so that the running sum of a large vocabulary stays exact
  // enough for top-p.
  std::vector<double> probabilities(ranked.size());
  double total = 0.0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    probabilities[i] =
        std::exp((static_cast<double>(ranked[i].value) - ranked[0].value) / params.temperature);
    total += probabilities[i];
  }

  size_t kept = ranked.size();
  if (params.top_p < 1.0F) {
    double sum = 0.0;
    for (kept = 0; kept < ranked.size() && sum < params.top_p * total; ++kept) sum += probabilities[kept];
    kept = std::max<size_t>(kept, 1);
  }
  while (kept > 1 && probabilities[kept - 1] < params.min_p * probabilities[0]) --kept;

  const double kept_total =
      std::accumulate(probabilities.begin(), probabilities.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  std::vector<Candidate> candidates(kept);
  for (size_t i = 0; i < kept; ++i) {
    candidates[i] = {ranked[i].id, static_cast<float>(probabilities[i] / kept_total)};
  }
  return candidates;
}

double UniformDraw(uint64_t seed, uint64_t index) {
  // SplitMix64 of a counter (Steele, Lea, Flood 2014): no state to carry, so a preempted or batched sequence
  // draws the same.
  const auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ index) >> 11) * 0x1.0p-53;
}

Sampler::Sampler(SamplingParams params, std::span<const uint8_t> allowed, int num_logprobs)
    : params_(std::move(params)),
      allowed_(allowed),
      num_logprobs_(num_logprobs),
      seen_(params_.penalty_window) {}

void Sampler::SeePrompt(std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) seen_.Add(token);
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, std::span<const uint64_t> permitted) {
  DSV4_CHECK(allowed_.empty() || allowed_.size() == logits.size())
      << "allowed " << allowed_.size() << ", logits " << logits.size();
  scratch_.assign(logits.begin(), logits.end());
  bool any_finite = false;
  for (size_t id = 0; id < scratch_.size(); ++id) {
    if (std::isnan(scratch_[id])) {
      return Error(
          Internal(fmt::format("sampling: logit of token {} is NaN at output token {}", id, num_sampled_)));
    }
    const bool forbidden =
        !permitted.empty() && (id / 64 >= permitted.size() || (permitted[id / 64] >> (id % 64) & 1) == 0);
    if (forbidden || (!allowed_.empty() && allowed_[id] == 0)) scratch_[id] = kMinusInfinity;
    any_finite = any_finite || std::isfinite(scratch_[id]);
  }
  if (!any_finite) {
    return Error(
        Internal(fmt::format("sampling: no token has a finite logit at output token {}", num_sampled_)));
  }
  ApplyLogitBias(params_, scratch_);
  ApplyPenalties(params_, seen_, scratch_);

  SampledToken sampled;
  if (params_.temperature == 0.0F) {
    // The first of equals, which BestOf takes too.
    sampled.id = static_cast<int32_t>(std::max_element(scratch_.begin(), scratch_.end()) - scratch_.begin());
  } else {
    const std::vector<Candidate> candidates = FilterCandidates(params_, scratch_);
    double remaining = UniformDraw(params_.seed, num_sampled_);
    sampled.id = candidates.back().id;  // Rounding may leave a sliver above the last sum.
    for (const Candidate& candidate : candidates) {
      remaining -= candidate.probability;
      if (remaining < 0.0) {
        sampled.id = candidate.id;
        break;
      }
    }
  }

  if (num_logprobs_ >= 0) {
    const double normaliser = LogSumExp(logits);
    const auto logprob = [&](float logit) { return static_cast<float>(logit - normaliser); };
    sampled.logprob = logprob(logits[static_cast<size_t>(sampled.id)]);
    for (const Ranked& best : BestOf(logits, static_cast<size_t>(num_logprobs_))) {
      sampled.top.push_back({best.id, logprob(best.value)});
    }
  }
  seen_.Add(sampled.id);
  ++num_sampled_;
  return sampled;
}

}  // namespace dsv4::sampling
