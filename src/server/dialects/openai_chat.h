// POST /v1/chat/completions. Source: chat-encoding.md 5.2.
#pragma once

#include <memory>
#include <string>

#include "server/api/answer_writer.h"
#include "server/api/call_memory.h"
#include "server/api/chat_call.h"

namespace dsv4::server {

struct OpenAiChatRequest {
  ChatCall call;
  bool stream = false;
  bool include_usage = false;
};

// Errors name the field.
Result<OpenAiChatRequest> ReadOpenAiChat(const ServedModel& model, const chat::JsonValue& body);

// `memory` learns the calls that go out; it outlives the writer.
std::unique_ptr<AnswerWriter> MakeOpenAiChatWriter(const ServedModel& model, const OpenAiChatRequest& request,
                                                   CallMemory& memory);

}  // namespace dsv4::server
