// The endpoints below /api: ollama's dialect, for clients that speak nothing else. A request becomes one of
// chat completions, or of completions; a streamed reply is lines of JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/api/answer_writer.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"

namespace dsv4::server {

enum class OllamaKind : uint8_t { kChat, kGenerate };

struct OllamaRequest {
  OllamaKind kind = OllamaKind::kChat;
  OpenAiChatRequest chat;
  std::optional<CompletionsRequest>
      text;  // Instead of the chat: a prompt that is continued as it is, or a hole.
  bool stream = true;
};

// The model's name without ollama's tag (":latest").
std::string WithoutTag(const std::string& name);

// Errors name the field.
Result<OllamaRequest> ReadOllamaChat(const ServedModel& model, const chat::JsonValue& body);
Result<OllamaRequest> ReadOllamaGenerate(const ServedModel& model, const chat::JsonValue& body);

// The reply to a request that only wants the model loaded (no messages, no prompt), or unloaded (`keep_alive`
// 0); empty for any other.
std::string OllamaLoad(const ServedModel& model, const chat::JsonValue& body, OllamaKind kind);

std::unique_ptr<AnswerWriter> MakeOllamaWriter(const ServedModel& model, const OllamaRequest& request);

// {"error": "message"}
std::string OllamaError(const Status& status);

// The list of /api/tags, and of /api/ps.
std::string OllamaModels(const ServedModel& model, bool running);
// /api/show
std::string OllamaShow(const ServedModel& model);

}  // namespace dsv4::server
