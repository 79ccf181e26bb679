// Reader and writer of text completions: prompts, echo, suffix and old log-probabilities.
#include "server/dialects/openai_completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "server/api/api_error.h"
#include "server/api/content_rule_fields.h"
#include "server/api/sse_text.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/openai_json.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

constexpr size_t kMaxPrompts = 64;
constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's.

// A text, a list of ids, or a list of texts or lists of ids.
Result<std::vector<std::vector<int32_t>>> ReadPrompts(const ServedModel& model,
                                                      const chat::JsonValue& prompt) {
  std::vector<std::vector<int32_t>> prompts;
  const auto add = [&](const chat::JsonValue& item) -> Status {
    if (item.is_string()) {
      DSV4_RETURN_IF_ERROR(model.CheckLength(item.text().size()));
      DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<int32_t> ids,
                                   model.tokenizer.Encode(item.text(), kMaxTokensRead));
      prompts.push_back(std::move(ids));
      return {};
    }
    const bool is_list = item.is_array() || item.kind() == chat::JsonValue::Kind::kTokens;
    if (!is_list)
      return InvalidArgument(
          fmt::format("prompt: got {}, wanted texts or lists of token ids", item.kind_name()));
    return ToTokens(item, "prompt", &prompts.emplace_back());
  };
  const bool is_list_of_ids = prompt.is_array() && !prompt.items().empty() &&
                              prompt.items().front().kind() == chat::JsonValue::Kind::kInteger;
  if (prompt.is_array() && !is_list_of_ids) {
    if (prompt.items().size() > kMaxPrompts) {
      return Error(InvalidArgument(fmt::format("prompt: got {}, wanted at most {}",
                                               Counted(prompt.items().size(), "prompt"), kMaxPrompts)));
    }
    for (const chat::JsonValue& item : prompt.items()) DSV4_TRY(add(item));
  } else {
    DSV4_TRY(add(prompt));
  }
  if (prompts.empty()) return Error(InvalidArgument("prompt: got an empty list"));
  return prompts;
}

// The format of text around a hole: <fim begin> prompt <fim hole> suffix <fim end>, and the answer is what is
// missing.
Status FillTheHole(const ServedModel& model, const std::string& suffix, CompletionsRequest& request) {
  const auto token = [&](const char* text) { return model.tokenizer.FindToken(text); };
  const auto begin = token("<｜fim▁begin｜>");
  const auto hole = token("<｜fim▁hole｜>");
  const auto end = token("<｜fim▁end｜>");
  if (!begin || !hole || !end)
    return InvalidArgument("suffix: this model's tokenizer has no tokens for text with a hole");
  DSV4_RETURN_IF_ERROR(model.CheckLength(suffix.size()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> behind,
                               model.tokenizer.Encode(suffix, kMaxTokensRead));
  for (std::vector<int32_t>& prompt : request.prompts) {
    const bool has_bos = !prompt.empty() && prompt.front() == model.special->begin_of_sentence;
    std::vector<int32_t> ids = {model.special->begin_of_sentence, *begin};
    ids.insert(ids.end(), prompt.begin() + (has_bos ? 1 : 0), prompt.end());
    ids.push_back(*hole);
    ids.insert(ids.end(), behind.begin(), behind.end());
    ids.push_back(*end);
    prompt = std::move(ids);
  }
  for (const auto& marker : {begin, hole, end}) request.sampling.stop_tokens.push_back(*marker);
  return {};
}

// The older layout of log-probabilities: parallel lists.
class LegacyLogprobs {
 public:
  static Json Empty() {
    return {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  }

  // Log-probabilities of the prompt; nothing stands in front of its first token.
  Json TakePrompt(const tokenizer::Tokenizer& tokenizer, int32_t first,
                  const std::vector<sampling::ScoredToken>& scored) {
    Json json = Empty();
    const int32_t ids[] = {first};
    json["tokens"].push_back(tokenizer.Decode(ids));
    json["token_logprobs"].push_back(nullptr);
    json["top_logprobs"].push_back(nullptr);
    json["text_offset"].push_back(offset_);
    offset_ += NumCodePoints(tokenizer.TokenBytes(first));
    std::vector<sampling::SampledToken> tokens;
    for (const sampling::ScoredToken& token : scored) tokens.push_back(token.token);
    Append(Take(tokenizer, tokens), json);
    return json;
  }

  static void Append(const Json& more, Json& json) {
    for (const auto& [name, list] : more.items()) {
      for (const Json& entry : list) json[name].push_back(entry);
    }
  }

  Json Take(const tokenizer::Tokenizer& tokenizer, const std::vector<sampling::SampledToken>& tokens) {
    Json json = Empty();
    for (const sampling::SampledToken& token : tokens) {
      const int32_t ids[] = {token.id};
      const std::string text = tokenizer.Decode(ids);
      Json top = Json::object();
      for (const auto& candidate : token.top) {
        const int32_t candidate_ids[] = {candidate.id};
        top[tokenizer.Decode(candidate_ids)] = candidate.logprob;
      }
      json["tokens"].push_back(text);
      json["token_logprobs"].push_back(token.logprob);
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(offset_);
      offset_ += NumCodePoints(tokenizer.TokenBytes(token.id));
    }
    return json;
  }

 private:
  size_t offset_ = 0;  // In characters of the answer.
};

struct ChoiceState {
  std::string text;
  std::vector<sampling::SampledToken> tokens;
  std::vector<int32_t> ids;  // Ids, where they are wanted: those that have not been written.
  LegacyLogprobs logprobs;
  Json prompt_logprobs = LegacyLogprobs::Empty();
  Json done;
  bool echoed = false;
  bool prompt_named = false;  // By its tokens.
};

class CompletionsWriter final : public AnswerWriter {
 public:
  CompletionsWriter(const ServedModel& model, const CompletionsRequest& request)
      : model_(model),
        streamed_(request.stream),
        include_usage_(request.include_usage),
        wants_logprobs_(request.sampling.num_logprobs >= 0),
        wants_prompt_logprobs_(request.wants_prompt_logprobs),
        wants_token_ids_(request.sampling.wants_token_ids),
        wants_transfer_(request.sampling.wants_transfer),
        num_choices_(static_cast<size_t>(request.sampling.num_choices)),
        choices_(request.prompts.size() * static_cast<size_t>(request.sampling.num_choices)) {
    if (!request.echo) return;
    for (size_t i = 0; i < choices_.size(); ++i) choices_[i].text = request.echoed[i / num_choices_];
    echoes_scores_ = wants_logprobs_;
    for (const std::vector<int32_t>& prompt : request.prompts) first_tokens_.push_back(prompt.front());
  }

  bool streamed() const override { return streamed_; }
  void TakePrompt(std::span<const int32_t> prompt) override {
    if (wants_token_ids_) prompt_ids_.emplace_back(prompt.begin(), prompt.end());
  }

  void Begin(const Usage&, std::string& out) override {
    if (!streamed_ || echoes_scores_) return;  // These come once the prompt has been read.
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].text.empty()) Emit(i, choices_[i].text, nullptr, nullptr, out);
    }
  }

  void Write(size_t choice, const chat::Delta& delta, session::AnswerTokens tokens,
             const session::AnswerReader& reader, std::string& out) override {
    ChoiceState& state = choices_[choice];
    const bool done = delta.kind == chat::Delta::Kind::kDone;
    const Json reason = done ? Json(chat::FinishReasonName(delta.finish_reason)) : Json(nullptr);
    if (echoes_scores_ && !std::exchange(state.echoed, true)) {
      state.prompt_logprobs = state.logprobs.TakePrompt(
          model_.tokenizer, first_tokens_[choice / num_choices_], reader.prompt_scores());
      if (streamed_) Emit(choice, state.text, state.prompt_logprobs, nullptr, out);
    }
    state.ids.insert(state.ids.end(), tokens.ids.begin(), tokens.ids.end());
    if (streamed_) {
      const Json logprobs = wants_logprobs_ && !tokens.content.empty()
                                ? state.logprobs.Take(model_.tokenizer, tokens.content)
                                : Json(nullptr);
      Emit(choice, done ? std::string() : delta.text, logprobs, reason, out);
      return;
    }
    state.tokens.insert(state.tokens.end(), std::make_move_iterator(tokens.content.begin()),
                        std::make_move_iterator(tokens.content.end()));
    if (!done) state.text += delta.text;
    if (!done) return;
    Json logprobs = nullptr;
    if (wants_logprobs_) {
      logprobs = std::move(state.prompt_logprobs);
      LegacyLogprobs::Append(state.logprobs.Take(model_.tokenizer, state.tokens), logprobs);
    }
    state.done = Choice(choice, state.text, std::move(logprobs), reason);
    AddIds(choice, state.done);
    if (wants_prompt_logprobs_)
      state.done["prompt_logprobs"] = PromptLogprobs(model_.tokenizer, reader.prompt_scores());
  }

  void End(const Usage& usage, std::string& out) override {
    Json document = Document();
    if (include_usage_ || !streamed_) document["usage"] = OpenAiUsage(usage);
    if (wants_transfer_) document["kv_transfer_params"] = TransferParams(usage);
    if (streamed_) {
      if (include_usage_ || wants_transfer_) out += SseData(document);
      out += "data: [DONE]\n\n";
      return;
    }
    for (ChoiceState& choice : choices_) document["choices"].push_back(std::move(choice.done));
    out += JsonText(document);
  }

  std::string ErrorBody(const Status& status) override { return OpenAiError(status); }
  void Fail(const Status& status, std::string& out) override {
    out += "data: " + OpenAiError(status) + "\n\n";
  }

 private:
  Json Document() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_.id},
            {"choices", Json::array()}};
  }
  static Json Choice(size_t choice, const std::string& text, Json logprobs, Json reason) {
    return {{"index", choice},
            {"text", text},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(reason)}};
  }
  // As vLLM has them: the prompt's with the first chunk of a choice.
  void AddIds(size_t choice, Json& json) {
    if (!wants_token_ids_) return;
    ChoiceState& state = choices_[choice];
    json["token_ids"] = std::exchange(state.ids, {});
    if (!std::exchange(state.prompt_named, true))
      json["prompt_token_ids"] = prompt_ids_[choice / num_choices_];
  }
  void Emit(size_t choice, const std::string& text, Json logprobs, Json reason, std::string& out) {
    Json chunk = Document();
    chunk["choices"].push_back(Choice(choice, text, std::move(logprobs), std::move(reason)));
    AddIds(choice, chunk["choices"].back());
    out += SseData(chunk);
  }

  const ServedModel& model_;
  bool streamed_;
  bool include_usage_;
  bool wants_logprobs_;
  bool wants_prompt_logprobs_;
  bool wants_token_ids_;
  bool wants_transfer_;
  std::vector<std::vector<int32_t>> prompt_ids_;  // Ids, where they are wanted.
  size_t num_choices_;                            // Choices of a prompt.
  bool echoes_scores_ = false;
  std::vector<int32_t> first_tokens_;  // First tokens of the prompts, where they are echoed.
  std::string id_ = RandomId("cmpl-");
  int64_t created_ = std::time(nullptr);
  std::vector<ChoiceState> choices_;
};

// Here it constrains alone: a text has no room for a schema.
void ReadFormat(Fields& fields, SamplingCall& sampling) {
  const chat::JsonValue* format = nullptr;
  if (!fields.ReadObject("response_format", &format) || ReadFormatRule(fields, *format, sampling.rule))
    return;
  const Result<chat::JsonValue> schema = chat::ResponseSchema(*format);
  if (!schema) return fields.Fail("response_format", schema.error().message());
  if (schema->is_null()) return;
  if (sampling.rule)
    return fields.Fail("response_format", fmt::format("beside {}, wanted one of them", sampling.rule->label));
  sampling.rule = grammar::ContentRule{
      .text = chat::WriteJson(*schema), .label = "response_format", .strict = chat::IsStrict(*format)};
}

}  // namespace

Result<CompletionsRequest> ReadCompletions(const ServedModel& model, const chat::JsonValue& body) {
  Fields fields(body);
  CompletionsRequest request;
  SamplingCall& sampling = request.sampling;
  const chat::JsonValue* prompt = fields.Find("prompt");
  if (prompt == nullptr) fields.Fail("prompt", "missing, wanted a text or token ids");
  DSV4_TRY(ReadStreaming(fields, &request.stream, &request.include_usage));
  fields.Read("echo", &request.echo);
  ReadStop(fields, "stop", sampling);
  sampling.max_tokens = kDefaultMaxTokens;
  int64_t max_tokens = 0;
  if (fields.Read("max_tokens", &max_tokens)) sampling.max_tokens = max_tokens;
  ReadSampling(fields, sampling);
  ReadTransfer(fields, model, sampling);
  if (fields.Read("logprobs", &sampling.num_logprobs) &&
      (sampling.num_logprobs < 0 || sampling.num_logprobs > 20)) {
    fields.Fail("logprobs", fmt::format("got {}, wanted 0..20", sampling.num_logprobs));
  }
  ReadPromptLogprobs(fields, request.stream, sampling);
  fields.Read("return_token_ids", &sampling.wants_token_ids);
  request.wants_prompt_logprobs = sampling.num_prompt_logprobs >= 0;
  ReadFormat(fields, sampling);
  std::string suffix;
  fields.Read("suffix", &suffix);
  int best_of = sampling.num_choices;
  if (fields.Read("best_of", &best_of) && best_of != sampling.num_choices) {
    fields.Fail("best_of",
                fmt::format("got {}, wanted n ({}): answers are not ranked", best_of, sampling.num_choices));
  }
  if (request.echo)
    sampling.num_prompt_logprobs = std::max(sampling.num_prompt_logprobs, sampling.num_logprobs);
  fields.Expect({"model"});
  CheckFields(fields, body, kCompletions, model, sampling);
  DSV4_TRY(fields.status());
  DSV4_ASSIGN_OR_RETURN(request.prompts, ReadPrompts(model, *prompt));
  if (request.echo) {
    for (const std::vector<int32_t>& ids : request.prompts) {
      if (ids.empty()) return Error(InvalidArgument("prompt: got no tokens, wanted at least one"));
      request.echoed.push_back(model.tokenizer.Decode(ids));
    }
  }
  if (!suffix.empty()) {
    if (request.echo && sampling.num_logprobs >= 0)
      return Error(InvalidArgument("echo: not with logprobs beside a suffix, whose tokens stand in between"));
    DSV4_TRY(FillTheHole(model, suffix, request));
  }
  return request;
}

std::unique_ptr<AnswerWriter> MakeCompletionsWriter(const ServedModel& model,
                                                    const CompletionsRequest& request) {
  return std::make_unique<CompletionsWriter>(model, request);
}

}  // namespace dsv4::server
