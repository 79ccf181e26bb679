// A model that reads texts which are given, with its tokenizer: no sampling.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "chat/profile.h"
#include "kv/sequence_state.h"
#include "model/runtime/model.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {

class EvalModel {
 public:
  // Errors: as those of a model and its text files.
  static Result<std::unique_ptr<EvalModel>> Load(const ModelFlags& flags, const std::string& revision,
                                                 const LoadCallback& progress);

  // Text to tokens as the completions API does it: special strings are their tokens. With `bos` behind the
  // token that begins a sequence.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool bos) const;
  // The prompt of a chat, from a JSON list of messages.
  Result<std::vector<int32_t>> EncodeMessages(const std::string& messages, const std::string& thinking_mode,
                                              const std::string& effort) const;

  Result<kv::SequenceState> NewSequence() const { return model_->NewSequence(); }
  // Moves `state` on by the tokens.
  Status Skip(kv::SequenceState& state, std::span<const int32_t> tokens);
  // The same, and the logits behind each of them.
  Result<model::StepOutput> Read(kv::SequenceState& state, std::span<const int32_t> tokens);

  // Called after each step with the number of its tokens; may be empty.
  void OnTokens(std::function<void(int64_t)> on_tokens) { on_tokens_ = std::move(on_tokens); }

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::string& name() const { return name_; }
  int64_t vocab_size() const { return model_->config().vocab_size; }
  int64_t context() const { return model_->config().max_position_embeddings; }

 private:
  EvalModel() = default;
  Status Step(kv::SequenceState& state, std::span<const int32_t> tokens, model::LogitsRows rows,
              model::StepOutput* output);

  std::string name_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  const chat::ChatProfile* profile_ = nullptr;
  std::unique_ptr<model::Model> model_;
  std::function<void(int64_t)> on_tokens_;
};

// The log-probability of `token`, and which token is the most probable. Sums in double.
struct RowScore {
  double logprob = 0;
  double log_sum = 0;  // A token's log-probability is its logit less this.
  int32_t best = 0;    // The lowest id on ties.
};
RowScore ScoreRow(std::span<const float> logits, int32_t token);

// Reads `tokens` with all models at once. Calls `on_row` for each position from `first` (at least 1) on, with
// each model's logits in front of tokens[position]. Internal when a logit is no number.
using OnRow = std::function<void(size_t position, std::span<const std::span<const float>> rows)>;
Status ReadText(std::span<EvalModel* const> models, std::span<const int32_t> tokens, size_t first,
                const OnRow& on_row);

}  // namespace dsv4::apps
