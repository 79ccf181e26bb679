// A request to generate, whatever dialect it came in: what every API reads its own fields into, and what
// becomes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/api_policy.h"
#include "chat/thinking.h"
#include "engine/request.h"
#include "grammar/rules/answer_grammar.h"
#include "server/api/call_memory.h"
#include "server/api/fields.h"
#include "server/api/served_model.h"
#include "session/answer_options.h"
#include "session/answer_reader.h"
#include "session/answer_shape.h"

namespace dsv4::server {

// How the answer is to be sampled and ended.
struct SamplingCall : session::AnswerOptions {
  bool has_seed = false;
  bool has_temperature = false;
  bool has_top_p = false;
  int num_choices = 1;
  bool wants_token_ids = false;  // In the answer, beside the texts.
  bool wants_transfer = false;   // Its answer says how another server goes on (kv_transfer_params).
  int64_t min_tokens = 0;
  std::vector<std::string> bad_words;   // Texts that the answer does not have, reasoning included.
  std::vector<int32_t> allowed_tokens;  // Empty: all.
  // Rule for the content, where it is not conversation.response_format that says it.
  std::optional<grammar::ContentRule> rule;
  // Members of the request that nothing here knows: they change nothing, and the client is told.
  std::vector<std::string> unknown_fields;
};

// Reads the fields whose names all dialects share. Mistakes stay in `fields`.
//   temperature, top_p, top_k, min_p, the penalties, penalty_window, logit_bias, seed, n
//   stop_token_ids, ignore_eos, min_tokens, bad_words, allowed_token_ids
//   prompt_logprobs, priority, timeout, cache_salt
void ReadSampling(Fields& fields, SamplingCall& call);

// Reads kv_transfer_params and cache_hit_threshold, by which routers have one server read a prompt and
// another answer it.
void ReadTransfer(Fields& fields, const ServedModel& model, SamplingCall& call);

// The texts that end the answer, by the name that the dialect has for them.
void ReadStop(Fields& fields, std::string_view name, SamplingCall& call);

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

// Rules that a request says of a tool beside what the model gets to see.
struct ToolRule {
  bool strict = false;       // Every call satisfies the tool's schema.
  std::string schema_label;  // Name by which errors call that schema: "tools[0].function.parameters".
  std::optional<grammar::CallableTool::Text> text = {};  // Text of a custom tool with a grammar.
};

struct ChatCall {
  chat::ApiConversation conversation;
  chat::ThinkingSettings thinking;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<std::string> tool_names;  // Only these may be called; empty: all.
  std::vector<ToolRule> tool_rules;     // By conversation.tools.
  bool parallel_calls = true;           // False: the first call ends the answer.
  // Name by which errors call the schema of conversation.response_format.
  std::string schema_label = "response_format.json_schema.schema";
  SamplingCall sampling;
};

// The parts of an answer's shape that are still to be compiled.
struct GrammarWork {
  session::AnswerShape shape;
  std::optional<grammar::AnswerRules> rules;
  bool of_free_calls =
      false;  // The rules are of calls in an answer that is free, which may do without them unless they must be kept.
  bool of_calls = false;  // They are of a call that must come.
  bool must = false;
  std::vector<std::string> bad_words;
};

// The requests of one call, and how to read what comes back.
struct PreparedCall {
  std::vector<engine::Request> requests;  // One a choice. Not to be started before Complete.
  session::AnswerFormat format;
  int64_t num_prompt_tokens = 0;
  GrammarWork grammar;
  std::string notice;  // The model's, on the conversation (session::ModelCard).
};

// The client: for fairness and for the separation of caches.
struct Caller {
  uint64_t owner = 0;        // Owner of the caches: the API key's.
  uint64_t share = 0;        // engine::Request::owner: its key's, and without keys its address's.
  uint64_t store_owner = 0;  // The same as owner for ResponseStore,
  uint64_t batch_owner = 0;  // and for BatchStore.
};

// Fields that the request leaves open: max_tokens, and while thinking temperature and top_p
// (session::AnswerDefaults). Call it once thinking and tools are known.
void FillDefaults(const ServedModel& model, ChatCall& call);

// Whether Complete has nothing to compile, which may take a second.
bool IsAtHand(const ServedModel& model, const GrammarWork& work);
// Makes the requests' constraints.
Status Complete(const ServedModel& model, PreparedCall& call);

// Renders and tokenizes. Errors name the field or message.
Result<PreparedCall> PrepareChat(const ServedModel& model, const CallMemory& memory, const Caller& caller,
                                 ChatCall call);
// The prompt's ids alone.
Result<std::vector<int32_t>> ChatPrompt(const ServedModel& model, const CallMemory& memory, ChatCall call);
// A prompt that is continued as it is; `prompt` has ids already.
Result<PreparedCall> PrepareText(const ServedModel& model, const Caller& caller, std::vector<int32_t> prompt,
                                 const SamplingCall& sampling);

}  // namespace dsv4::server
