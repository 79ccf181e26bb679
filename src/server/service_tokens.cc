// The endpoints that count tokens, and turn texts into them and back.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/api/json_text.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

// Bytes of a reply, and of a text that its JSON may make several times as long.
constexpr size_t kMaxReply = size_t{64} << 20;
constexpr size_t kMaxText = kMaxReply / 4;

Status TooLong(std::string_view field, size_t most) {
  return InvalidArgument(
      fmt::format("{}: the reply would be longer than {} MiB; send it in parts", field, most >> 20));
}

// Written as it comes: of a text of megabytes a document in memory would be a hundred.
Result<std::string> TokensText(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> ids,
                               int64_t context_length, bool with_strings) {
  std::string text;
  text.reserve(std::min(64 + ids.size() * 6, kMaxReply));
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"count":{},"max_model_len":{},"tokens":[)", ids.size(), context_length);
  for (size_t i = 0; i < ids.size() && text.size() <= kMaxReply; ++i)
    fmt::format_to(out, "{}{}", i > 0 ? "," : "", ids[i]);
  text += ']';
  if (with_strings) {
    text += R"(,"token_strs":[)";
    for (size_t i = 0; i < ids.size() && text.size() <= kMaxReply; ++i) {
      const int32_t one[] = {ids[i]};
      text += i > 0 ? ",\"" : "\"";
      chat::AppendJsonEscaped(tokenizer.Decode(one), text);
      text += '"';
    }
    text += ']';
  }
  if (text.size() > kMaxReply) return Error(TooLong("prompt", kMaxReply));
  text += '}';
  return text;
}

}  // namespace

std::unique_ptr<Reply> Service::CountTokens(HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
    const std::vector<std::string> unknown = std::move(messages.call.sampling.unknown_fields);
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          ChatPrompt(model_, call_memory_, std::move(messages.call)));
    return Tell(MakeReply({}, JsonText({{"input_tokens", ids.size()}})), request, unknown);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Tokenize(HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
    Fields fields(body);
    std::string prompt;
    bool with_strings = false;
    fields.Read("return_token_strs", &with_strings);
    std::vector<int32_t> ids;
    std::vector<std::string> unknown;
    const auto render = [&](ChatCall& call) {
      unknown = std::move(call.sampling.unknown_fields);
      return ChatPrompt(model_, call_memory_, std::move(call));
    };
    // The prompt of another dialect's request: /tokenize?api=messages, /tokenize?api=responses.
    if (request.query == "api=messages") {
      DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(messages.call));
    } else if (request.query == "api=responses") {
      DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadResponses(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(responses.call));
    } else if (fields.Find("messages") != nullptr) {
      DSV4_TRY(fields.status());
      DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(chat.call));
    } else {
      if (!fields.Read("prompt", &prompt)) fields.Fail("prompt", "missing, wanted a text (or messages)");
      fields.Expect({"model"});
      NoteUnknown(fields, body, kNoBody, model_, unknown);
      DSV4_TRY(fields.status());
      body = {};  // One copy of a long text is enough.
      DSV4_ASSIGN_OR_RETURN(ids, model_.tokenizer.Encode(prompt, kMaxTokensRead));
      prompt = {};
    }
    DSV4_ASSIGN_OR_RETURN(std::string text,
                          TokensText(model_.tokenizer, ids, engine_.context_length(), with_strings));
    return Tell(MakeReply({}, std::move(text)), request, unknown);
  };
  return OrFail(run(), request.path);
}

// Routers ask for token ids to find the replica that has read them. They take `token_ids`, or /tokenize's
// `tokens`.
std::unique_ptr<Reply> Service::Render(HttpRequest& request, const Caller&) {
  const auto rendered = [&](std::span<const int32_t> ids) -> Result<std::string> {
    DSV4_ASSIGN_OR_RETURN(std::string text, TokensText(model_.tokenizer, ids, engine_.context_length(),
                                                       /*with_strings=*/false));
    if (2 * text.size() > kMaxReply) return Error(TooLong("prompt", kMaxReply));
    const size_t list = text.find('[');
    const std::string tokens = text.substr(list, text.rfind(']') + 1 - list);
    text.pop_back();
    return fmt::format(R"({},"request_id":"{}","model":{},"token_ids":{}}})", text, request.id,
                       JsonText(model_.id), tokens);
  };
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
    std::string text;
    std::vector<std::string> unknown;
    if (request.path.starts_with("/v1/chat/")) {
      DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
      unknown = std::move(chat.call.sampling.unknown_fields);
      DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            ChatPrompt(model_, call_memory_, std::move(chat.call)));
      DSV4_ASSIGN_OR_RETURN(text, rendered(ids));
    } else {
      DSV4_ASSIGN_OR_RETURN(CompletionsRequest completions, ReadCompletions(model_, body));
      unknown = std::move(completions.sampling.unknown_fields);
      for (const std::vector<int32_t>& prompt : completions.prompts) {
        DSV4_ASSIGN_OR_RETURN(const std::string one, rendered(prompt));
        text += (text.empty() ? "[" : ",") + one;
        if (text.size() > kMaxReply) return Error(TooLong("prompt", kMaxReply));
      }
      text += ']';
    }
    return Tell(MakeReply({}, std::move(text)), request, unknown);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Detokenize(HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
    Fields fields(body);
    std::vector<int32_t> tokens;
    if (!fields.ReadTokens("tokens", &tokens)) fields.Fail("tokens", "missing, wanted a list of token ids");
    fields.Expect({"model"});
    std::vector<std::string> unknown;
    NoteUnknown(fields, body, kNoBody, model_, unknown);
    DSV4_TRY(fields.status());
    body = {};
    size_t num_bytes = 0;
    for (const int32_t token : tokens) num_bytes += model_.tokenizer.TokenBytes(token).size();
    if (num_bytes > kMaxText) return Error(TooLong("tokens", kMaxText));
    std::string text = model_.tokenizer.Decode(tokens);
    tokens = {};
    std::string reply = R"({"prompt":")";
    chat::AppendJsonEscaped(text, reply);
    return Tell(MakeReply({}, reply + "\"}"), request, unknown);
  };
  return OrFail(run(), request.path);
}

}  // namespace dsv4::server
