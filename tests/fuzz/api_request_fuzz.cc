// The readers of API requests, in every dialect, down to the prompt's tokens. Whatever the body says, it
// becomes a prompt or an error that has a text; nothing else happens.
#include "base/check.h"
#include "server/api/served_model_testing.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "tiny_model_folder.h"

namespace dsv4::server {
namespace {

const ServedModel& Tiny() {
  static const ServedModel model =
      MakeTinyServedModel(testing::TinyModelFolder() + "/tokenizer.json", "v4-0731");
  return model;
}

template <typename Request>
bool HasText(const Result<Request>& request) {
  DSV4_CHECK(request.has_value() || !request.error().message().empty());
  return request.has_value();
}

void Prepare(const Result<CompletionsRequest>& request) {
  if (!HasText(request)) return;
  for (const std::vector<int32_t>& prompt : request->prompts) {
    static_cast<void>(PrepareText(Tiny(), {}, prompt, request->sampling));
  }
}

template <typename Request>
void Prepare(Result<Request> request) {
  if (!HasText(request)) return;
  static const CallMemory memory;
  const Result<PreparedCall> call = PrepareChat(Tiny(), memory, {}, std::move(request->call));
  if (!call) {
    DSV4_CHECK(!call.error().message().empty());
    return;
  }
  DSV4_CHECK(!call->requests.empty() && !call->requests.front().prompt.empty());
}

}  // namespace
}  // namespace dsv4::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const Result<chat::JsonValue> body = chat::ReadJson({reinterpret_cast<const char*>(data), size}, "body");
  if (!body) return 0;
  server::Prepare(server::ReadOpenAiChat(server::Tiny(), *body));
  server::Prepare(server::ReadAnthropic(server::Tiny(), *body));
  server::Prepare(server::ReadResponses(server::Tiny(), *body));
  server::Prepare(server::ReadCompletions(server::Tiny(), *body));
  for (const auto kind : {server::OllamaKind::kChat, server::OllamaKind::kGenerate}) {
    (void)server::OllamaLoad(server::Tiny(), *body, kind);
    auto request = kind == server::OllamaKind::kChat ? server::ReadOllamaChat(server::Tiny(), *body)
                                                     : server::ReadOllamaGenerate(server::Tiny(), *body);
    if (!server::HasText(request)) continue;
    if (request->text) {
      server::Prepare(dsv4::Result<server::CompletionsRequest>(std::move(*request->text)));
    } else {
      server::Prepare(dsv4::Result<server::OpenAiChatRequest>(std::move(request->chat)));
    }
  }
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const Result<chat::JsonValue> body = chat::ReadJson({reinterpret_cast<const char*>(data), size}, "seed");
  return body &&
         (server::ReadOpenAiChat(server::Tiny(), *body) || server::ReadAnthropic(server::Tiny(), *body) ||
          server::ReadResponses(server::Tiny(), *body) || server::ReadCompletions(server::Tiny(), *body) ||
          server::ReadOllamaGenerate(server::Tiny(), *body));
}
