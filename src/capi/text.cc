// Tokens, prompts and answers as text.
#include <fmt/format.h>

#include <utility>

#include "capi/objects.h"
#include "chat/json_value.h"
#include "chat/message.h"
#include "session/answer_options.h"
#include "session/answer_reader.h"
#include "session/prompt.h"

using dsv4::InvalidArgument;
using dsv4::Status;
using dsv4::capi::Guard;
namespace chat = dsv4::chat;

dsv4_code dsv4_tokenize(const dsv4_model* model, const char* text, size_t size, int32_t markers,
                        dsv4_buffer** ids, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    *ids = nullptr;
    const std::vector<dsv4::tokenizer::TextSpan> spans = {{{text, size}, markers != 0}};
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> made, model->text->tokenizer.Encode(spans));
    *ids = new dsv4_buffer{
        std::string(reinterpret_cast<const char*>(made.data()), made.size() * sizeof(int32_t))};
    return {};
  });
}

dsv4_code dsv4_detokenize(const dsv4_model* model, const int32_t* ids, size_t num_ids, dsv4_buffer** text,
                          dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    *text = nullptr;
    *text = new dsv4_buffer{model->text->tokenizer.Decode({ids, num_ids})};
    return {};
  });
}

namespace {

Status Render(const dsv4_model& model, const char* request_json, dsv4_prompt& prompt) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const chat::JsonValue request, chat::ReadJson(request_json, "request"));
  const chat::JsonValue* messages_json = request.Find("messages");
  if (messages_json == nullptr) return InvalidArgument("request: wanted an object with \"messages\"");
  DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<chat::Message> messages,
                               chat::ParseMessages(*messages_json, "messages"));
  chat::ThinkingMode mode = chat::ThinkingMode::kThinking;
  std::optional<std::string> effort;
  for (const auto& [name, value] : request.members()) {
    if (name == "messages") continue;
    if (name == "tools") {
      DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<chat::JsonValue> tools, chat::ParseTools(value, "tools"));
      chat::AttachTools(messages, std::move(tools));
    } else if (name == "thinking_mode" && (value.text() == "thinking" || value.text() == "chat")) {
      mode = value.text() == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
    } else if (name == "effort" && (value.is_string() || value.kind() == chat::JsonValue::Kind::kInteger)) {
      effort = value.text();
    } else if (name == "thinking_mode" || name == "effort") {
      return InvalidArgument(
          fmt::format("{}: got {}, wanted {}", name, chat::WriteJson(value),
                      name == "effort" ? "a string or an integer" : "\"thinking\" or \"chat\""));
    } else {
      return InvalidArgument(
          fmt::format("request: got \"{}\", wanted messages, tools, thinking_mode or effort", name));
    }
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(
      prompt.made, dsv4::session::MakePrompt(*model.text, messages,
                                             dsv4::session::RenderOptionsFor(*model.text, mode, effort)));
  prompt.text = prompt.made.rendered.text();
  for (const chat::Message& message : messages) {
    for (const auto* list : {&message.request_tools, &message.tools})
      prompt.tools.insert(prompt.tools.end(), list->begin(), list->end());
  }
  return {};
}

void Deliver(const std::vector<chat::Delta>& deltas, dsv4_on_delta on_delta, void* user) {
  if (on_delta == nullptr) return;
  for (const chat::Delta& delta : deltas) {
    const std::string_view text =
        delta.kind == chat::Delta::Kind::kDone ? chat::FinishReasonName(delta.finish_reason) : delta.text;
    const std::string ended(text);
    dsv4_delta out = {};
    out.size = sizeof(out);
    out.kind = static_cast<int32_t>(delta.kind);
    out.call = delta.index;
    out.text = ended.c_str();
    out.text_size = ended.size();
    on_delta(&out, user);
  }
}

static_assert(DSV4_CONTENT == static_cast<int>(chat::Delta::Kind::kContent));
static_assert(DSV4_TOOL_CALL_END == static_cast<int>(chat::Delta::Kind::kToolCallEnd));
static_assert(DSV4_DONE == static_cast<int>(chat::Delta::Kind::kDone));

}  // namespace

dsv4_code dsv4_render(const dsv4_model* model, const char* request_json, dsv4_prompt** prompt,
                      dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (model == nullptr || request_json == nullptr || prompt == nullptr)
      return InvalidArgument("dsv4_render: got NULL for model, request_json or prompt");
    *prompt = nullptr;
    auto made = std::make_unique<dsv4_prompt>();
    DSV4_RETURN_IF_ERROR(Render(*model, request_json, *made));
    *prompt = made.release();
    return {};
  });
}

const char* dsv4_prompt_text(const dsv4_prompt* prompt) { return prompt->text.c_str(); }
const int32_t* dsv4_prompt_ids(const dsv4_prompt* prompt, size_t* num_ids) {
  *num_ids = prompt->made.ids.size();
  return prompt->made.ids.data();
}
const char* dsv4_prompt_notice(const dsv4_prompt* prompt) { return prompt->made.notice.c_str(); }
void dsv4_prompt_free(dsv4_prompt* prompt) { delete prompt; }

dsv4_code dsv4_parser_new(const dsv4_model* model, const dsv4_prompt* prompt, const char* const* stops,
                          size_t num_stops, dsv4_parser** parser, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (model == nullptr || prompt == nullptr || parser == nullptr)
      return InvalidArgument("dsv4_parser_new: got NULL for model, prompt or parser");
    *parser = nullptr;
    const std::vector<std::string> stop_strings(stops, stops + num_stops);
    DSV4_RETURN_IF_ERROR(dsv4::session::CheckStop("dsv4_parser_new: stops", stop_strings));
    *parser = new dsv4_parser{
        .model = model->shared_from_this(),
        .reader = dsv4::session::AnswerReader(
            *model->text, dsv4::session::ChatFormat(prompt->made, prompt->tools, stop_strings)),
        .end = {}};
    return {};
  });
}

dsv4_code dsv4_parser_feed(dsv4_parser* parser, const int32_t* ids, size_t num_ids, dsv4_on_delta on_delta,
                           void* user, int32_t* done, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (parser->finished) return dsv4::FailedPrecondition("dsv4_parser_feed: the answer is finished");
    for (size_t i = 0; i < num_ids; ++i) {
      std::vector<chat::Delta> deltas = parser->reader.Feed({.id = ids[i]});
      if (!deltas.empty() && deltas.back().kind == chat::Delta::Kind::kDone) {
        parser->end = std::move(deltas.back());
        deltas.pop_back();
      }
      Deliver(deltas, on_delta, user);
    }
    if (done != nullptr) *done = parser->reader.done() ? 1 : 0;
    return {};
  });
}

dsv4_code dsv4_parser_finish(dsv4_parser* parser, int32_t cut, dsv4_on_delta on_delta, void* user,
                             dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (parser->finished) return dsv4::FailedPrecondition("dsv4_parser_finish: the answer is finished");
    parser->finished = true;
    if (parser->end) {
      Deliver({*parser->end}, on_delta, user);
    } else {
      Deliver(parser->reader.Finish(cut != 0 ? chat::EndCause::kLength : chat::EndCause::kStop), on_delta,
              user);
    }
    return {};
  });
}

void dsv4_parser_free(dsv4_parser* parser) { delete parser; }
