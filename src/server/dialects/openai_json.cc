// Common pieces of OpenAI's JSON: usage, log-probabilities, tool choice.
#include "server/dialects/openai_json.h"

#include <fmt/format.h>

#include "server/dialects/responses_tools.h"

namespace dsv4::server {
namespace {

Json TokenJson(const tokenizer::Tokenizer& tokenizer, int32_t id, float logprob) {
  const int32_t ids[] = {id};
  Json bytes = Json::array();
  for (const char byte : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", tokenizer.Decode(ids)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

Json OpenAiUsage(const Usage& usage) {
  return {{"prompt_tokens", usage.num_prompt_tokens},
          {"completion_tokens", usage.num_output_tokens},
          {"total_tokens", usage.num_prompt_tokens + usage.num_output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.num_cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.num_reasoning_tokens}}},
          {"prompt_cache_hit_tokens", usage.num_cached_tokens},
          {"prompt_cache_miss_tokens", usage.num_prompt_tokens - usage.num_cached_tokens}};
}

Json TransferParams(const Usage& usage) {
  return {{"do_remote_decode", false},
          {"do_remote_prefill", usage.num_published_tokens > 0},
          {"remote_engine_id", nullptr},
          {"remote_block_ids", nullptr},
          {"remote_host", nullptr},
          {"remote_port", nullptr},
          {"remote_num_tokens", usage.num_published_tokens}};
}

Json OpenAiLogprob(const tokenizer::Tokenizer& tokenizer, const sampling::SampledToken& token) {
  Json entry = TokenJson(tokenizer, token.id, token.logprob);
  entry["top_logprobs"] = Json::array();
  for (const auto& top : token.top)
    entry["top_logprobs"].push_back(TokenJson(tokenizer, top.id, top.logprob));
  return entry;
}

Json OpenAiLogprobs(const tokenizer::Tokenizer& tokenizer,
                    const std::vector<sampling::SampledToken>& tokens) {
  Json list = Json::array();
  for (const sampling::SampledToken& token : tokens) list.push_back(OpenAiLogprob(tokenizer, token));
  return list;
}

Json PromptLogprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<sampling::ScoredToken>& scored) {
  Json list = Json::array({nullptr});
  for (const sampling::ScoredToken& token : scored) {
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob, int64_t rank) {
      const int32_t ids[] = {id};
      entry[fmt::format("{}", id)] = {
          {"logprob", logprob}, {"rank", rank}, {"decoded_token", tokenizer.Decode(ids)}};
    };
    int64_t rank = 1;
    for (const sampling::TokenLogprob& top : token.token.top) add(top.id, top.logprob, rank++);
    add(token.token.id, token.token.logprob, token.rank);
    list.push_back(std::move(entry));
  }
  return list;
}

void ReadPromptLogprobs(Fields& fields, bool streamed, SamplingCall& call) {
  int wanted = -1;
  if (!fields.Read("prompt_logprobs", &wanted)) return;
  if (wanted < 0 || wanted > 20) fields.Fail("prompt_logprobs", fmt::format("got {}, wanted 0..20", wanted));
  if (streamed) fields.Fail("prompt_logprobs", "a whole answer has them, wanted no stream");
  call.num_prompt_logprobs = wanted;
}

Status ReadStreaming(Fields& fields, bool* stream, bool* include_usage) {
  fields.Read("stream", stream);
  const chat::JsonValue* stream_options = nullptr;
  if (!fields.ReadObject("stream_options", &stream_options)) return {};
  Fields options(*stream_options, "stream_options.");
  options.Read("include_usage", include_usage);
  return options.status();
}

void ReadToolChoice(Fields& fields, FunctionLayout layout, std::string_view mark, ChatCall& call) {
  const chat::JsonValue* choice = fields.Find("tool_choice");
  if (choice == nullptr) return;
  // Name of a function, in either layout; empty where it has none.
  const auto name_of = [&](const chat::JsonValue& function) {
    const chat::JsonValue* inner = function.Find("function");
    const chat::JsonValue* holder = inner == nullptr ? &function : inner;
    const chat::JsonValue* name = holder->Find("name");
    const chat::JsonValue* name_space = holder->Find("namespace");
    std::string full = name == nullptr ? std::string() : name->text();
    if (layout == FunctionLayout::kFlat && name_space != nullptr)
      full = FunctionName(mark, name_space->text(), full);
    return full;
  };
  const auto read_mode = [&](const chat::JsonValue* mode, std::string_view field) {
    const std::string name = mode == nullptr ? std::string() : mode->text();
    if (name == "required" || name == "any")
      call.tool_choice = ToolChoice::kRequired;
    else if (name != "auto")
      fields.Fail(field, fmt::format("got {}, wanted auto or required",
                                     mode == nullptr ? "nothing" : chat::WriteJson(*mode)));
  };
  const chat::JsonValue* type = choice->Find("type");
  // A mode is a word, or an object that has nothing but the word, as Anthropic writes it.
  const chat::JsonValue* mode = choice->is_object() ? type : choice;
  const std::string word = mode == nullptr || !mode->is_string() ? std::string() : mode->text();
  if (word == "none") {
    call.tool_choice = ToolChoice::kNone;
    return;
  }
  if (word == "auto" || word == "required" || word == "any") return read_mode(mode, "tool_choice");
  if (!choice->is_object()) {
    return fields.Fail("tool_choice", fmt::format("got {}, wanted auto, none, required or a function",
                                                  chat::WriteJson(*choice)));
  }
  if (word == "allowed_tools") {
    const std::string path =
        layout == FunctionLayout::kNested ? "tool_choice.allowed_tools." : "tool_choice.";
    const chat::JsonValue* allowed =
        layout == FunctionLayout::kNested ? choice->Find("allowed_tools") : choice;
    const chat::JsonValue* tools = allowed == nullptr ? nullptr : allowed->Find("tools");
    if (tools == nullptr || !tools->is_array() || tools->items().empty())
      return fields.Fail(path + "tools", "wanted a list of functions");
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const std::string name = name_of(tools->items()[i]);
      if (name.empty()) return fields.Fail(fmt::format("{}tools[{}]", path, i), "wanted a function's name");
      call.tool_names.push_back(name);
    }
    return read_mode(allowed->Find("mode"), path + "mode");
  }
  const std::string name = name_of(*choice);
  if (name.empty()) {
    return fields.Fail(layout == FunctionLayout::kNested ? "tool_choice.function.name" : "tool_choice.name",
                       "wanted a string");
  }
  call.tool_choice = ToolChoice::kRequired;
  call.tool_names = {name};
}

Result<ToolRule> ReadToolRule(const chat::JsonValue& function, const std::string& where) {
  Fields fields(function, where);
  ToolRule rule = {.schema_label = where + "parameters"};
  fields.Read("strict", &rule.strict);
  const chat::JsonValue* parameters = nullptr;
  fields.ReadObject("parameters", &parameters);
  DSV4_TRY(fields.status());
  return rule;
}

}  // namespace dsv4::server
