// POST /api/chat and GET /api/tags: ollama's dialect, for clients that speak nothing else. A request becomes one of chat completions;
// a streamed reply is lines of JSON.
#pragma once

#include <memory>
#include <string>

#include "server/api/answer_writer.h"
#include "server/dialects/openai_chat.h"

namespace dsv4::server {

struct OllamaRequest {
  OpenAiChatRequest chat;
  bool stream = true;
};

// The model's name without ollama's tag (":latest").
std::string WithoutTag(const std::string& name);

// Errors name the field.
Result<OllamaRequest> ReadOllamaChat(const ServedModel& model, const chat::JsonValue& body);

std::unique_ptr<AnswerWriter> MakeOllamaWriter(const ServedModel& model, const OllamaRequest& request);

// {"error": "message"}
std::string OllamaError(const Status& status);

// The list of /api/tags.
std::string OllamaTags(const ServedModel& model);

}  // namespace dsv4::server
