// Lists of refused and effectless fields with their reasons, and notes of unknown ones.
#include "server/dialects/known_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include "base/check.h"
#include "chat/thinking.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kNoSound = "this model reads and writes text alone";

// The revision whose models read pictures.
constexpr std::string_view kReadsPictures = "v4.1";

// The place of the first picture in a list of messages, items or parts; empty where there is none. Arguments of calls are not looked into.
std::string FindPicture(const chat::JsonValue& list, const std::string& where) {
  for (size_t i = 0; i < list.items().size(); ++i) {
    const chat::JsonValue& item = list.items()[i];
    const std::string place = fmt::format("{}[{}]", where, i);
    if (!item.is_object()) {
      if (where.ends_with("images")) return place;
      continue;
    }
    const chat::JsonValue* type = item.Find("type");
    if (type != nullptr && type->is_string() && type->text().find("image") != std::string::npos) return place;
    for (const std::string_view name : {"content", "output", "images"}) {
      const chat::JsonValue* inner = item.Find(name);
      if (inner == nullptr || !inner->is_array()) continue;
      if (std::string found = FindPicture(*inner, fmt::format("{}.{}", place, name)); !found.empty())
        return found;
    }
  }
  return {};
}

constexpr std::string_view kBudgets = "reasoning_budget_tokens|reasoning_budget|thinking_budget_tokens";

// Taken from the request schemas of those projects, 2026-11. tests/fixtures/rival-fields.json has their
// names. Each is here, in the table of fields, or below among those that change no answer.
constexpr KnownField kFields[] = {
    {"adaptive_target", "llama.cpp", "-1.0", ""},
    {"add_generation_prompt", "vllm", "true", "continue_final_message"},
    {"add_special_tokens", "vllm", "false", ""},
    {"audio", "openai", "", kNoSound, "modalities"},
    {"best_of", "openai", "1", ""},
    {"chat_format", "llama.cpp", "0", ""},
    {"chat_parser", "llama.cpp", "", ""},
    {"chat_template", "vllm", "", "serve --revision"},
    {"compaction", "anthropic", "", ""},
    {"container", "anthropic", "", ""},
    {"context_management", "anthropic and openai",
     "{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}", ""},
    {"conversation", "openai", "", "the conversation as input"},
    {"custom_logit_processor", "sglang", "", "thinking_budget or logit_bias"},
    {"custom_params", "sglang", "{}", ""},
    {"documents", "vllm", "", "a message"},
    {"dry_multiplier", "llama.cpp", "0", "repetition_penalty"},
    {"dynatemp_range", "llama.cpp", "0", ""},
    {"ec_transfer_params", "vllm", "{}", ""},
    {"echo", "vllm", "", "/v1/completions"},
    {"epsilon_cutoff", "vllm", "0", "min_p"},
    {"eta_cutoff", "vllm", "0", "min_p"},
    {"function_call", "openai", "\"auto\"", "tool_choice", "functions"},
    {"functions", "openai", "", "tools"},
    {"generation_prompt", "llama.cpp", "", "continue_final_message"},
    {"grammar_lazy", "llama.cpp", "false", "structural_tag"},
    {"grammar_triggers", "llama.cpp", "", "structural_tag", "grammar_lazy"},
    {"guided_whitespace_pattern", "vllm", "", "", "guided_json"},
    {"image", "openai", "", kNoSound},
    {"include_reasoning", "vllm", "true", ""},
    {"include_stop_str_in_output", "vllm", "", ""},
    {"input_ids", "sglang", "", "/v1/completions with a list of ids as prompt"},
    {"kv_transfer_params", "vllm", "{}", ""},
    {"length_penalty", "vllm", "1", "", "use_beam_search"},
    {"logits_processors", "vllm", "", "logit_bias"},
    {"logprob_token_ids", "vllm", "", "top_logprobs", "logprobs"},
    {"lora", "llama.cpp", "", ""},
    {"lora_path", "sglang", "", ""},
    {"mcp_servers", "anthropic", "", "tools"},
    {"min_keep", "llama.cpp", "0", ""},
    {"min_new_tokens", "sglang", "0", ""},
    {"min_thinking_tokens", "nim", "0", ""},
    {"mirostat", "llama.cpp", "0", "min_p"},
    {"mm_processor_kwargs", "vllm", "{}", ""},
    {"modalities", "openai", "[\"text\"]", kNoSound},
    {"n_cache_reuse", "llama.cpp", "0", ""},
    {"n_cmpl", "llama.cpp", "1", "n"},
    {"n_discard", "llama.cpp", "0", ""},
    {"n_indent", "llama.cpp", "0", ""},
    {"n_keep", "llama.cpp", "0", ""},
    {"n_predict", "llama.cpp", "-1", "max_tokens"},
    {"n_probs", "llama.cpp", "0", "logprobs"},
    {"no_repeat_ngram_size", "vllm", "0", "repetition_penalty"},
    {"no_stop_trim", "sglang", "", ""},
    {"num_beams", "vllm", "1", ""},
    {"parse_tool_calls", "llama.cpp", "true", ""},
    {"penalty_alpha", "vllm", "0", ""},
    {"post_sampling_probs", "llama.cpp", "false", ""},
    {"preserved_tokens", "llama.cpp", "", "", "grammar_lazy"},
    {"prompt", "openai", "", "messages or input"},
    {"prompt_logprobs", "vllm", "", "/v1/completions or /v1/chat/completions"},
    {"reasoning_budget_end_tag", "llama.cpp", "", "", kBudgets},
    {"reasoning_budget_end_tags", "llama.cpp", "", "", kBudgets},
    {"reasoning_budget_message", "llama.cpp", "", "", kBudgets},
    {"reasoning_budget_start_tag", "llama.cpp", "", "", kBudgets},
    {"reasoning_budget_tokens", "llama.cpp", "-1", "thinking.budget_tokens"},
    {"reasoning_format", "llama.cpp", "\"auto\"", ""},
    {"reasoning_split", "minimax", "true", ""},
    {"repeat_last_n", "llama.cpp", "64", "penalty_window"},
    {"repeat_penalty", "llama.cpp", "1", "repetition_penalty"},
    {"repetition_detection", "vllm", "", "repetition_penalty"},
    {"response_fields", "llama.cpp", "", ""},
    {"return_cached_tokens_details", "sglang", "false", "usage"},
    {"return_hidden_states", "sglang", "", ""},
    {"return_meta_info", "sglang", "false", ""},
    {"return_prompt_text", "vllm", "false", "/tokenize"},
    {"return_prompt_token_ids", "sglang", "false", "/tokenize"},
    {"return_routed_experts", "sglang", "false", ""},
    {"return_token_ids", "vllm", "", ""},
    {"return_tokens", "llama.cpp", "false", ""},
    {"return_tokens_as_token_ids", "vllm", "", ""},
    {"samplers", "llama.cpp", "", ""},
    {"separate_reasoning", "sglang", "true", ""},
    {"session_params", "sglang", "{}", "previous_response_id"},
    {"skip_special_tokens", "vllm", "true", ""},
    {"spaces_between_special_tokens", "vllm", "true", ""},
    {"stop_regex", "sglang", "", "stop"},
    {"stream_reasoning", "sglang", "true", ""},
    {"suffix", "openai", "", ""},
    {"t_max_predict_ms", "llama.cpp", "0", ""},
    {"task", "sglang", "", "messages[].task"},
    {"tfs_z", "llama.cpp", "1", "min_p"},
    {"thinking_token_budget", "vllm", "", "thinking.budget_tokens"},
    {"thread", "anthropic", "", ""},
    {"top_a", "vllm", "0", "min_p"},
    {"top_n_sigma", "llama.cpp", "-1", "min_p"},
    {"truncate_prompt_tokens", "vllm", "", ""},
    {"truncation_side", "vllm", "", "", "truncate_prompt_tokens"},
    {"typ_p", "llama.cpp", "1", "min_p"},
    {"typical_p", "llama.cpp", "1", "min_p"},
    {"use_beam_search", "vllm", "", ""},
    {"verbosity", "openai", "\"medium\"", ""},
    {"vllm_xargs", "vllm", "{}", ""},
    {"watermarking", "vllm", "false", ""},
    {"web_search_options", "openai", "", "tools"},
    {"xtc_probability", "llama.cpp", "0", ""},
};

// Taken, since they change no answer here.
constexpr std::string_view kRouting[] = {"bootstrap_host",
                                         "bootstrap_port",
                                         "bootstrap_room",
                                         "custom_labels",
                                         "data_parallel_rank",
                                         "disagg_prefill_dp_rank",
                                         "extra_key",
                                         "id_slot",
                                         "inference_geo",
                                         "request_id",
                                         "rid",
                                         "routed_dp_rank",
                                         "session_id",
                                         "user_profile_id",
                                         "workspace_id"};
constexpr std::string_view kAccounts[] = {"access_programs", "betas",
                                          "billing_policy",  "client_metadata",
                                          "diagnostics",     "fallback_credit_token",
                                          "fallbacks",       "metadata",
                                          "moderation",      "safety_identifier",
                                          "service_tier",    "speed",
                                          "store",           "user"};
constexpr std::string_view kSpeed[] = {"backend_sampling", "background_options",   "cache_control",
                                       "cache_prompt",     "ngram_corpus_id",      "prediction",
                                       "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"};
constexpr std::string_view kStreams[] = {
    "reasoning_control",        "return_mm_kwargs",  "return_progress",
    "return_token_offsets",     "return_token_strs", "routed_experts_prompt_start",
    "routed_experts_start_len", "sse_ping_interval", "stream_interval",
    "stream_options",           "timings_per_token", "verbose"};
constexpr std::string_view kPictures[] = {"images_config", "max_dynamic_patch", "media_io_kwargs",
                                          "min_dynamic_patch", "use_audio_in_video"};
constexpr std::string_view kElsewhere[] = {"max_tool_calls"};
constexpr std::string_view kFiner[] = {"adaptive_decay",     "dry_allowed_length",    "dry_base",
                                       "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent",
                                       "mirostat_eta",       "mirostat_tau",          "xtc_threshold"};
constexpr IdleFields kIdle[] = {
    {"says which of several machines, adapters of a pipeline or labels of metrics a request is for",
     kRouting},
    {"accounts, billing, safety systems and what is kept of a request elsewhere", kAccounts},
    {"speed or caching alone", kSpeed},
    {"how a stream is cut into events, and reports beside the answer", kStreams},
    {"pictures and sounds, which the model does not read", kPictures},
    {"bounds tools that the server runs, and here is none", kElsewhere},
    {"the finer setting of a switch that is refused", kFiner},
};

// Members read of objects of options beside those of chat::ThinkingFields. Objects in neither are not looked into.
struct OptionObject {
  std::string_view path;
  std::array<std::string_view, 8> members;
  uint32_t readers = kGenerate;  // The ApiReader bits of dialects that read the members.
};
constexpr std::array<std::string_view, 8> kSchemaMembers = {"type", "name", "description", "schema",
                                                            "strict"};
constexpr OptionObject kOptionObjects[] = {
    {"output_config", {"format"}, kMessages},
    {"output_config.format", kSchemaMembers},
    {"output_format", kSchemaMembers},
    // Responses have the whole reasoning as its summary.
    {"reasoning", {"summary", "generate_summary"}},
    {"response_format.json_schema", kSchemaMembers},
    // Nothing pads the events of a stream.
    {"stream_options", {"include_usage", "include_obfuscation"}},
    {"text", {"format"}},
    {"text.format", kSchemaMembers},
    // display: the thinking is shown whatever it says, since the next request must bring it back.
    {"thinking", {"display"}},
    {"tool_choice",
     {"type", "name", "function", "namespace", "allowed_tools", "mode", "tools",
      "disable_parallel_tool_use"}},
};

double NumberOf(const chat::JsonValue& value) {
  int64_t integer = 0;
  return ToInteger(value, &integer) ? static_cast<double>(integer) : value.number();
}

bool IsNumber(const chat::JsonValue& value) {
  return value.kind() == chat::JsonValue::Kind::kInteger || value.kind() == chat::JsonValue::Kind::kDouble;
}

// Values that say nothing wherever they stand: false, nothing at all, and objects and lists of such.
bool SaysNothing(const chat::JsonValue& value) {
  if (!value.is_object()) return value.SaysNothing();
  return std::ranges::all_of(value.members(),
                             [](const chat::JsonValue::Member& one) { return SaysNothing(one.second); });
}

// Objects that ask for something by being there: their members have defaults.
bool AsksByItself(std::string_view name) {
  constexpr std::string_view kNames[] = {"web_search_options", "compaction"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

// Equal whatever the order of members.
bool IsSame(const chat::JsonValue& a, const chat::JsonValue& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) return std::ranges::equal(a.items(), b.items(), IsSame);
  if (!a.is_object()) return chat::WriteJson(a) == chat::WriteJson(b);
  return a.members().size() == b.members().size() &&
         std::ranges::all_of(a.members(), [&](const chat::JsonValue::Member& one) {
           const chat::JsonValue* const other = b.Find(one.first);
           return other != nullptr && IsSame(one.second, *other);
         });
}

bool AsksForNothing(const chat::JsonValue& value, const KnownField& field) {
  if (value.is_bool() && !value.boolean()) return field.neutral != "true";
  if (SaysNothing(value) && !(value.is_object() && AsksByItself(field.name))) return true;
  if (field.neutral.empty()) return false;
  const Result<chat::JsonValue> neutral = chat::ReadJson(field.neutral, field.name);
  if (!neutral) return false;
  if (IsNumber(value) && IsNumber(*neutral)) return NumberOf(value) == NumberOf(*neutral);
  return IsSame(value, *neutral);
}

// Whether another field of the request takes the meaning of this one, or already does what it asks for.
bool IsIdleBeside(Fields& fields, const chat::JsonValue& value, const KnownField& field) {
  const auto says = [&](std::string_view name) {
    const chat::JsonValue* const other = fields.Find(name);
    return other != nullptr && !SaysNothing(*other);
  };
  bool has_other = field.only_beside.empty();
  for (std::string_view names = field.only_beside; !names.empty();) {
    const std::string_view name = names.substr(0, names.find('|'));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    has_other = has_other || says(name);
  }
  if (!has_other) return true;
  // vLLM wants the pair; here the one field does both, as DeepSeek's prefix of the last message does.
  if (field.name == "add_generation_prompt") {
    const chat::JsonValue* const messages = fields.Find("messages");
    const bool has_last = messages != nullptr && !messages->items().empty();
    const chat::JsonValue* const prefix = has_last ? messages->items().back().Find("prefix") : nullptr;
    return says("continue_final_message") || (prefix != nullptr && prefix->boolean());
  }
  if (field.name == "best_of") {
    const chat::JsonValue* const answers = fields.Find("n");
    return answers != nullptr && IsNumber(value) && IsNumber(*answers) &&
           NumberOf(value) == NumberOf(*answers);
  }
  return false;
}

bool IsIdle(std::string_view name) {
  return std::ranges::any_of(kIdle, [&](const IdleFields& group) {
    return std::ranges::find(group.names, name) != group.names.end();
  });
}

// By names with dots between; null where one is missing.
const chat::JsonValue* At(const chat::JsonValue& body, std::string_view path) {
  const chat::JsonValue* value = &body;
  while (value != nullptr && !path.empty()) {
    const std::string_view name = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    value = value->is_object() ? value->Find(name) : nullptr;
  }
  return value;
}

// Members that are read of each object of options, with the bits of their readers.
const std::map<std::string_view, std::map<std::string_view, uint32_t>>& KnownMembers() {
  static const auto all = [] {
    std::map<std::string_view, std::map<std::string_view, uint32_t>> members;
    for (const OptionObject& object : kOptionObjects) {
      for (const std::string_view name : object.members) members[object.path][name] |= object.readers;
    }
    for (const chat::ThinkingField& field : chat::ThinkingFields()) {
      if (!field.inside.empty()) members[field.inside][field.name] |= kTurns;
    }
    return members;
  }();
  return all;
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
std::span<const IdleFields> FieldsWithoutEffect() { return kIdle; }

void ExpectThinking(Fields& fields) {
  for (const chat::ThinkingField& field : chat::ThinkingFields()) {
    if (field.inside.empty()) fields.Expect({field.name});
  }
}

void CheckFields(Fields& fields, const chat::JsonValue& body, ApiReader reader, const ServedModel& model,
                 SamplingCall& call) {
  CheckTable(fields, reader);
  RefuseUnsupported(fields);
  NoteUnknown(fields, body, reader, model, call.unknown_fields);
  fields.Adopt(RefusePictures(model, body));
}

Status RefusePictures(const ServedModel& model, const chat::JsonValue& body) {
  if (model.profile == nullptr || model.profile->revision != kReadsPictures) return {};
  for (const std::string_view name : {"messages", "input", "images"}) {
    const chat::JsonValue* list = body.Find(name);
    if (list == nullptr || !list->is_array()) continue;
    const std::string found = FindPicture(*list, std::string(name));
    if (found.empty()) continue;
    return InvalidArgument(
        fmt::format("{}: a picture; the model reads pictures and dsv4 does not yet, wanted text", found));
  }
  return {};
}

void NoteUnknown(Fields& fields, const chat::JsonValue& body, ApiReader reader, const ServedModel& model,
                 std::vector<std::string>& unknown) {
  for (std::string& name : fields.Unknown()) {
    if (!IsIdle(name)) unknown.push_back(std::move(name));
  }
  for (const auto& [path, known] : KnownMembers()) {
    const chat::JsonValue* value = At(body, path);
    if (value == nullptr || !value->is_object()) continue;
    for (const auto& [name, member] : value->members()) {
      const auto found = known.find(name);
      if (!member.is_null() && (found == known.end() || (found->second & reader) == 0))
        unknown.push_back(fmt::format("{}.{}", path, name));
    }
  }
  if (model.refuse_unknown_fields && !unknown.empty())
    fields.Fail(unknown.front(), "a field that is not known here (--unknown-fields refuse)");
}

void RefuseUnsupported(Fields& fields) {
  for (const std::string& name : fields.Unknown()) {
    const auto* const field =
        std::ranges::lower_bound(kFields, std::string_view(name), {}, &KnownField::name);
    if (field == std::end(kFields) || field->name != name) continue;
    const chat::JsonValue* value = fields.Find(name);  // None for null.
    if (value == nullptr || AsksForNothing(*value, *field) || IsIdleBeside(fields, *value, *field)) continue;
    fields.Fail(name, field->instead.empty()
                          ? fmt::format("a field of {} that is not supported here", field->of)
                          : fmt::format("a field of {} that is not supported here; {}", field->of,
                                        field->instead == kNoSound ? std::string(kNoSound)
                                                                   : fmt::format("see {}", field->instead)));
    return;
  }
}

}  // namespace dsv4::server
