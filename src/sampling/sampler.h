// Sampler: one per sequence; turns a row of logits into a token.
//
// Stages, each a free function so that `diagnose sampler` can show the logits between them:
//   mask (ids without a string, and what a constraint forbids) -> logit bias -> penalties -> temperature -> top-k -> top-p -> min-p -> draw.
// A device makes all of it as well, of what RuleAfter says and the constraint permits (op `sample`).
// Log-probabilities are those of the model: log-softmax of the raw logits, before bias, penalties and
// temperature (log_sum.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sampling/choice.h"
#include "sampling/log_sum.h"
#include "sampling/sampling_params.h"

namespace dsv4::sampling {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0F;
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0.0F;  // Log-probability of the chosen token; 0 unless log-probabilities were asked for.
  std::vector<TokenLogprob> top;  // The most probable tokens, descending, lowest id on ties.
};

// A token that was given, not chosen.
struct ScoredToken {
  SampledToken token;
  int64_t rank = 1;  // 1 for the most probable; tokens that are as probable do not count.
};

// The log-probability of `token` in a row of logits, and the `num_top` most probable. NaN in a row gives NaN.
ScoredToken ScoreToken(std::span<const float> logits, int32_t token, int num_top);

// Counts of the tokens that penalties see: the last `window` of prompt and output.
class PenaltyWindow {
 public:
  explicit PenaltyWindow(int window) : window_(window) {}
  void Add(int32_t token);
  // By token.
  const std::map<int32_t, int>& counts() const { return counts_; }

 private:
  int window_;
  std::deque<int32_t> recent_;
  std::map<int32_t, int> counts_;
};

void ApplyLogitBias(const SamplingParams& params, std::span<float> logits);
void ApplyPenalties(const SamplingParams& params, const PenaltyWindow& seen, std::span<float> logits);

struct Candidate {
  int32_t id = 0;
  float probability = 0.0F;
};
// Tokens that may be drawn after temperature, top-k, top-p and min-p (choice.h), most probable first (lowest id on ties); the
// probabilities sum to 1. Needs temperature > 0. At least one candidate always stays.
std::vector<Candidate> FilterCandidates(const SamplingParams& params, std::span<const float> logits);

// The uniform number in [0, 1) for output token `index` of a sequence with `seed`.
double UniformDraw(uint64_t seed, uint64_t index);

// How a token is chosen from its logits, for choosers elsewhere.
struct TokenRule {
  ChoiceParams choice = {};
  std::span<const TokenBias> biases = {};  // By token, each once.
  Penalties penalties = {};
  std::vector<TokenCount> counts = {};       // The same; what the penalties see.
  std::span<const uint64_t> permitted = {};  // As TokenConstraint::Allowed.
  int num_logprobs = -1;                     // As Sampler's.
};

// More are chosen on the host.
inline constexpr int kMostTopOnDevice = 128;

// The token with its log-probabilities, of what a chooser elsewhere knows: the logits of the token and of the most probable ones.
SampledToken WithLogprobs(int32_t token, float logit, const LogSum& sum,
                          std::span<const TokenLogprob> top_logits);

class Sampler {
 public:
  // `allowed` has one entry per vocabulary id and outlives the sampler: ids with allowed[id] == 0 (no string
  // in the tokenizer) are never chosen. Empty allows all. `num_logprobs` < 0: none; otherwise the chosen
  // token's and that many of the most probable. `prompt` is seen by the penalties.
  Sampler(SamplingParams params, std::span<const uint8_t> allowed, int num_logprobs);

  // Shows tokens that were not sampled here (the prompt) to the penalties.
  void SeePrompt(std::span<const int32_t> prompt);

  // Chooses the next token and records it. `permitted` as TokenConstraint::Allowed. Internal error when a logit is NaN or +infinity
  // or nothing finite is allowed. Samplers of different sequences may work at one time.
  Result<SampledToken> Sample(std::span<const float> logits, std::span<const uint64_t> permitted = {});

  // Whether Sample without `permitted` is a choice among the allowed logits with a few `biases` added, and nothing else is asked for. Then
  // ChoiceAfter and `biases` are all of its rule.
  bool by_logits_alone() const;
  // Whether others may choose by RuleAfter, and Record what they have chosen.
  bool has_rule() const { return num_logprobs_ <= kMostTopOnDevice; }
  // By token, each once; live as long as the sampler.
  std::span<const TokenBias> biases() const { return biases_; }
  // How the token behind `tokens` more is chosen, its constraint apart. Borrows from the sampler.
  TokenRule RuleAfter(std::span<const int32_t> tokens) const;
  // How the token is chosen that comes behind `num_tokens` more.
  ChoiceParams ChoiceAfter(uint64_t num_tokens) const;
  // The next token was chosen elsewhere.
  void Record(int32_t token);
  // Sample's errors, for callers that choose elsewhere.
  Status BadLogit(int32_t token, std::string_view what) const;
  Status NoChoice() const;

 private:
  void See(int32_t token);

  SamplingParams params_;
  std::span<const uint8_t> allowed_;
  int num_logprobs_;
  PenaltyWindow seen_;
  std::vector<TokenBias> biases_;
  uint64_t num_sampled_ = 0;
  std::vector<float> scratch_;  // One entry per vocabulary id.
};

}  // namespace dsv4::sampling
