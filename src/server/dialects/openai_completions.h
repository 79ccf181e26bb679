// POST /v1/completions: text that is continued as it is, without the chat template. Special strings in a
// prompt are their tokens. No token is added, unless there is a suffix. Then prompt and suffix stand around a
// hole that the model was trained to fill, behind the beginning of sentence. Source: chat-encoding.md 5.5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/chat_call.h"

namespace dsv4::server {

struct CompletionsRequest {
  std::vector<std::vector<int32_t>> prompts;
  SamplingCall sampling;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool wants_prompt_logprobs = false;
  std::vector<std::string> echoed;  // Text of each prompt, where echo is asked for.
};

// Errors name the field.
Result<CompletionsRequest> ReadCompletions(const ServedModel& model, const chat::JsonValue& body);

// Choices are numbered prompt by prompt.
std::unique_ptr<AnswerWriter> MakeCompletionsWriter(const ServedModel& model,
                                                    const CompletionsRequest& request);

}  // namespace dsv4::server
