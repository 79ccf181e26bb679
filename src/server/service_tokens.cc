// The endpoints that count tokens, and turn texts into them and back.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "server/api/list_page.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

Status TooLong(std::string_view field, size_t most) {
  return InvalidArgument(
      fmt::format("{}: the reply would be longer than {} MiB (serve --max-body-mib); send it in parts", field,
                  most >> 20));
}

// Room for a reply that may be long: growth would need it twice for a moment. Pages that are not used are not
// there.
void ReserveReply(size_t least, size_t most, std::string& reply) {
  constexpr size_t kLong = size_t{1} << 20;
  reply.reserve(least < kLong ? least : most + kLong);
}

// Written as it comes: of a text of megabytes a document in memory would be a hundred.
Result<std::string> TokensText(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> ids,
                               int64_t context_length, bool with_strings, size_t most) {
  std::string text;
  ReserveReply(64 + ids.size() * 6, most, text);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"count":{},"max_model_len":{},"tokens":[)", ids.size(), context_length);
  for (size_t i = 0; i < ids.size() && text.size() <= most; ++i)
    fmt::format_to(out, "{}{}", i > 0 ? "," : "", ids[i]);
  text += ']';
  if (with_strings) {
    text += R"(,"token_strs":[)";
    for (size_t i = 0; i < ids.size() && text.size() <= most; ++i) {
      const int32_t one[] = {ids[i]};
      text += i > 0 ? ",\"" : "\"";
      chat::AppendJsonEscaped(tokenizer.Decode(one), text);
      text += '"';
    }
    text += ']';
  }
  if (text.size() > most) return Error(TooLong("prompt", most));
  text += '}';
  return text;
}

// The tokens of a text, or of the prompt of any dialect's request (/tokenize?api=messages, ?api=responses).
// `unknown`: the members that are not known.
Result<std::vector<int32_t>> ReadTokens(const ServedModel& model, const CallMemory& memory,
                                        HttpRequest& request, bool* with_strings,
                                        std::vector<std::string>& unknown) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model));
  Fields fields(body);
  fields.Read("return_token_strs", with_strings);
  const auto render = [&](ChatCall call) {
    body = {};  // The call has copies.
    unknown = std::move(call.sampling.unknown_fields);
    return ChatPrompt(model, memory, std::move(call));
  };
  const std::string api = QueryValue(request.query, "api");
  if (!api.empty() && api != "chat" && api != "messages" && api != "responses")
    return Error(InvalidArgument(fmt::format("api: got '{}', wanted chat, messages or responses", api)));
  if (api == "messages") {
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model, body));
    return render(std::move(messages.call));
  }
  if (api == "responses") {
    DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadResponses(model, std::move(body)));
    responses.own_input = {};
    return render(std::move(responses.call));
  }
  const chat::JsonValue* const prompt = fields.Find("prompt");
  if (fields.Find("messages") != nullptr) {
    DSV4_TRY(fields.status());
    DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model, body));
    return render(std::move(chat.call));
  }
  if (prompt == nullptr) fields.Fail("prompt", "missing, wanted a text (or messages)");
  if (prompt != nullptr && !prompt->is_string())
    fields.Fail("prompt", fmt::format("got {}, wanted a string", prompt->kind_name()));
  fields.Expect({"model"});
  NoteUnknown(fields, body, kNoBody, model, unknown);
  DSV4_TRY(fields.status());
  return model.tokenizer.Encode(prompt->text(), kMaxTokensRead);
}

}  // namespace

Result<std::unique_ptr<Reply>> Service::CountTokens(HttpRequest& request, const Caller&) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
  body = {};  // The call has copies.
  const std::vector<std::string> unknown = std::move(messages.call.sampling.unknown_fields);
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        ChatPrompt(model_, call_memory_, std::move(messages.call)));
  return Tell(MakeReply({}, JsonText({{"input_tokens", ids.size()}})), request, unknown);
}

Result<std::unique_ptr<Reply>> Service::Tokenize(HttpRequest& request, const Caller&) {
  bool with_strings = false;
  std::vector<std::string> unknown;
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        ReadTokens(model_, call_memory_, request, &with_strings, unknown));
  DSV4_ASSIGN_OR_RETURN(std::string text, TokensText(model_.tokenizer, ids, engine_.context_length(),
                                                     with_strings, options_.max_reply_bytes));
  return Tell(MakeReply({}, std::move(text)), request, unknown);
}

// Routers ask for token ids to find the replica that has read them. They take `token_ids`, or /tokenize's
// `tokens`.
Result<std::unique_ptr<Reply>> Service::Render(HttpRequest& request, const Caller&) {
  const size_t most = options_.max_reply_bytes;
  const auto rendered = [&](std::span<const int32_t> ids) -> Result<std::string> {
    DSV4_ASSIGN_OR_RETURN(std::string text, TokensText(model_.tokenizer, ids, engine_.context_length(),
                                                       /*with_strings=*/false, most));
    if (2 * text.size() > most) return Error(TooLong("prompt", most));
    const size_t list = text.find('[');
    const size_t list_size = text.rfind(']') + 1 - list;
    text.pop_back();
    text += fmt::format(R"(,"request_id":"{}","model":{},"token_ids":)", request.id, JsonText(model_.id));
    text.reserve(text.size() + list_size + 1);  // Then the list is not copied from where it was.
    text.append(text, list, list_size);
    text += '}';
    return text;
  };
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  std::string text;
  std::vector<std::string> unknown;
  if (request.path.starts_with("/v1/chat/")) {
    DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
    body = {};
    unknown = std::move(chat.call.sampling.unknown_fields);
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          ChatPrompt(model_, call_memory_, std::move(chat.call)));
    DSV4_ASSIGN_OR_RETURN(text, rendered(ids));
  } else {
    DSV4_ASSIGN_OR_RETURN(CompletionsRequest completions, ReadCompletions(model_, body));
    body = {};
    unknown = std::move(completions.sampling.unknown_fields);
    for (const std::vector<int32_t>& prompt : completions.prompts) {
      DSV4_ASSIGN_OR_RETURN(const std::string one, rendered(prompt));
      text += (text.empty() ? "[" : ",") + one;
      if (text.size() > most) return Error(TooLong("prompt", most));
    }
    text += ']';
  }
  return Tell(MakeReply({}, std::move(text)), request, unknown);
}

Result<std::unique_ptr<Reply>> Service::Detokenize(HttpRequest& request, const Caller&) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  Fields fields(body);
  std::vector<int32_t> tokens;
  if (!fields.ReadTokens("tokens", &tokens)) fields.Fail("tokens", "missing, wanted a list of token ids");
  fields.Expect({"model"});
  std::vector<std::string> unknown;
  NoteUnknown(fields, body, kNoBody, model_, unknown);
  for (const int32_t token : tokens) {
    if (token >= 0 && token < model_.vocab_size) continue;
    fields.Fail("tokens", fmt::format("got {}, wanted 0..{}", token, model_.vocab_size - 1));
    break;
  }
  DSV4_TRY(fields.status());
  body = {};
  size_t num_bytes = 0;
  for (const int32_t token : tokens) num_bytes += model_.tokenizer.TokenBytes(token).size();
  const size_t most = options_.max_reply_bytes;
  if (num_bytes > most) return Error(TooLong("tokens", most));
  const std::string text = model_.tokenizer.Decode(std::exchange(tokens, {}));
  std::string reply;
  ReserveReply(64 + text.size() * 2, most, reply);
  reply = R"({"prompt":")";
  constexpr size_t kPiece = size_t{64} << 10;
  for (size_t i = 0; i < text.size() && reply.size() <= most; i += kPiece)
    chat::AppendJsonEscaped(std::string_view(text).substr(i, kPiece), reply);
  reply += "\"}";
  if (reply.size() > most) return Error(TooLong("tokens", most));
  return Tell(MakeReply({}, std::move(reply)), request, unknown);
}

}  // namespace dsv4::server
