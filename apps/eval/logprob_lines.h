// Texts with what another engine found probable in them, from JSON lines (docs/evaluation.md has the
// layouts), and lines of our own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/eval/eval_command.h"
#include "apps/eval/eval_data.h"
#include "apps/eval/eval_model.h"

namespace dsv4::apps {

// Statement on one token.
struct OtherToken {
  std::optional<double> logprob;                     // Log-probability of the token that stands there.
  std::vector<std::pair<int32_t, double>> top = {};  // The most probable ones.
};

struct ScoredText {
  std::vector<int32_t> tokens;
  size_t first = 1;               // Tokens from here on are scored.
  std::vector<OtherToken> other;  // By token; empty: none.
  int64_t num_bytes = 0;          // Bytes of the text that is scored, as UTF-8,
  int64_t num_words =
      0;  // and its words between white space, an empty one at an end counted too (lm-eval's way).
};

class TextReader {
 public:
  TextReader(const EvalModel& model, const EvalOptions& options) : model_(model), options_(options) {}
  // Errors name line and member. A text of fewer than two tokens is one.
  Result<ScoredText> Read(const DataLine& line);

 private:
  Status ReadOther(const DataLine& line, ScoredText& text);
  // Layouts that name tokens by their text: chat completions and completions.
  Result<std::vector<OtherToken>> ReadNamed(const DataLine& line, const Json& list,
                                            std::vector<int32_t>& ids);
  Result<int32_t> IdOf(const DataLine& line, const Json& item);

  const EvalModel& model_;
  const EvalOptions& options_;
  std::map<std::string, int32_t, std::less<>> ids_;  // By bytes; made when it is asked for.
};

// {"tokens", "first", "logprobs", "top"}: what --write-logprobs writes.
Json LogprobLine(const ScoredText& text, const std::vector<OtherToken>& found);

// How far `found` is from `other`, in nats: sum over the candidates of `other` and, as one, all the rest. It
// is at most that of the whole distributions. `logits` and `log_sum` are the model's.
double CandidateKl(const OtherToken& other, std::span<const float> logits, double log_sum);

}  // namespace dsv4::apps
