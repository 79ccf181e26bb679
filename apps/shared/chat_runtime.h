// Everything `run` needs of one model: tokenizer, chat format, stop set, weights and an engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/shared/generation.h"
#include "apps/shared/model_flags.h"
#include "chat/completion_parser.h"
#include "chat/message.h"
#include "chat/profile.h"
#include "chat/renderer.h"
#include "diag/dump.h"
#include "diag/verifier.h"
#include "engine/engine.h"
#include "grammar/token_trie.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/stop_set.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {

// The chat format of a model directory: `option` (--revision), else what its files say, else "v4".
Result<const chat::ChatProfile*> FindProfile(const std::string& directory, const std::string& option);

// A warning when config.json names another token as the first of a sequence than the tokenizer: the tokenizer's is used.
void WarnOfOtherBos(const model::ModelConfig& config, const tokenizer::SpecialTokens& special);

// 1 for every id that has a string: an embedding has more rows than the tokenizer has tokens.
std::vector<uint8_t> AllowedTokens(const tokenizer::Tokenizer& tokenizer, int64_t vocab_size);

class ChatRuntime {
 public:
  struct Options {
    ModelFlags model;
    std::string revision;  // Empty: detected from the model directory.
    bool raw = false;      // No chat: the tokenizer may lack the chat markers.
    // > 0: every so many-th decode token is computed again on the reference backend, which reads the same map of the checkpoint.
    int64_t verify_every = 0;
    engine::SpeculationOptions speculation;
    std::string dump_path;  // Every tensor of the first answer goes into this new directory; empty: none.
    // Tests seed faults here.
    std::function<Result<ops::Backend>(const ModelFlags&)> make_backend = MakeBackend;
  };
  // Errors name the file or string at fault.
  static Result<std::unique_ptr<ChatRuntime>> Load(const Options& options, const LoadCallback& progress);

  // How one answer is asked for and shown.
  struct Ask {
    chat::ThinkingMode mode = chat::ThinkingMode::kThinking;
    std::optional<std::string> effort;
    sampling::SamplingParams sampling;
    int64_t max_tokens = 0;
    int num_logprobs = -1;
    std::vector<std::string> stop;
    std::optional<std::string> schema;  // A JSON schema of the content, behind the reasoning.
    // Makes what limits every token, in place of a schema. May be empty.
    std::function<std::unique_ptr<sampling::TokenConstraint>()> make_constraint;
    bool speculate =
        true;  // Whether drafts of this answer are verified, where Options::speculation makes any.
    std::function<void(int64_t, int64_t)> on_prefill;
    std::function<void(const chat::Delta&)> on_delta;  // In raw mode everything is content.
    std::function<bool()> interrupted;
  };
  struct Answer {
    Generation generation;
    chat::CollectedCompletion completion;
    bool starts_in_reasoning = false;
    bool cancelled = false;
  };

  // Renders the conversation, generates and parses. Reuses what earlier calls computed of the same prompt.
  Result<Answer> Respond(std::span<const chat::Message> messages, const Ask& ask);
  // Continues `text` as it is.
  Result<Answer> Continue(const std::string& text, const Ask& ask);

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  const model::Model& model() const { return *model_; }
  engine::EngineStats stats() const { return engine_->stats(); }
  // Null in raw mode.
  const chat::ChatProfile* profile() const { return profile_; }
  // InvalidArgument names the levels that the model's revision knows. Empty and raw mode: ok.
  Status CheckEffort(const std::string& effort) const;
  // Tokens of the answer that belong to the reasoning, its closing marker included.
  int64_t NumReasoningTokens(const Answer& answer) const;
  // Null without verify_every.
  diag::Verifier* verifier() const { return verifier_.get(); }
  // Completes the files of dump_path; nothing is to do without it. Errors name the file.
  Status FinishDump();

 private:
  ChatRuntime() = default;
  Result<std::unique_ptr<sampling::TokenConstraint>> MakeConstraint(const Ask& ask, bool in_reasoning);
  engine::Request MakeRequest(std::vector<int32_t> prompt, const Ask& ask) const;
  Result<Generation> Run(engine::Request request, const Ask& ask,
                         const std::function<bool(std::string_view)>& on_text);

  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::shared_ptr<const grammar::TokenTrie> trie_;   // Made for the first grammar.
  std::optional<tokenizer::SpecialTokens> special_;  // Absent in raw mode.
  tokenizer::StopSet stop_set_;
  const chat::ChatProfile* profile_ = nullptr;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<diag::Verifier> verifier_;
  std::unique_ptr<diag::DumpWriter> dump_;
  std::unique_ptr<engine::Engine> engine_;
};

}  // namespace dsv4::apps
