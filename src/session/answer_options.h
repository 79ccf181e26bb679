// How an answer is to be sampled and ended, and the engine's request that says so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/profile.h"
#include "engine/request.h"
#include "sampling/sampling_params.h"
#include "session/text_model.h"

namespace dsv4::session {

struct AnswerOptions {
  sampling::SamplingParams sampling = {};
  std::optional<int64_t> max_tokens = {};  // Absent: to the end of the context.
  std::vector<std::string> stop = {};      // Strings that end the answer; they apply to its content.
  std::vector<int32_t> stop_tokens = {};   // Beside those of the model.
  int num_logprobs = -1;                   // engine::Request::num_logprobs
  std::optional<double> timeout_seconds = {};
  speculation::Choice speculation = {};  // engine::Request::speculation
  std::string cache_salt = {};
  bool ignore_eos = false;       // No stop token is sampled: for measurements.
  int num_prompt_logprobs = -1;  // engine::Request::num_prompt_logprobs
  int64_t priority = 0;          // engine::Request::priority, and the members of these names:
  double least_cached_part = 0.0;
  bool publish = false;
  bool expects_state = false;
};

// Defaults that DeepSeek's own service does where a request says nothing (its package deepseek-recipe).
struct AnswerDefaults {
  float temperature_thinking = 1.0F;
  float top_p_thinking_with_tools = 0.95F;
  // Tokens of an answer at most; 0: as many as the context has room for.
  int64_t max_tokens_chat = 8192;
  int64_t max_tokens_thinking = 65536;
  int64_t max_tokens_max_effort = 131072;
};

// The shorter of each length and the model's own (ModelCard). A default that was set to another value than the built-in one stays.
AnswerDefaults Limited(AnswerDefaults defaults, std::optional<int64_t> max_new_tokens);

// Bound of an answer in this mode; `effort` is the level that is rendered.
int64_t DefaultMaxTokens(const AnswerDefaults& defaults, chat::ThinkingMode mode,
                         const std::optional<std::string>& effort);

// InvalidArgument, which names `name`, where one of AnswerOptions::stop is empty: every answer has such a
// text in front of it.
Status CheckStop(std::string_view name, std::span<const std::string> stop);

// `owner` is the client, for fairness and for the separation of caches. The constraint is left to the caller
// (answer_shape.h). InvalidArgument for a stop token that the model does not have.
Result<engine::Request> MakeRequest(const TextModel& text, std::vector<int32_t> prompt,
                                    const AnswerOptions& options, uint64_t owner = 0);

}  // namespace dsv4::session
