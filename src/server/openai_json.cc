#include "server/openai_json.h"

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

Status ReadStreaming(Fields& fields, bool* stream, bool* include_usage) {
  fields.Read("stream", stream);
  const chat::JsonValue* stream_options = nullptr;
  if (!fields.ReadObject("stream_options", &stream_options)) return {};
  Fields options(*stream_options, "stream_options.");
  options.Read("include_usage", include_usage);
  return options.status();
}

}  // namespace dsv4::server
