// Preparation of a generation from a read request: prompt, rules of tools and content, sampling, limits.
#include "server/api/chat_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "grammar/forbidden_text.h"
#include "grammar/rules/answer_grammar.h"
#include "server/api/content_rule_fields.h"
#include "server/observe/random_id.h"
#include "session/answer_shape.h"
#include "session/prompt.h"

namespace dsv4::server {
namespace {

constexpr int kMaxChoices = 64;
constexpr size_t kMaxStopStrings = 16;

void ReadLogitBias(Fields& fields, sampling::SamplingParams& params) {
  const chat::JsonValue* biases = nullptr;
  if (!fields.ReadObject("logit_bias", &biases)) return;
  for (const auto& [name, value] : biases->members()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    int64_t integer = 0;
    const bool is_integer = ToInteger(value, &integer);
    const bool is_number = is_integer || value.kind() == chat::JsonValue::Kind::kDouble;
    if (error != std::errc() || end != name.data() + name.size() || !is_number) {
      fields.Fail("logit_bias",
                  fmt::format("got {}: {}, wanted a token id and a number", name, chat::WriteJson(value)));
      return;
    }
    const float bias = is_integer ? static_cast<float>(integer) : static_cast<float>(value.number());
    if (!std::isfinite(
            bias)) {  // -1e308 is infinite in fp32, and a token less to sample; of all tokens none would be left.
      fields.Fail("logit_bias",
                  fmt::format("got {}: {}, wanted a number that fp32 has", name, chat::WriteJson(value)));
      return;
    }
    params.logit_bias[id] = bias;
  }
}

Result<session::Prompt> MakePrompt(const ServedModel& model, const CallMemory& memory, ChatCall& call) {
  if (call.tool_choice == ToolChoice::kNone) call.conversation.tools.clear();
  memory.Restore(call.conversation.messages);
  chat::ApiConversation& conversation = call.conversation;
  conversation.continue_final_message |=
      !conversation.messages.empty() && conversation.messages.back().wo_eos;
  // Texts of megabytes are moved; what else the conversation says is asked again.
  std::vector<chat::Message> given = std::exchange(conversation.messages, {});
  chat::ApiConversation rest = conversation;
  rest.messages = std::move(given);
  DSV4_ASSIGN_OR_RETURN(const std::vector<chat::Message> messages,
                        chat::NormalizeApiMessages(*model.profile, std::move(rest)));
  const chat::RenderOptions options = {.mode = call.thinking.mode,
                                       .drop_thinking = call.thinking.drop_thinking,
                                       .effort = call.thinking.effort,
                                       .null_is_empty = true,
                                       .api_rules = true};
  return session::MakePrompt(
      model, messages, options, [&](size_t num_bytes) { return model.CheckLength(num_bytes); },
      kMaxTokensRead);
}

Result<std::vector<engine::Request>> MakeChoices(const ServedModel& model, const Caller& caller,
                                                 const std::vector<int32_t>& prompt,
                                                 const SamplingCall& sampling) {
  const uint64_t seed = sampling.has_seed ? sampling.sampling.seed : RandomSeed();
  std::vector<engine::Request> requests;
  for (int choice = 0; choice < sampling.num_choices; ++choice) {
    DSV4_ASSIGN_OR_RETURN(engine::Request request,
                          session::MakeRequest(model, prompt, sampling, caller.owner));
    request.sampling.seed = seed + static_cast<uint64_t>(choice);
    if (model.role == ServerRole::kPrefill) request.publish = true;
    if (model.role == ServerRole::kDecode) request.expects_state = true;
    request.owner = caller.share;
    requests.push_back(std::move(request));
  }
  return requests;
}

// The JSON schema of a tool's arguments; without one it takes none.
std::string ParametersOf(const chat::JsonValue& function) {
  const chat::JsonValue* parameters = function.Find("parameters");
  if (parameters == nullptr || parameters->is_null())
    return R"({"type": "object", "additionalProperties": false})";
  return chat::WriteJson(*parameters);
}

// The tools that may be called.
Result<std::vector<grammar::CallableTool>> CallableTools(const ChatCall& call) {
  const std::vector<chat::JsonValue>& tools = call.conversation.tools;
  std::vector<grammar::CallableTool> callable;
  std::vector<std::string> missing = call.tool_names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const chat::JsonValue* function = tools[i].Find("function");  // ParseTools has seen to it.
    const chat::JsonValue* name = function->Find("name");
    if (name == nullptr || !name->is_string())
      return Error(InvalidArgument(fmt::format("tools[{}]: without a name it cannot be called", i)));
    const bool listed = std::erase(missing, name->text()) > 0;
    if (!call.tool_names.empty() && !listed) continue;
    const ToolRule& rule = call.tool_rules[i];
    callable.push_back({.name = name->text(),
                        .parameters = ParametersOf(*function),
                        .strict = rule.strict,
                        .label = rule.schema_label,
                        .text = rule.text});
  }
  if (!missing.empty())
    return Error(InvalidArgument(fmt::format("tool_choice: no tool is named '{}'", missing.front())));
  return callable;
}

// The rules of calls. Of schemas that no grammar takes, or that are too large together, calls keep to names
// alone, but for strict tools.
Result<std::shared_ptr<const grammar::Program>> Calls(const ServedModel& model, grammar::AnswerRules& rules) {
  auto program = model.grammars->Compile(rules);
  const auto is_free = [](const grammar::CallableTool& tool) { return !tool.strict && !tool.text; };
  if (program || std::ranges::none_of(rules.tools, is_free)) return program;
  LogInfo(fmt::format("tools: calls keep to names alone: {}", program.error().message()));
  for (grammar::CallableTool& tool : rules.tools) {
    if (is_free(tool)) tool.parameters = R"({"type": "object"})";
  }
  return model.grammars->Compile(rules);
}

// Rules of calls that a free answer may come to. Null where no grammar takes them: the parser alone then
// looks after calls.
Result<std::shared_ptr<const grammar::Program>> FreeCalls(const ServedModel& model,
                                                          grammar::AnswerRules rules, bool must) {
  auto program = Calls(model, rules);
  if (program || must) return program;
  LogWarning(fmt::format("tools: calls are not constrained: {}", program.error().message()));
  return nullptr;
}

// Whatever it is that fails, the request is wrong.
Status Take(Result<std::shared_ptr<const grammar::Program>> program,
            std::shared_ptr<const grammar::Program>& into) {
  if (!program) return InvalidArgument(program.error().message());
  into = std::move(*program);
  return {};
}

// The rules of what the answer has to be, as far as its tools and its format say so.
Status AddRules(const ServedModel& model, const ChatCall& call, GrammarWork& work) {
  const chat::ApiConversation& conversation = call.conversation;
  DSV4_ASSIGN_OR_RETURN_STATUS(const chat::JsonValue schema,
                               chat::ResponseSchema(conversation.response_format));
  const bool required = call.tool_choice == ToolChoice::kRequired;
  const bool any_strict = !conversation.tools.empty() &&
                          std::any_of(call.tool_rules.begin(), call.tool_rules.end(),
                                      [](const ToolRule& one) { return one.strict || one.text.has_value(); });
  const bool named = !call.tool_names.empty() && call.tool_choice != ToolChoice::kNone;
  const std::optional<grammar::ContentRule>& rule = call.sampling.rule;
  const bool must = required || any_strict || named || !schema.is_null() || rule;
  if (!must && (conversation.tools.empty() || !model.Trie() || call.sampling.ignore_eos)) return {};
  const std::string field = required || named ? "tool_choice"
                            : any_strict      ? "tools"
                            : rule            ? rule->label
                                              : "response_format";
  work.shape.grammar_field = field;
  if (rule && (required || !schema.is_null())) {
    return InvalidArgument(fmt::format("{}: not beside {}, which says what the answer is too", rule->label,
                                       required ? "tool_choice" : "response_format"));
  }
  if (!model.Trie())
    return Unimplemented(fmt::format("{}: the model's tokenizer has no token for some bytes", field));
  if (call.sampling.ignore_eos)
    return InvalidArgument(fmt::format("ignore_eos: not beside {}, which says where the answer ends", field));
  grammar::AnswerRules rules = session::RulesOf(model, work.shape.starts_in_reasoning);
  rules.parallel_calls = call.parallel_calls;
  DSV4_ASSIGN_OR_RETURN_STATUS(rules.tools, CallableTools(call));
  work.must = must;
  if (!required && schema.is_null() && !rule) {
    work.of_free_calls = true;
    rules.content = grammar::ContentKind::kOpenCall;
    rules.starts_in_reasoning = false;
  } else if (required) {
    if (rules.tools.empty())
      return InvalidArgument("tool_choice: got required, but the request has no tools");
    work.of_calls = true;
    rules.content = grammar::ContentKind::kCall;
  } else {
    if (conversation.continue_final_message)
      return InvalidArgument(fmt::format("{}: an unfinished answer cannot be continued under it", field));
    rules.content = grammar::ContentKind::kRule;
    rules.rule = rule ? *rule
                      : grammar::ContentRule{.text = chat::WriteJson(schema),
                                             .label = call.schema_label,
                                             .strict = chat::IsStrict(conversation.response_format)};
  }
  work.rules = std::move(rules);
  return {};
}

// Limits that the request says of tokens and words, whatever the dialect.
Status AddLimits(const ServedModel& model, const SamplingCall& sampling, GrammarWork& work) {
  constexpr size_t kMaxBytesOfWords = size_t{256} << 10;
  session::AnswerShape& shape = work.shape;
  shape.min_tokens = sampling.min_tokens;
  shape.allowed_tokens = sampling.allowed_tokens;
  for (const int32_t token : sampling.allowed_tokens) {
    if (token >= model.vocab_size) {
      return InvalidArgument(
          fmt::format("allowed_token_ids: got {}, wanted 0..{}", token, model.vocab_size - 1));
    }
  }
  if (sampling.bad_words.empty()) return {};
  if (!model.Trie()) return Unimplemented("bad_words: the model's tokenizer has no token for some bytes");
  size_t num_bytes = 0;
  for (const std::string& word : sampling.bad_words) num_bytes += word.size();
  if (num_bytes > kMaxBytesOfWords) {
    return InvalidArgument(fmt::format("bad_words: got {} in all, wanted at most {}",
                                       Counted(num_bytes, "byte"), kMaxBytesOfWords));
  }
  work.bad_words = sampling.bad_words;
  return {};
}

}  // namespace

void ReadSampling(Fields& fields, SamplingCall& call) {
  sampling::SamplingParams& params = call.sampling;
  call.has_temperature = fields.Read("temperature", &params.temperature);
  call.has_top_p = fields.Read("top_p", &params.top_p);
  if (fields.Read("top_k", &params.top_k) && params.top_k == -1)
    params.top_k = 0;  // vLLM's spelling of "all".
  fields.Read("min_p", &params.min_p);
  fields.Read("repetition_penalty", &params.repetition_penalty);
  fields.Read("presence_penalty", &params.presence_penalty);
  fields.Read("frequency_penalty", &params.frequency_penalty);
  fields.Read("penalty_window", &params.penalty_window);
  ReadLogitBias(fields, params);
  call.has_seed = fields.Read("seed", &params.seed);
  if (fields.Read("n", &call.num_choices) && (call.num_choices < 1 || call.num_choices > kMaxChoices)) {
    fields.Fail("n", fmt::format("got {}, wanted 1..{}", call.num_choices, kMaxChoices));
  }
  fields.ReadTokens("stop_token_ids", &call.stop_tokens);
  float timeout = 0.0F;
  if (fields.Read("timeout", &timeout)) {
    if (!(timeout > 0.0F && timeout < 1e6F))
      fields.Fail("timeout", "wanted seconds, more than 0 and less than a million");
    call.timeout_seconds = timeout;
  }
  fields.Read("cache_salt", &call.cache_salt);
  if (std::string speculation; fields.Read("speculation", &speculation)) {
    if (const auto choice = speculation::ParseChoice(speculation); choice) {
      call.speculation = *choice;
    } else {
      fields.Fail("speculation", choice.error().message());
    }
  }
  fields.Read("ignore_eos", &call.ignore_eos);
  if (fields.Read("min_tokens", &call.min_tokens) && call.min_tokens < 0)
    fields.Fail("min_tokens", fmt::format("got {}, wanted 0 or more", call.min_tokens));
  if (call.max_tokens && call.min_tokens > 0 && call.min_tokens > *call.max_tokens)
    fields.Fail("min_tokens",
                fmt::format("got {}, more than max_tokens ({})", call.min_tokens, *call.max_tokens));
  fields.ReadStrings("bad_words", &call.bad_words);
  fields.ReadTokens("allowed_token_ids", &call.allowed_tokens);
  fields.Read("priority", &call.priority);
  ReadContentRule(fields, call.rule);
}

void ReadTransfer(Fields& fields, const ServedModel& model, SamplingCall& call) {
  if (float part = 0.0F; fields.Read("cache_hit_threshold", &part)) {
    if (!(part >= 0.0F && part <= 1.0F))
      fields.Fail("cache_hit_threshold", fmt::format("got {}, wanted 0..1", part));
    call.least_cached_part = part;
  }
  const chat::JsonValue* params = nullptr;
  if (!fields.ReadObject("kv_transfer_params", &params)) return;
  // Other members are the connectors' own: where a state is, which here says the directory.
  Fields inner(*params, "kv_transfer_params.");
  inner.Read("do_remote_decode", &call.publish);
  inner.Read("do_remote_prefill", &call.expects_state);
  call.wants_transfer = call.publish;
  const char* const asked = call.publish ? "do_remote_decode" : "do_remote_prefill";
  if (call.publish && call.expects_state)
    inner.Fail("do_remote_decode", "beside do_remote_prefill, wanted one of them");
  if ((call.publish || call.expects_state) && !model.shares_states)
    inner.Fail(asked, "this server shares no states with others (serve --prefix-cache-dir)");
  if (call.publish && model.role == ServerRole::kDecode)
    inner.Fail(asked, "this server is to answer prompts (--role decode), wanted one that reads them");
  if (call.expects_state && model.role == ServerRole::kPrefill)
    inner.Fail(asked, "this server is to read prompts (--role prefill), wanted one that answers them");
  fields.Adopt(inner.status());
}

void ReadStop(Fields& fields, std::string_view name, SamplingCall& call) {
  if (!fields.ReadStrings(name, &call.stop)) return;
  if (call.stop.size() > kMaxStopStrings)
    fields.Fail(
        name, fmt::format("got {}, wanted at most {}", Counted(call.stop.size(), "string"), kMaxStopStrings));
  fields.Adopt(session::CheckStop(name, call.stop));
}

void FillDefaults(const ServedModel& model, ChatCall& call) {
  SamplingCall& sampling = call.sampling;
  const bool thinks = call.thinking.mode == chat::ThinkingMode::kThinking;
  if (thinks) {
    const bool has_tools = !call.conversation.tools.empty() && call.tool_choice != ToolChoice::kNone;
    const bool own = model.own_sampling_while_thinking;
    if (own || !sampling.has_temperature) sampling.sampling.temperature = model.defaults.temperature_thinking;
    if (own || !sampling.has_top_p)
      sampling.sampling.top_p = has_tools ? model.defaults.top_p_thinking_with_tools : 1.0F;
  }
  if (sampling.max_tokens) return;
  const int64_t most = session::DefaultMaxTokens(model.defaults, call.thinking.mode, call.thinking.effort);
  if (most > 0) sampling.max_tokens = std::max(most, sampling.min_tokens);
}

Result<std::vector<int32_t>> ChatPrompt(const ServedModel& model, const CallMemory& memory, ChatCall call) {
  DSV4_ASSIGN_OR_RETURN(session::Prompt prompt, MakePrompt(model, memory, call));
  return std::move(prompt.ids);
}

Result<PreparedCall> PrepareChat(const ServedModel& model, const CallMemory& memory, const Caller& caller,
                                 ChatCall call) {
  if (call.sampling.max_tokens && *call.sampling.max_tokens <= 0) {
    return Error(
        InvalidArgument(fmt::format("max_tokens: got {}, wanted 1 or more", *call.sampling.max_tokens)));
  }
  DSV4_ASSIGN_OR_RETURN(session::Prompt prompt, MakePrompt(model, memory, call));
  const bool starts_in_reasoning = prompt.rendered.ends_in_reasoning;
  PreparedCall prepared;
  prepared.notice = std::move(prompt.notice);
  prepared.num_prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  prepared.format = session::ChatFormat(prompt, call.conversation.tools, call.sampling.stop);
  prepared.format.parallel_calls = call.parallel_calls;
  prepared.format.min_tokens = call.sampling.min_tokens;
  prepared.format.wants_tokens = call.sampling.num_logprobs >= 0 || call.sampling.wants_token_ids;
  DSV4_ASSIGN_OR_RETURN(prepared.requests, MakeChoices(model, caller, prompt.ids, call.sampling));
  prepared.grammar.shape = {.starts_in_reasoning = starts_in_reasoning,
                            .max_reasoning_tokens = call.thinking.max_reasoning_tokens};
  DSV4_TRY(AddRules(model, call, prepared.grammar));
  DSV4_TRY(AddLimits(model, call.sampling, prepared.grammar));
  return prepared;
}

Result<PreparedCall> PrepareText(const ServedModel& model, const Caller& caller, std::vector<int32_t> prompt,
                                 const SamplingCall& sampling) {
  PreparedCall prepared;
  prepared.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  prepared.format = {.stop = sampling.stop,
                     .wants_tokens = sampling.num_logprobs >= 0 || sampling.wants_token_ids,
                     .min_tokens = sampling.min_tokens};
  DSV4_ASSIGN_OR_RETURN(prepared.requests, MakeChoices(model, caller, prompt, sampling));
  GrammarWork& work = prepared.grammar;
  DSV4_TRY(AddLimits(model, sampling, work));
  if (sampling.rule) {
    const std::string& field = sampling.rule->label;
    if (!model.Trie())
      return Error(
          Unimplemented(fmt::format("{}: the model's tokenizer has no token for some bytes", field)));
    if (sampling.ignore_eos)
      return Error(
          InvalidArgument(fmt::format("ignore_eos: not beside {}, which says where the answer ends", field)));
    work.shape.grammar_field = field;
    work.rules = {.content = grammar::ContentKind::kRule, .rule = *sampling.rule};
    work.must = true;
  }
  return prepared;
}

bool IsAtHand(const ServedModel& model, const GrammarWork& work) {
  return work.bad_words.empty() && (!work.rules || model.grammars->Knows(*work.rules));
}

Status Complete(const ServedModel& model, PreparedCall& call) {
  GrammarWork& work = call.grammar;
  if (work.rules && work.of_free_calls) {
    DSV4_RETURN_IF_ERROR(Take(FreeCalls(model, std::move(*work.rules), work.must), work.shape.calls));
  } else if (work.rules) {
    DSV4_RETURN_IF_ERROR(
        Take(work.of_calls ? Calls(model, *work.rules) : model.grammars->Compile(*work.rules),
             work.shape.grammar));
  }
  if (!work.bad_words.empty()) {
    auto program = grammar::CompileWithoutWords(work.bad_words);
    if (!program) return InvalidArgument(fmt::format("bad_words: {}", program.error().message()));
    work.shape.without_words = std::move(*program);
  }
  // Fields that exclude each other from the start are a mistake of the request, and not of the answer.
  const bool may_exclude =
      !work.shape.allowed_tokens.empty() || (work.shape.without_words && work.shape.grammar);
  for (engine::Request& request : call.requests) {
    work.shape.stop_tokens.assign(request.stop_tokens.begin(), request.stop_tokens.end());
    DSV4_ASSIGN_OR_RETURN_STATUS(request.constraint, session::MakeConstraint(model, work.shape));
    if (!may_exclude) continue;
    const std::span<const uint64_t> first = request.constraint->Allowed();
    if (!first.empty() && std::ranges::all_of(first, [](uint64_t word) { return word == 0; }))
      return request.constraint->WhyNone();
  }
  return {};
}

}  // namespace dsv4::server
