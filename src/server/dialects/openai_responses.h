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
  // The answer is a summary of the conversation, as an item that stands for it (compaction_trigger,
  // /v1/responses/compact).
  bool compacts = false;
  bool compacts_alone = false;  // /v1/responses/compact: the reply has another shape.
};

// The beginning of the encrypted_content of a compaction that was made here: the summary follows as it is.
constexpr std::string_view kOwnCompaction = "dsv4:";

// An item that is stored here, by its id.
using FindItem = std::function<Result<chat::JsonValue>(const std::string& id)>;

// Errors name the field. `history` is the conversation up to and with the response that the request follows:
// see PreviousResponse. `find` may be empty: nothing is stored. `compacts`: as if a compaction_trigger stood
// at the end of the input.
Result<ResponsesRequest> ReadResponses(const ServedModel& model, chat::JsonValue body,
                                       std::vector<chat::JsonValue> history = {}, const FindItem& find = {},
                                       bool compacts = false);
// previous_response_id; empty without one.
std::string PreviousResponse(const chat::JsonValue& body);

// `memory` outlives the writer. Of a request that compacts alone its own_input is taken. `keep` (may be empty) sees the reply's id and text once it is complete.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(
    const ServedModel& model, ResponsesRequest& request, CallMemory& memory,
    std::function<void(const std::string& id, const std::string& reply)> keep = {});

}  // namespace dsv4::server
