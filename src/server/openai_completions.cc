#include "server/openai_completions.h"

#include <fmt/format.h>

#include <ctime>

#include "server/api_error.h"
#include "server/json_text.h"
#include "server/known_fields.h"
#include "server/openai_json.h"
#include "server/random_id.h"

namespace dsv4::server {
namespace {

constexpr size_t kMaxPrompts = 64;
constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's.

Result<std::vector<int32_t>> ReadTokenList(const chat::JsonValue& list) {
  const chat::JsonValue wrapper = chat::JsonValue::Object({{"prompt", list}});
  Fields fields(wrapper);
  std::vector<int32_t> tokens;
  fields.ReadTokens("prompt", &tokens);
  DSV4_TRY(fields.status());
  return tokens;
}

// A text, a list of ids, or a list of texts or lists of ids.
Result<std::vector<std::vector<int32_t>>> ReadPrompts(const ServedModel& model,
                                                      const chat::JsonValue& prompt) {
  std::vector<std::vector<int32_t>> prompts;
  const auto add = [&](const chat::JsonValue& item) -> Status {
    if (item.is_string()) {
      DSV4_RETURN_IF_ERROR(model.CheckLength(item.text().size()));
      DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<int32_t> ids, model.tokenizer.Encode(item.text()));
      prompts.push_back(std::move(ids));
      return {};
    }
    if (!item.is_array())
      return InvalidArgument(
          fmt::format("prompt: got {}, wanted texts or lists of token ids", item.kind_name()));
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<int32_t> ids, ReadTokenList(item));
    prompts.push_back(std::move(ids));
    return {};
  };
  const bool is_list_of_ids = prompt.is_array() && !prompt.items().empty() &&
                              prompt.items().front().kind() == chat::JsonValue::Kind::kInteger;
  if (prompt.is_array() && !is_list_of_ids) {
    if (prompt.items().size() > kMaxPrompts) {
      return Error(InvalidArgument(
          fmt::format("prompt: got {} prompts, wanted at most {}", prompt.items().size(), kMaxPrompts)));
    }
    for (const chat::JsonValue& item : prompt.items()) DSV4_TRY(add(item));
  } else {
    DSV4_TRY(add(prompt));
  }
  if (prompts.empty()) return Error(InvalidArgument("prompt: got an empty list"));
  return prompts;
}

// The older layout of log-probabilities: parallel lists.
class LegacyLogprobs {
 public:
  Json Take(const tokenizer::Tokenizer& tokenizer, const std::vector<sampling::SampledToken>& tokens) {
    Json json = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
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
      offset_ += tokenizer.TokenBytes(token.id).size();
    }
    return json;
  }

 private:
  size_t offset_ = 0;  // In bytes of the answer.
};

struct ChoiceState {
  std::string text;
  std::vector<sampling::SampledToken> tokens;
  LegacyLogprobs logprobs;
  Json done;
};

class CompletionsWriter final : public AnswerWriter {
 public:
  CompletionsWriter(const ServedModel& model, const CompletionsRequest& request)
      : model_(model),
        streamed_(request.stream),
        include_usage_(request.include_usage),
        wants_logprobs_(request.sampling.num_logprobs >= 0),
        choices_(request.prompts.size() * static_cast<size_t>(request.sampling.num_choices)) {
    if (!request.echo) return;
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].text =
          model.tokenizer.Decode(request.prompts[i / static_cast<size_t>(request.sampling.num_choices)]);
    }
  }

  bool streamed() const override { return streamed_; }

  void Begin(const Usage&, std::string& out) override {
    if (!streamed_) return;
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!choices_[i].text.empty()) Emit(i, choices_[i].text, nullptr, nullptr, out);
    }
  }

  void Write(size_t choice, const chat::Delta& delta, session::AnswerTokens tokens,
             const session::AnswerReader&, std::string& out) override {
    ChoiceState& state = choices_[choice];
    const bool done = delta.kind == chat::Delta::Kind::kDone;
    const Json reason = done ? Json(chat::FinishReasonName(delta.finish_reason)) : Json(nullptr);
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
    if (done) {
      state.done = Choice(
          choice, state.text,
          wants_logprobs_ ? state.logprobs.Take(model_.tokenizer, state.tokens) : Json(nullptr), reason);
    }
  }

  void End(const Usage& usage, std::string& out) override {
    Json document = Document();
    document["usage"] = OpenAiUsage(usage);
    if (streamed_) {
      if (include_usage_) out += SseData(document);
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
  void Emit(size_t choice, const std::string& text, Json logprobs, Json reason, std::string& out) const {
    Json chunk = Document();
    chunk["choices"].push_back(Choice(choice, text, std::move(logprobs), std::move(reason)));
    out += SseData(chunk);
  }

  const ServedModel& model_;
  bool streamed_;
  bool include_usage_;
  bool wants_logprobs_;
  std::string id_ = RandomId("cmpl-");
  int64_t created_ = std::time(nullptr);
  std::vector<ChoiceState> choices_;
};

}  // namespace

Result<CompletionsRequest> ReadCompletions(const ServedModel& model, const chat::JsonValue& body) {
  Fields fields(body);
  CompletionsRequest request;
  SamplingCall& sampling = request.sampling;
  const chat::JsonValue* prompt = fields.Find("prompt");
  if (prompt == nullptr) fields.Fail("prompt", "missing, wanted a text or token ids");
  DSV4_TRY(ReadStreaming(fields, &request.stream, &request.include_usage));
  fields.Read("echo", &request.echo);
  fields.ReadStrings("stop", &sampling.stop);
  sampling.max_tokens = kDefaultMaxTokens;
  int64_t max_tokens = 0;
  if (fields.Read("max_tokens", &max_tokens)) sampling.max_tokens = max_tokens;
  ReadSampling(fields, sampling);
  if (fields.Read("logprobs", &sampling.num_logprobs) &&
      (sampling.num_logprobs < 0 || sampling.num_logprobs > 20)) {
    fields.Fail("logprobs", fmt::format("got {}, wanted 0..20", sampling.num_logprobs));
  }
  std::string suffix;
  if (fields.Read("suffix", &suffix) && !suffix.empty())
    fields.Fail("suffix", "this model's format has no text after the gap");
  int best_of = sampling.num_choices;
  if (fields.Read("best_of", &best_of) && best_of != sampling.num_choices) {
    fields.Fail("best_of",
                fmt::format("got {}, wanted n ({}): answers are not ranked", best_of, sampling.num_choices));
  }
  if (request.echo && sampling.num_logprobs >= 0)
    fields.Fail("echo", "the log-probabilities of a prompt are not computed, wanted no logprobs beside it");
  fields.Expect({"model"});
  RefuseUnsupported(fields);
  DSV4_TRY(fields.status());
  DSV4_ASSIGN_OR_RETURN(request.prompts, ReadPrompts(model, *prompt));
  fields.LogUnknown("completions");
  return request;
}

std::unique_ptr<AnswerWriter> MakeCompletionsWriter(const ServedModel& model,
                                                    const CompletionsRequest& request) {
  return std::make_unique<CompletionsWriter>(model, request);
}

}  // namespace dsv4::server
