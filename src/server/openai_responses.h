// POST /v1/responses: OpenAI's newer dialect. Nothing is stored, so previous_response_id is refused. Source: chat-encoding.md 5.4.
#pragma once

#include <memory>

#include "server/answer_writer.h"
#include "server/call_memory.h"
#include "server/chat_call.h"
#include "server/responses_tools.h"

namespace dsv4::server {

struct ResponsesRequest {
  ChatCall call;
  bool stream = false;
  ClientTools client_tools;
  // Given back in the reply as they came; null where absent.
  chat::JsonValue instructions, tools, tool_choice, metadata, text, reasoning;
};

// Errors name the field.
Result<ResponsesRequest> ReadResponses(const ServedModel& model, const chat::JsonValue& body);

// `memory` outlives the writer.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(const ServedModel& model, const ResponsesRequest& request,
                                                  CallMemory& memory);

}  // namespace dsv4::server
