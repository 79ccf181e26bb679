// Teacher-forced model for eval: encoded texts and rows of logits.
#include "apps/eval/eval_model.h"

#include <algorithm>
#include <cmath>

#include "apps/shared/model_source.h"
#include "chat/renderer.h"
#include "diag/statistics.h"
#include "session/text_model.h"
#include "tokenizer/special_tokens.h"

namespace dsv4::apps {
namespace {

// Rows of logits that are held at one time.
constexpr size_t kRowsAtOnce = 128;

}  // namespace

Result<std::unique_ptr<EvalModel>> EvalModel::Load(const ModelFlags& flags, const std::string& revision,
                                                   const LoadCallback& progress) {
  auto made = std::unique_ptr<EvalModel>(new EvalModel());
  DSV4_ASSIGN_OR_RETURN(const ModelSource source, ModelSource::Find(flags));
  DSV4_ASSIGN_OR_RETURN(const std::string directory, source.RequireTextDirectory());
  made->name_ = source.name();
  DSV4_ASSIGN_OR_RETURN(made->tokenizer_, tokenizer::Tokenizer::Load(directory + "/tokenizer.json"));
  DSV4_ASSIGN_OR_RETURN(made->profile_, session::FindProfile(directory, revision));
  DSV4_ASSIGN_OR_RETURN(const ops::Backend backend, MakeBackend(flags));
  DSV4_ASSIGN_OR_RETURN(made->model_, LoadModel(flags, source, backend, progress, {.num_sequences = 2}));
  return made;
}

Result<std::vector<int32_t>> EvalModel::Encode(std::string_view text, bool bos) const {
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_->Encode(text));
  if (bos) {
    const auto token = tokenizer_->FindToken(tokenizer::kBeginOfSentence);
    if (!token) return Error(InvalidArgument("--bos on: the tokenizer has no token that begins a sequence"));
    ids.insert(ids.begin(), *token);
  }
  return ids;
}

Result<std::vector<int32_t>> EvalModel::EncodeMessages(const std::string& messages,
                                                       const std::string& thinking_mode,
                                                       const std::string& effort) const {
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue json, chat::ReadJson(messages, "messages"));
  DSV4_ASSIGN_OR_RETURN(const std::vector<chat::Message> list, chat::ParseMessages(json, "messages"));
  chat::RenderOptions options = {
      .mode = thinking_mode == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking,
      .null_is_empty = true};
  if (!effort.empty())
    options.effort = effort;
  else if (!profile_->default_effort.empty())
    options.effort = profile_->default_effort;
  DSV4_ASSIGN_OR_RETURN(const chat::RenderedPrompt prompt, chat::RenderPrompt(*profile_, list, options));
  std::vector<tokenizer::TextSpan> spans;
  for (const chat::Span& span : prompt.spans) spans.push_back({span.text, span.is_template});
  return tokenizer_->Encode(spans);
}

Status EvalModel::Step(kv::SequenceState& state, std::span<const int32_t> tokens, model::LogitsRows rows,
                       model::StepOutput* output) {
  const model::SequenceChunk chunk = {.state = &state, .tokens = tokens, .logits = rows};
  DSV4_ASSIGN_OR_RETURN_STATUS(*output, model_->Step(std::span(&chunk, 1)));
  if (on_tokens_) on_tokens_(static_cast<int64_t>(tokens.size()));
  return {};
}

Status EvalModel::Skip(kv::SequenceState& state, std::span<const int32_t> tokens) {
  model::StepOutput output;
  return tokens.empty() ? Status() : Step(state, tokens, model::LogitsRows::kNone, &output);
}

Result<model::StepOutput> EvalModel::Read(kv::SequenceState& state, std::span<const int32_t> tokens) {
  model::StepOutput output;
  DSV4_TRY(Step(state, tokens, model::LogitsRows::kAll, &output));
  if (!diag::AllFinite(output.logits))
    return Error(Internal("the logits are no numbers (dsv4 diagnose checkpoint and residual tell more)"));
  return output;
}

RowScore ScoreRow(std::span<const float> logits, int32_t token) {
  RowScore score;
  score.best = static_cast<int32_t>(diag::ArgMax(logits));
  const double highest = logits[static_cast<size_t>(score.best)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  score.log_sum = highest + std::log(sum);
  score.logprob = logits[static_cast<size_t>(token)] - score.log_sum;
  return score;
}

Status ReadText(std::span<EvalModel* const> models, std::span<const int32_t> tokens, size_t first,
                const OnRow& on_row) {
  std::vector<kv::SequenceState> states;
  for (EvalModel* model : models) {
    DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, model->NewSequence());
    DSV4_RETURN_IF_ERROR(model->Skip(state, tokens.first(first - 1)));
    states.push_back(std::move(state));
  }
  // The last token is read by none: nothing stands behind it.
  for (size_t begin = first - 1; begin + 1 < tokens.size();) {
    const size_t count = std::min(kRowsAtOnce, tokens.size() - 1 - begin);
    std::vector<model::StepOutput> outputs;
    for (size_t i = 0; i < models.size(); ++i) {
      DSV4_ASSIGN_OR_RETURN_STATUS(outputs.emplace_back(),
                                   models[i]->Read(states[i], tokens.subspan(begin, count)));
    }
    std::vector<std::span<const float>> rows(models.size());
    for (size_t row = 0; row < count; ++row) {
      for (size_t i = 0; i < models.size(); ++i) rows[i] = outputs[i].Row(0, static_cast<int64_t>(row));
      on_row(begin + row + 1, rows);
    }
    begin += count;
  }
  return {};
}

}  // namespace dsv4::apps
