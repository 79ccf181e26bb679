// JSON document and speed line of a finished answer.
#include "apps/shared/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/shared/choose_backend.h"
#include "base/json.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

double PerSecond(int64_t count, double seconds) {
  return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
}

int64_t NumComputedPromptTokens(const Generation& generation) {
  return std::max<int64_t>(0, generation.num_prompt_tokens_done - generation.num_cached_tokens);
}

// A token may end inside a character, so its text is a best effort and `bytes` is exact.
Json TokenJson(const tokenizer::Tokenizer& tokenizer, int32_t id, float logprob) {
  const int32_t ids[] = {id};
  Json bytes = Json::array();
  for (const char byte : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", tokenizer.Decode(ids)}, {"id", id}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

Json LogprobsJson(const tokenizer::Tokenizer& tokenizer, const Generation& generation) {
  Json list = Json::array();
  for (const sampling::SampledToken& token : generation.tokens) {
    Json entry = TokenJson(tokenizer, token.id, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const auto& top : token.top)
      entry["top_logprobs"].push_back(TokenJson(tokenizer, top.id, top.logprob));
    list.push_back(std::move(entry));
  }
  return list;
}

std::string FinishReasonText(const Generation& generation) {
  if (generation.cancelled()) return "cancelled";
  return std::string(chat::FinishReasonName(generation.completion.finish_reason));
}

// Infinity and NaN have no JSON.
Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json VerifyJson(const diag::VerifySummary& verify) {
  const bool any = verify.num_verified > 0;
  const auto measured = [&](double value) { return any ? Finite(value) : Json(nullptr); };
  return {{"verdict", diag::VerifyVerdictName(verify.verdict())},
          {"decoded", verify.num_decoded},
          {"sampled", verify.num_sampled},
          {"verified", verify.num_verified},
          {"dropped", verify.num_dropped},
          {"bound", verify.bound},
          {"past_bound", verify.num_past_bound},
          {"mean_error", measured(verify.mean_error)},
          {"worst_error", measured(verify.worst_error)},
          {"worst_position", any ? Json(verify.worst_step.position) : Json(nullptr)},
          {"mean_kl", measured(verify.mean_kl)},
          {"worst_kl", measured(verify.worst_kl)},
          {"top1_changed", verify.num_top1_changed},
          {"error", verify.status.ok() ? Json(nullptr) : Json(verify.status.message())}};
}

}  // namespace

std::string CutLine(const Generation& generation, std::optional<int64_t> max_tokens) {
  if (generation.completion.finish_reason != chat::FinishReason::kLength) return {};
  const std::string_view what =
      generation.completion.message.content.empty() ? "no answer yet: the reasoning" : "the answer";
  const auto length = static_cast<int64_t>(generation.tokens.size());
  if (max_tokens && length >= *max_tokens)
    return fmt::format("{} is cut at its limit of {} (-n, --max-tokens)", what,
                       Counted(*max_tokens, "token"));
  return fmt::format("{} is cut after {}: the context is full", what, Counted(length, "token"));
}

std::string RunReportJson(const ChatRuntime& runtime, const Generation& generation,
                          const ChatRuntime::Ask& ask, double load_seconds, const std::string& notice,
                          const std::optional<diag::VerifySummary>& verify) {
  const chat::ParsedCompletion& message = generation.completion.message;
  const BackendName ran_on = SplitBackendName(runtime.backend_name());
  const auto num_prompt = static_cast<int64_t>(generation.prompt_token_ids.size());
  const auto num_output = static_cast<int64_t>(generation.tokens.size());

  Json token_ids = Json::array();
  for (const sampling::SampledToken& token : generation.tokens) token_ids.push_back(token.id);
  Json tool_calls = Json::array();
  for (const chat::ParsedCall& call : message.tool_calls) {
    tool_calls.push_back(
        {{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  Json report = {
      {"text", generation.text},
      {"reasoning_content", message.reasoning_content},
      {"content", message.content},
      {"tool_calls", std::move(tool_calls)},
      {"token_ids", std::move(token_ids)},
      {"prompt_token_ids", generation.prompt_token_ids},
      {"finish_reason", FinishReasonText(generation)},
      {"logprobs", ask.num_logprobs >= 0 ? LogprobsJson(runtime.tokenizer(), generation) : Json(nullptr)},
      {"usage",
       {{"prompt_tokens", num_prompt},
        {"completion_tokens", num_output},
        {"total_tokens", num_prompt + num_output},
        {"prompt_tokens_details", {{"cached_tokens", generation.num_cached_tokens}}},
        {"completion_tokens_details", {{"reasoning_tokens", generation.num_reasoning_tokens}}}}},
      {"timings",
       {{"load_seconds", load_seconds},
        {"prefill_seconds", generation.prefill_seconds},
        {"decode_seconds", generation.decode_seconds},
        {"prefill_tokens_per_second",
         PerSecond(NumComputedPromptTokens(generation), generation.prefill_seconds)},
        {"decode_tokens_per_second", PerSecond(num_output, generation.decode_seconds)},
        {"tokens_per_step",
         static_cast<double>(num_output) / static_cast<double>(std::max<int64_t>(1, generation.num_steps))}}},
      {"notice", notice.empty() ? Json(nullptr) : Json(notice)},
      {"seed", ask.sampling.seed},
      {"backend", ran_on.backend},
      {"device", ran_on.device},
  };
  if (verify) report["verify"] = VerifyJson(*verify);
  return report.dump();
}

std::string SettingsLine(const chat::ChatProfile* profile, chat::ThinkingMode mode,
                         const std::optional<std::string>& effort, const sampling::SamplingParams& sampling) {
  std::string line = "no template";
  if (profile != nullptr) {
    line = fmt::format("template {}, ", profile->revision);
    if (mode == chat::ThinkingMode::kChat) {
      line += "no reasoning";
    } else {
      if (effort || !profile->default_effort.empty()) {
        line += fmt::format("effort {}", effort ? *effort : std::string(profile->default_effort));
      } else {
        line += "effort: the model's own";
      }
    }
  }
  if (sampling.temperature == 0.0F) {
    line += ", greedy";
  } else {
    line += fmt::format(", temperature {}, top-p {}", sampling.temperature, sampling.top_p);
    if (sampling.top_k != 0) line += fmt::format(", top-k {}", sampling.top_k);
    if (sampling.min_p != 0) line += fmt::format(", min-p {}", sampling.min_p);
  }
  if (sampling.repetition_penalty != 1)
    line += fmt::format(", repetition-penalty {}", sampling.repetition_penalty);
  if (sampling.presence_penalty != 0) line += fmt::format(", presence-penalty {}", sampling.presence_penalty);
  if (sampling.frequency_penalty != 0)
    line += fmt::format(", frequency-penalty {}", sampling.frequency_penalty);
  if (!sampling.logit_bias.empty())
    line += fmt::format(", logit-bias on {}", Counted(sampling.logit_bias.size(), "token"));
  return line;
}

std::string SpeedLine(const Generation& generation) {
  const int64_t num_computed = NumComputedPromptTokens(generation);
  const auto num_output = static_cast<int64_t>(generation.tokens.size());
  const auto num_prompt = static_cast<int64_t>(generation.prompt_token_ids.size());
  const bool all = generation.num_prompt_tokens_done >= num_prompt;
  std::string line = fmt::format(
      "prompt {}{} in {:.2f} s ({:.0f} tok/s)", all ? std::string() : fmt::format("{} of ", num_computed),
      Counted(all ? num_computed : num_prompt, "token"), generation.prefill_seconds,
      PerSecond(num_computed, generation.prefill_seconds));
  if (generation.num_cached_tokens > 0) line += fmt::format(" after {} reused", generation.num_cached_tokens);
  line += fmt::format(", answer {} in {:.2f} s", Counted(num_output, "token"), generation.decode_seconds);
  if (num_output < 2)
    return line;  // The first comes with the prompt's last step: a rate of it alone is none.
  line += fmt::format(" ({:.0f} tok/s", PerSecond(num_output, generation.decode_seconds));
  if (generation.num_steps < num_output) {
    line += fmt::format(", {:.2f} tokens a step",
                        static_cast<double>(num_output) / static_cast<double>(generation.num_steps));
  }
  return line + ")";
}

}  // namespace dsv4::apps
