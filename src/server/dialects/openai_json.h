// Pieces of OpenAI's JSON that several endpoints share. Include only in .cc files: the JSON header is heavy.
#pragma once

#include "base/json.h"
#include "sampling/sampler.h"
#include "server/api/answer_writer.h"
#include "server/api/chat_call.h"
#include "server/api/fields.h"
#include "server/api/served_model.h"

namespace dsv4::server {

// {"prompt_tokens", "completion_tokens", "total_tokens", details, and the hosted API's cache hit and miss}.
Json OpenAiUsage(const Usage& usage);
// kv_transfer_params of an answer, which a router sends to the server that is to go on. Where that one has to
// read the prompt itself, do_remote_prefill is false.
Json TransferParams(const Usage& usage);

// {"token", "logprob", "bytes", "top_logprobs"}; a token may end inside a character, so `bytes` is exact and
// `token` a best effort.
Json OpenAiLogprob(const tokenizer::Tokenizer& tokenizer, const sampling::SampledToken& token);
Json OpenAiLogprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<sampling::SampledToken>& tokens);

// vLLM's prompt_logprobs: null for the first token, then an object by token id for each. It has the most
// probable tokens and the one of the prompt, each with its rank.
Json PromptLogprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<sampling::ScoredToken>& scored);
// prompt_logprobs, which whole answers have.
void ReadPromptLogprobs(Fields& fields, bool streamed, SamplingCall& call);

// Reads stream and stream_options. Mistakes inside stream_options are returned, others stay in `fields`.
Status ReadStreaming(Fields& fields, bool* stream, bool* include_usage);

// Layout in which a dialect has what is said of a function: chat completions in a member "function",
// responses beside the type.
enum class FunctionLayout : uint8_t { kNested, kFlat };
// Reads tool_choice; `mark` as FunctionName has it. Mistakes stay in `fields`.
void ReadToolChoice(Fields& fields, FunctionLayout layout, std::string_view mark, ChatCall& call);
// Rule of the request's tools[i] for the server alone; `function` has the members, `where`
// ("tools[0].function.") is its path.
Result<ToolRule> ReadToolRule(const chat::JsonValue& function, const std::string& where);

}  // namespace dsv4::server
