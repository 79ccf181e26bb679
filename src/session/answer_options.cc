// Default lengths of answers, checks of stop strings, and the engine's request.
#include "session/answer_options.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "session/prompt.h"

namespace dsv4::session {

AnswerDefaults Limited(AnswerDefaults defaults, std::optional<int64_t> max_new_tokens) {
  if (!max_new_tokens) return defaults;
  const AnswerDefaults built_in;
  for (const auto length : {&AnswerDefaults::max_tokens_chat, &AnswerDefaults::max_tokens_thinking,
                            &AnswerDefaults::max_tokens_max_effort}) {
    if (defaults.*length == built_in.*length) defaults.*length = std::min(defaults.*length, *max_new_tokens);
  }
  return defaults;
}

int64_t DefaultMaxTokens(const AnswerDefaults& defaults, chat::ThinkingMode mode,
                         const std::optional<std::string>& effort) {
  if (mode == chat::ThinkingMode::kChat) return defaults.max_tokens_chat;
  const bool is_most = effort == "max" || effort == "100";
  return is_most ? defaults.max_tokens_max_effort : defaults.max_tokens_thinking;
}

Status CheckStop(std::string_view name, std::span<const std::string> stop) {
  for (const std::string& text : stop) {
    if (text.empty())
      return InvalidArgument(fmt::format("{}: got an empty text, wanted at least one character", name));
  }
  return {};
}

Result<engine::Request> MakeRequest(const TextModel& text, std::vector<int32_t> prompt,
                                    const AnswerOptions& options, uint64_t owner) {
  engine::Request request;
  request.branch_points = BranchPoints(text, prompt);
  request.prompt = std::move(prompt);
  request.sampling = options.sampling;
  request.max_tokens = options.max_tokens.value_or(std::numeric_limits<int64_t>::max());
  request.num_logprobs = options.num_logprobs;
  request.num_prompt_logprobs = options.num_prompt_logprobs;
  request.priority = options.priority;
  request.least_cached_part = options.least_cached_part;
  request.publish = options.publish;
  request.expects_state = options.expects_state;
  for (const int32_t token : text.StopTokens()) request.stop_tokens.insert(token);
  for (const int32_t token : options.stop_tokens) {
    if (token >= text.vocab_size) {
      return Error(
          InvalidArgument(fmt::format("stop_token_ids: got {}, wanted 0..{}", token, text.vocab_size - 1)));
    }
    request.stop_tokens.insert(token);
  }
  if (options.ignore_eos) {
    for (const int32_t token : request.stop_tokens) {
      request.sampling.logit_bias[token] = -std::numeric_limits<float>::infinity();
    }
  }
  if (options.timeout_seconds) {
    request.deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                               std::chrono::duration<double>(*options.timeout_seconds));
  }
  request.speculation = options.speculation;
  request.owner = owner;
  request.cache_salt = XXH3_64bits_withSeed(options.cache_salt.data(), options.cache_salt.size(), owner);
  return request;
}

}  // namespace dsv4::session
