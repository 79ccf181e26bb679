// POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect. Source: chat-encoding.md 5.3.
#pragma once

#include <memory>

#include "server/api/answer_writer.h"
#include "server/api/call_memory.h"
#include "server/api/chat_call.h"

namespace dsv4::server {

struct AnthropicRequest {
  ChatCall call;
  bool stream = false;
};

// Errors name the field.
Result<AnthropicRequest> ReadAnthropic(const ServedModel& model, const chat::JsonValue& body);

// `memory` outlives the writer.
std::unique_ptr<AnswerWriter> MakeAnthropicWriter(const ServedModel& model, const AnthropicRequest& request,
                                                  CallMemory& memory);

}  // namespace dsv4::server
