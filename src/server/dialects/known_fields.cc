#include "server/dialects/known_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kNoSound = "this model reads and writes text alone";

// Taken from the request schemas of those projects, 2026-11.
constexpr KnownField kFields[] = {
    {"adaptive_target", "llama.cpp", "-1.0", ""},
    {"add_generation_prompt", "vllm", "true", "continue_final_message"},
    {"add_special_tokens", "vllm", "false", ""},
    {"audio", "openai", "", kNoSound},
    {"best_of", "openai", "1", ""},
    {"chat_template", "vllm", "", "serve --revision"},
    {"container", "anthropic", "", ""},
    {"conversation", "openai", "", "the conversation as input"},
    {"custom_logit_processor", "sglang", "", ""},
    {"custom_params", "sglang", "{}", ""},
    {"documents", "vllm", "", "a message"},
    {"dry_multiplier", "llama.cpp", "0", "repetition_penalty"},
    {"dynatemp_range", "llama.cpp", "0", ""},
    {"echo", "vllm", "", "/v1/completions"},
    {"epsilon_cutoff", "vllm", "0", "min_p"},
    {"eta_cutoff", "vllm", "0", "min_p"},
    {"function_call", "openai", "\"auto\"", "tool_choice"},
    {"functions", "openai", "", "tools"},
    {"grammar_lazy", "llama.cpp", "false", "structural_tag"},
    {"grammar_triggers", "llama.cpp", "", "structural_tag"},
    {"guided_whitespace_pattern", "vllm", "", ""},
    {"include_stop_str_in_output", "vllm", "", ""},
    {"input_ids", "sglang", "", "/v1/completions with a list of ids as prompt"},
    {"length_penalty", "vllm", "1", ""},
    {"logits_processors", "vllm", "", "logit_bias"},
    {"lora", "llama.cpp", "", ""},
    {"lora_path", "sglang", "", ""},
    {"max_tool_calls", "openai", "", ""},
    {"mcp_servers", "anthropic", "", "tools"},
    {"min_keep", "llama.cpp", "0", ""},
    {"min_new_tokens", "sglang", "0", ""},
    {"mirostat", "llama.cpp", "0", "min_p"},
    {"mm_processor_kwargs", "vllm", "{}", ""},
    {"modalities", "openai", "[\"text\"]", kNoSound},
    {"n_indent", "llama.cpp", "0", ""},
    {"n_keep", "llama.cpp", "0", ""},
    {"n_predict", "llama.cpp", "-1", "max_tokens"},
    {"n_probs", "llama.cpp", "0", "logprobs"},
    {"no_repeat_ngram_size", "vllm", "0", "repetition_penalty"},
    {"no_stop_trim", "sglang", "", ""},
    {"num_beams", "vllm", "1", ""},
    {"penalty_alpha", "vllm", "0", ""},
    {"prompt", "openai", "", "messages"},
    {"prompt_logprobs", "vllm", "", "/v1/completions or /v1/chat/completions"},
    {"reasoning_format", "llama.cpp", "\"auto\"", ""},
    {"repeat_last_n", "llama.cpp", "64", "penalty_window"},
    {"repeat_penalty", "llama.cpp", "1", "repetition_penalty"},
    {"return_hidden_states", "sglang", "", ""},
    {"return_token_ids", "vllm", "", ""},
    {"return_tokens_as_token_ids", "vllm", "", ""},
    {"samplers", "llama.cpp", "", ""},
    {"separate_reasoning", "sglang", "true", ""},
    {"skip_special_tokens", "vllm", "true", ""},
    {"spaces_between_special_tokens", "vllm", "true", ""},
    {"stop_regex", "sglang", "", "stop"},
    {"suffix", "openai", "", ""},
    {"t_max_predict_ms", "llama.cpp", "0", ""},
    {"tfs_z", "llama.cpp", "1", "min_p"},
    {"thinking_token_budget", "vllm", "", "thinking.budget_tokens"},
    {"top_a", "vllm", "0", "min_p"},
    {"top_n_sigma", "llama.cpp", "-1", "min_p"},
    {"truncate_prompt_tokens", "vllm", "", ""},
    {"typ_p", "llama.cpp", "1", "min_p"},
    {"typical_p", "llama.cpp", "1", "min_p"},
    {"use_beam_search", "vllm", "", ""},
    {"web_search_options", "openai", "", "tools"},
    {"xtc_probability", "llama.cpp", "0", ""},
};

double NumberOf(const chat::JsonValue& value) {
  int64_t integer = 0;
  return ToInteger(value, &integer) ? static_cast<double>(integer) : value.number();
}

bool IsNumber(const chat::JsonValue& value) {
  return value.kind() == chat::JsonValue::Kind::kInteger || value.kind() == chat::JsonValue::Kind::kDouble;
}

bool AsksForNothing(const chat::JsonValue& value, const KnownField& field) {
  if (value.is_bool() && !value.boolean()) return field.neutral != "true";
  if (value.is_string() && value.text().empty()) return true;
  if (value.is_array() && value.items().empty()) return true;
  if (field.neutral.empty()) return false;
  const Result<chat::JsonValue> neutral = chat::ReadJson(field.neutral, field.name);
  if (!neutral) return false;
  if (IsNumber(value) && IsNumber(*neutral)) return NumberOf(value) == NumberOf(*neutral);
  return chat::WriteJson(value) == chat::WriteJson(*neutral);
}

// Once for each reader: what it asks for does not depend on the body.
void CheckTable(const Fields& fields, ApiReader reader) {
  static std::atomic<uint32_t> checked = 0;
  if ((checked.fetch_or(reader) & reader) != 0) return;
  const std::vector<std::string> faults = TableFaults(reader, fields.asked_for());
  DSV4_CHECK(faults.empty()) << fmt::format("api_table.cc: {}", fmt::join(faults, "; "));
}

}  // namespace

std::span<const KnownField> UnsupportedFields() { return kFields; }

void RefuseUnsupported(Fields& fields, ApiReader reader) {
  CheckTable(fields, reader);
  RefuseUnsupported(fields);
}

void RefuseUnsupported(Fields& fields) {
  for (const std::string& name : fields.Unknown()) {
    const auto* const field =
        std::ranges::lower_bound(kFields, std::string_view(name), {}, &KnownField::name);
    if (field == std::end(kFields) || field->name != name) continue;
    const chat::JsonValue* value = fields.Find(name);  // None for null.
    if (value == nullptr || AsksForNothing(*value, *field)) continue;
    fields.Fail(name, field->instead.empty()
                          ? fmt::format("a field of {} that is not supported here", field->of)
                          : fmt::format("a field of {} that is not supported here; {}", field->of,
                                        field->instead == kNoSound ? std::string(kNoSound)
                                                                   : fmt::format("see {}", field->instead)));
    return;
  }
}

}  // namespace dsv4::server
