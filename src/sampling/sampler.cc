// One sequence's sampler: bias, penalties, filters, draws by seed and position, and log-probabilities.
#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sampling/ranking.h"

namespace dsv4::sampling {
namespace {

double LogSumExp(std::span<const float> logits) {
  const double highest = Highest(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

SampledToken WithLogprobs(std::span<const float> logits, int32_t token, int num_top) {
  SampledToken scored{.id = token};
  const double normaliser = LogSumExp(logits);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - normaliser); };
  scored.logprob = logprob(logits[static_cast<size_t>(token)]);
  Ranking ranking(logits);
  for (size_t i = 0; i < static_cast<size_t>(num_top) && ranking.At(i) != nullptr; ++i)
    scored.top.push_back({ranking.At(i)->id, logprob(ranking.At(i)->value)});
  return scored;
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
         params.frequency_penalty != 0.0F;
}

ChoiceParams Choice(const SamplingParams& params, double uniform) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .uniform = uniform};
}

}  // namespace

ScoredToken ScoreToken(std::span<const float> logits, int32_t token, int num_top) {
  const float own = logits[static_cast<size_t>(token)];
  return {.token = WithLogprobs(logits, token, num_top),
          .rank = 1 + std::ranges::count_if(logits, [own](float logit) { return logit > own; })};
}

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
  const std::vector<WeightedToken> kept = Keep(Choice(params, 0.0), logits);
  double total = 0.0;
  for (const WeightedToken& token : kept) total += static_cast<double>(token.weight);
  std::vector<Candidate> candidates;
  for (const WeightedToken& token : kept)
    candidates.push_back({token.id, static_cast<float>(static_cast<double>(token.weight) / total)});
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
      seen_(params_.penalty_window) {
  for (const auto& [token, bias] : params_.logit_bias) biases_.push_back({token, bias});
  std::ranges::sort(biases_, {}, &TokenBias::token);
}

void Sampler::SeePrompt(std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) See(token);
}

void Sampler::See(int32_t token) {
  if (HasPenalties(params_)) seen_.Add(token);
}

bool Sampler::by_logits_alone() const {
  // More are dearer to bring to a device in each step than the logits are to bring here.
  constexpr size_t kFewBiases = 1024;
  return num_logprobs_ < 0 && biases_.size() <= kFewBiases && !HasPenalties(params_);
}

ChoiceParams Sampler::ChoiceAfter(uint64_t num_tokens) const {
  return Choice(params_, UniformDraw(params_.seed, num_sampled_ + num_tokens));
}

void Sampler::Record(int32_t token) {
  See(token);
  ++num_sampled_;
}

Status Sampler::BadLogit(int32_t token, std::string_view what) const {
  return Internal(fmt::format(
      "sampling: logit of token {} is {} at output token {} (dsv4 diagnose residual names the layer)", token,
      what, num_sampled_));
}

Status Sampler::NoChoice() const {
  // Biases and penalties of a request may drive all to infinity: that is the request's fault.
  const bool is_wished = !params_.logit_bias.empty() || HasPenalties(params_);
  return Status(is_wished ? StatusCode::kInvalidArgument : StatusCode::kInternal,
                fmt::format("sampling: no token has a finite logit at output token {}{}", num_sampled_,
                            is_wished ? " under the request's biases and penalties" : ""));
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, std::span<const uint64_t> permitted) {
  DSV4_CHECK(allowed_.empty() || allowed_.size() == logits.size())
      << "allowed " << allowed_.size() << ", logits " << logits.size();
  scratch_.resize(logits.size());
  if (const std::optional<int32_t> bad = TakeAllowed(logits, allowed_, permitted, scratch_))
    return Error(BadLogit(*bad, std::isnan(logits[static_cast<size_t>(*bad)]) ? "NaN" : "infinite"));
  ApplyLogitBias(params_, scratch_);
  ApplyPenalties(params_, seen_, scratch_);
  const std::optional<int32_t> id = Choose(ChoiceAfter(0), scratch_);
  if (!id) return Error(NoChoice());

  SampledToken sampled =
      num_logprobs_ >= 0 ? WithLogprobs(logits, *id, num_logprobs_) : SampledToken{.id = *id};
  Record(sampled.id);
  return sampled;
}

}  // namespace dsv4::sampling
