// Texts of `run` about a finished answer: the JSON document, and one line of speed for people.
#pragma once

#include <optional>
#include <string>

#include "apps/shared/chat_runtime.h"

namespace dsv4::apps {

// {text, reasoning_content, content, tool_calls, token_ids, prompt_token_ids, finish_reason, logprobs, usage,
// timings, notice, seed, backend, device}, and `verify` where steps were verified. `notice`: ModelCard::NoticeOn.
std::string RunReportJson(const ChatRuntime& runtime, const Generation& generation,
                          const ChatRuntime::Ask& ask, double load_seconds, const std::string& notice,
                          const std::optional<diag::VerifySummary>& verify);

// "template v4-0731, effort: the model's own, temperature 1, top-p 1": what is in force. `profile` is null
// for raw text. Filters and penalties that do nothing are left out.
std::string SettingsLine(const chat::ChatProfile* profile, chat::ThinkingMode mode,
                         const std::optional<std::string>& effort, const sampling::SamplingParams& sampling);

// "prompt 14 tokens in 0.21 s (66 tok/s), answer 30 tokens in 1.02 s (29 tok/s)".
std::string SpeedLine(const Generation& generation);

// A line about an answer that a limit ended: "the answer is cut at its limit of 6 tokens (-n, --max-tokens)";
// empty for others.
std::string CutLine(const Generation& generation, std::optional<int64_t> max_tokens);

}  // namespace dsv4::apps
