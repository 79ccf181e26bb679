// One sequence's sampler: bias, penalties, filters, draws by seed and position, and log-probabilities.
#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "sampling/log_sum.h"
#include "sampling/ranking.h"

namespace dsv4::sampling {
namespace {

SampledToken WithLogprobs(std::span<const float> logits, int32_t token, int num_top) {
  std::vector<TokenLogprob> top;
  Ranking ranking(logits);
  for (size_t i = 0; i < static_cast<size_t>(num_top) && ranking.At(i) != nullptr; ++i)
    top.push_back({ranking.At(i)->id, ranking.At(i)->value});
  return sampling::WithLogprobs(token, logits[static_cast<size_t>(token)], SumOf(logits), top);
}

Penalties PenaltiesOf(const SamplingParams& params) {
  return {params.repetition_penalty, params.presence_penalty, params.frequency_penalty};
}

bool HasPenalties(const SamplingParams& params) { return PenaltiesOf(params).any(); }

ChoiceParams Choice(const SamplingParams& params, double uniform) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .uniform = uniform};
}

}  // namespace

SampledToken WithLogprobs(int32_t token, float logit, const LogSum& sum,
                          std::span<const TokenLogprob> top_logits) {
  const double log = sum.Log();
  const auto logprob = [&](float value) { return static_cast<float>(static_cast<double>(value) - log); };
  SampledToken scored{.id = token, .logprob = logprob(logit)};
  for (const TokenLogprob& top : top_logits) scored.top.push_back({top.id, logprob(top.logprob)});
  return scored;
}

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
  for (const auto& [id, bias] : params.logit_bias) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = Adjusted(logit, bias, 0, {});
  }
}

void ApplyPenalties(const SamplingParams& params, const PenaltyWindow& seen, std::span<float> logits) {
  const Penalties penalties = PenaltiesOf(params);
  if (!penalties.any()) return;
  for (const auto& [id, count] : seen.counts()) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = Adjusted(logit, 0.0F, count, penalties);
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
  // A window shows no more than its end.
  const auto window = static_cast<size_t>(params_.penalty_window);
  if (window > 0 && prompt.size() > window) prompt = prompt.last(window);
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

TokenRule Sampler::RuleAfter(std::span<const int32_t> tokens) const {
  TokenRule rule = {.choice = ChoiceAfter(tokens.size()), .biases = biases_, .num_logprobs = num_logprobs_};
  if (!HasPenalties(params_)) return rule;
  rule.penalties = PenaltiesOf(params_);
  const auto take = [&](const PenaltyWindow& seen) {
    for (const auto& [token, count] : seen.counts()) rule.counts.push_back({token, count});
  };
  if (tokens.empty()) {
    take(seen_);
    return rule;
  }
  PenaltyWindow seen = seen_;
  for (const int32_t token : tokens) seen.Add(token);
  take(seen);
  return rule;
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
