#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

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

// The loops over the vocabulary below are written so that the compiler makes vector code of them: lanes that stay apart, and no way out.
constexpr size_t kBlock = 64;

float Highest(std::span<const float> values) {
  float lanes[kBlock];
  std::fill(std::begin(lanes), std::end(lanes), kMinusInfinity);
  size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    for (size_t j = 0; j < kBlock; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  }
  for (size_t j = 0; i + j < values.size(); ++j) lanes[j] = std::max(lanes[j], values[i + j]);
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

// The first of equals; `value` is among `values`.
size_t FirstPlaceOf(float value, std::span<const float> values) {
  size_t i = 0;
  for (; i + kBlock <= values.size(); i += kBlock) {
    unsigned found = 0;
    for (size_t j = 0; j < kBlock; ++j) found |= values[i + j] == value ? 1U : 0U;
    if (found != 0) break;
  }
  while (values[i] != value) ++i;
  return i;
}

// e^x for x <= 0, off by less than 3e-7 of it; 0 below -87, where floats lose their precision.
float ExpOfNonPositive(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds n to an integer, in the sum's low bits.
  constexpr float kRound = 12582912.0F;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r =
      (x - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts; products with the first are exact.
  const float tail = 1.0F / 24 + r * (1.0F / 120 + r * (1.0F / 720 + r * (1.0F / 5040)));
  const float series = 1.0F + r * (1.0F + r * (0.5F + r * (1.0F / 6 + r * tail)));
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const uint32_t keep = x < -87.0F ? 0U : ~0U;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(series) + (power << 23)) & keep);
}

// Every logit to its weight e^((logit - highest) / temperature).
void Weigh(std::span<float> logits, float highest, float temperature) {
  for (float& value : logits) value = ExpOfNonPositive((value - highest) / temperature);
}

double Sum(std::span<const float> values) {
  double lanes[4] = {};
  size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) lanes[j] += static_cast<double>(values[i + j]);
  }
  for (; i < values.size(); ++i) lanes[0] += static_cast<double>(values[i]);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

double LogSumExp(std::span<const float> logits) {
  const double highest = Highest(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

double TotalWeight(std::span<const float> logits, float highest, float temperature) {
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); i += kBlock) {
    float weights[kBlock];
    const std::span<float> block(weights, std::min(kBlock, logits.size() - i));
    std::copy_n(logits.data() + i, block.size(), weights);
    Weigh(block, highest, temperature);
    total += Sum(block);
  }
  return total;
}

// The entries of `logits`, which outlive this, from the best to the worst, ranked only as far as somebody looks; -inf is left out.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits) : logits_(logits) {
    for (size_t i = 0; i < logits.size(); i += kBlock) highest_.push_back(Highest(Block(i)));
  }
  // Null behind the last.
  const Ranked* At(size_t rank) {
    if (rank >= ranked_.size() && !complete_)
      RankAtLeast(std::max({rank + 1, kFirstLook, 8 * ranked_.size()}));
    return rank < ranked_.size() ? &ranked_[rank] : nullptr;
  }

 private:
  static constexpr size_t kFirstLook = 64;  // A language model is rarely in doubt between more.

  std::span<const float> Block(size_t begin) const {
    return logits_.subspan(begin, std::min(kBlock, logits_.size() - begin));
  }

  void RankAtLeast(size_t count) {
    // So many blocks have an entry as high as this, and all entries that are as high are the best ones.
    float lowest = std::numeric_limits<float>::lowest();
    complete_ = count >= highest_.size();
    if (!complete_) {
      std::vector<float> highest = highest_;
      const auto nth = highest.begin() + static_cast<std::ptrdiff_t>(count - 1);
      std::nth_element(highest.begin(), nth, highest.end(), std::greater<>());
      complete_ = *nth == kMinusInfinity;
      if (!complete_) lowest = *nth;
    }
    ranked_.clear();
    for (size_t i = 0; i < logits_.size(); i += kBlock) {
      if (highest_[i / kBlock] < lowest) continue;
      for (size_t id = i; id < i + Block(i).size(); ++id) {
        if (logits_[id] >= lowest) ranked_.push_back({logits_[id], static_cast<int32_t>(id)});
      }
    }
    std::sort(ranked_.begin(), ranked_.end());
  }

  std::span<const float> logits_;
  std::vector<float> highest_;  // Of each block.
  std::vector<Ranked> ranked_;
  bool complete_ = false;
};

bool HasFilters(const SamplingParams& params) {
  return params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F;
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F;
}

// The token at `uniform` of the way through all weights, in the order of ids.
int32_t DrawFromAll(std::span<const float> weights, double uniform) {
  const auto block = [&](size_t begin) {
    return weights.subspan(begin, std::min(kBlock, weights.size() - begin));
  };
  double total = 0.0;
  for (size_t i = 0; i < weights.size(); i += kBlock) total += Sum(block(i));
  double remaining = uniform * total;
  for (size_t i = 0; i < weights.size(); i += kBlock) {
    if (const double sum = Sum(block(i)); remaining >= sum) {
      remaining -= sum;
      continue;
    }
    for (size_t j = i; j < i + block(i).size(); ++j) {
      remaining -= static_cast<double>(weights[j]);
      if (remaining < 0.0) return static_cast<int32_t>(j);
    }
  }
  // Rounding may leave a sliver above the last sum.
  size_t last = weights.size() - 1;
  while (weights[last] == 0.0F) --last;
  return static_cast<int32_t>(last);
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
  if (!HasPenalties(params)) return;
  for (const auto& [id, count] : seen.counts()) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0.0F ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
}

std::vector<Candidate> FilterCandidates(const SamplingParams& params, std::span<const float> logits) {
  DSV4_CHECK(params.temperature > 0.0F) << "temperature " << params.temperature;
  Ranking ranking(logits);
  const Ranked* best = ranking.At(0);
  DSV4_CHECK(best != nullptr) << "no token has a finite logit";
  const float highest = best->value;
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - highest) / params.temperature);
  };
  const size_t most = params.top_k > 0 ? static_cast<size_t>(params.top_k) : logits.size();
  double wanted = std::numeric_limits<double>::infinity();  // Of the weights that top-k leaves.
  if (params.top_p < 1.0F && most < logits.size()) {
    double total = 0.0;
    for (size_t i = 0; i < most && ranking.At(i) != nullptr; ++i) total += weight(ranking.At(i)->value);
    wanted = params.top_p * total;
  } else if (params.top_p < 1.0F) {
    wanted = params.top_p * TotalWeight(logits, highest, params.temperature);
  }

  std::vector<double> weights;
  double sum = 0.0;
  while (weights.size() < most && sum < wanted) {
    const Ranked* next = ranking.At(weights.size());
    if (next == nullptr || weight(next->value) < params.min_p) break;  // The first has weight 1.
    weights.push_back(weight(next->value));
    sum += weights.back();
  }
  std::vector<Candidate> candidates(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    candidates[i] = {ranking.At(i)->id, static_cast<float>(weights[i] / sum)};
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
  for (const int32_t token : prompt) See(token);
}

void Sampler::See(int32_t token) {
  if (HasPenalties(params_)) seen_.Add(token);
}

Status Sampler::TakePermitted(std::span<const float> logits, std::span<const uint64_t> permitted) {
  scratch_.resize(logits.size());
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    static_assert(kBlock == 64, "one word of `permitted`");
    const size_t size = std::min(kBlock, logits.size() - begin);
    const float* from = logits.data() + begin;
    float* to = scratch_.data() + begin;
    unsigned bad = 0;
    for (size_t j = 0; j < size; ++j) {
      to[j] = from[j];
      bad |= from[j] <= std::numeric_limits<float>::max() ? 0U : 1U;
    }
    if (bad != 0) {
      const float* first = std::find_if(
          from, from + size, [](float logit) { return !(logit <= std::numeric_limits<float>::max()); });
      return Internal(fmt::format("sampling: logit of token {} is {} at output token {}",
                                  first - logits.data(), std::isnan(*first) ? "NaN" : "infinite",
                                  num_sampled_));
    }
    if (!allowed_.empty()) {
      const uint8_t* allowed = allowed_.data() + begin;
      for (size_t j = 0; j < size; ++j) to[j] = allowed[j] != 0 ? to[j] : kMinusInfinity;
    }
    if (permitted.empty()) continue;
    const uint64_t word = begin / kBlock < permitted.size() ? permitted[begin / kBlock] : 0;
    for (size_t j = 0; j < size && word != ~uint64_t{0}; ++j) {
      if ((word >> j & 1) == 0) to[j] = kMinusInfinity;
    }
  }
  return {};
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, std::span<const uint64_t> permitted) {
  DSV4_CHECK(allowed_.empty() || allowed_.size() == logits.size())
      << "allowed " << allowed_.size() << ", logits " << logits.size();
  DSV4_TRY(TakePermitted(logits, permitted));
  ApplyLogitBias(params_, scratch_);
  ApplyPenalties(params_, seen_, scratch_);
  const float highest = Highest(scratch_);
  if (highest == kMinusInfinity) {
    return Error(
        Internal(fmt::format("sampling: no token has a finite logit at output token {}", num_sampled_)));
  }

  SampledToken sampled;
  if (params_.temperature == 0.0F) {
    sampled.id = static_cast<int32_t>(FirstPlaceOf(highest, scratch_));
  } else if (HasFilters(params_)) {
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
  } else {
    Weigh(scratch_, highest, params_.temperature);
    sampled.id = DrawFromAll(scratch_, UniformDraw(params_.seed, num_sampled_));
  }

  if (num_logprobs_ >= 0) {
    const double normaliser = LogSumExp(logits);
    const auto logprob = [&](float logit) { return static_cast<float>(logit - normaliser); };
    sampled.logprob = logprob(logits[static_cast<size_t>(sampled.id)]);
    Ranking ranking(logits);
    for (size_t i = 0; i < static_cast<size_t>(num_logprobs_) && ranking.At(i) != nullptr; ++i) {
      sampled.top.push_back({ranking.At(i)->id, logprob(ranking.At(i)->value)});
    }
  }
  See(sampled.id);
  ++num_sampled_;
  return sampled;
}

}  // namespace dsv4::sampling
