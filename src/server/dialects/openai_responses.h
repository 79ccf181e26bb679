// POST /v1/responses: OpenAI's newer dialect. Source: chat-encoding.md 5.4.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/call_memory.h"
#include "server/api/chat_call.h"
#include "server/dialects/responses_tools.h"

namespace dsv4::server {

struct ResponsesRequest {
  ChatCall call;
  bool stream = false;
  ClientTools client_tools;
  // Given back in the reply as they came; null where absent.
  chat::JsonValue instructions, tools, tool_choice, metadata, text, reasoning, user, top_logprobs;
  std::string previous;       // previous_response_id; or empty.
  chat::JsonValue own_input;  // The items of the request itself: a list.
  bool store = true;          // The client wants to go on from it by its id.
};

// Errors name the field. `history` is the conversation up to and with the response that the request follows: see PreviousResponse.
Result<ResponsesRequest> ReadResponses(const ServedModel& model, const chat::JsonValue& body,
                                       std::vector<chat::JsonValue> history = {});
// previous_response_id; empty without one.
std::string PreviousResponse(const chat::JsonValue& body);

// `memory` outlives the writer. `keep` (may be empty) sees the reply's id and text once it is complete.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(
    const ServedModel& model, const ResponsesRequest& request, CallMemory& memory,
    std::function<void(const std::string& id, const std::string& reply)> keep = {});

}  // namespace dsv4::server
