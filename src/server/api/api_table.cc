// Table of all request fields by endpoint, and the OpenAPI document made of it.
#include "server/api/api_table.h"

#include <algorithm>

#include "base/json.h"
#include "chat/thinking.h"

namespace dsv4::server {
namespace {

// Beside chat::ThinkingFields.
constexpr ApiField kFields[] = {
    {"allowed_token_ids", "array:integer", kGenerate, "only these tokens are sampled"},
    {"background", "boolean", kResponses, "only false: answers are not made without a client"},
    {"bad_words", "string|array:string", kGenerate, "texts that the answer does not have"},
    {"best_of", "integer", kCompletions, "only the value of n: answers are not ranked"},
    {"cache_hit_threshold", "number", kChat | kCompletions,
     "part of the prompt that kept states must have, or the answer ends with cache_threshold"},
    {"cache_salt", "string", kGenerate, "separates what requests reuse"},
    {"continue_final_message", "boolean", kChat, "the last message is the beginning of the answer"},
    {"ebnf", "string", kGenerate, "a GBNF grammar of the content"},
    {"echo", "boolean", kCompletions, "the prompt in front of the answer"},
    {"frequency_penalty", "number", kGenerate, "subtracted for every occurrence of a token"},
    {"grammar", "string", kGenerate, "a GBNF or Lark grammar of the content"},
    {"guided_choice", "array:string", kGenerate, "texts, one of which the content is"},
    {"guided_decoding_backend", "string", kGenerate, "without effect"},
    {"guided_grammar", "string", kGenerate, "a GBNF or Lark grammar of the content"},
    {"guided_json", "object|string|boolean", kGenerate, "a JSON schema of the content"},
    {"guided_regex", "string", kGenerate, "a regular expression that all of the content matches"},
    {"ignore_eos", "boolean", kGenerate, "no end of sentence: for measurements"},
    {"include", "array:string", kResponses, "message.output_text.logprobs"},
    {"input", "string|array:object", kResponses, "the conversation"},
    {"instructions", "string", kResponses, "the system message"},
    {"json_schema", "object|string|boolean", kGenerate, "a JSON schema of the content"},
    {"kv_transfer_params", "object", kChat | kCompletions,
     "do_remote_decode: another server answers; do_remote_prefill: another has read the prompt"},
    {"logit_bias", "object", kGenerate, "by token id, added to the logit"},
    {"logprobs", "boolean", kChat, "log-probabilities of the answer's tokens"},
    {"logprobs", "integer", kCompletions, "log-probabilities of the tokens, and of so many others"},
    {"max_completion_tokens", "integer", kChat, "tokens of the answer at most, reasoning included"},
    {"max_output_tokens", "integer", kResponses, "tokens of the answer at most, reasoning included"},
    {"max_tokens", "integer", kChat | kCompletions | kMessages,
     "tokens of the answer at most, reasoning included"},
    {"messages", "array:object", kChat | kMessages, "the conversation"},
    {"metadata", "object", kResponses | kMessages, "given back"},
    {"min_p", "number", kGenerate, "at least so many times the most probable token"},
    {"min_tokens", "integer", kGenerate, "tokens of the answer at least"},
    {"model", "string", kGenerate, "a name that /v1/models lists"},
    {"n", "integer", kGenerate, "answers; 1 in responses and messages"},
    {"output_config", "object", kTurns, "effort; format, for messages"},
    {"output_format", "object", kMessages, "a JSON schema for the answer"},
    {"parallel_tool_calls", "boolean", kChat | kResponses, "false: the first call ends the answer"},
    {"penalty_window", "integer", kGenerate, "tokens that penalties see"},
    {"presence_penalty", "number", kGenerate, "subtracted once from tokens that were seen"},
    {"previous_response_id", "string", kResponses, "a stored response that the input follows"},
    {"priority", "integer", kGenerate, "a lower number is read first"},
    {"prompt", "string|array", kCompletions, "a text, token ids, or a list of either"},
    {"prompt_logprobs", "integer", kChat | kCompletions, "log-probabilities of the prompt's tokens"},
    {"regex", "string", kGenerate, "a regular expression that all of the content matches"},
    {"repetition_penalty", "number", kGenerate, "divides the logits of tokens that were seen"},
    {"response_format", "object", kChat | kCompletions,
     "text, json_object, json_schema, regex, grammar, ebnf or structural_tag"},
    {"return_token_ids", "boolean", kChat | kCompletions,
     "answers name their tokens (token_ids) and those of the prompt (prompt_token_ids)"},
    {"seed", "integer", kGenerate, "makes the answer repeatable"},
    {"speculation", "string", kGenerate, "auto, off, suffix[:K], mtp[:K] or dspark[:K]"},
    {"stop", "string|array:string", kChat | kCompletions, "texts that end the answer"},
    {"stop_sequences", "string|array:string", kMessages, "texts that end the answer"},
    {"stop_token_ids", "array:integer", kGenerate, "tokens that end the answer"},
    {"store", "boolean", kResponses, "whether previous_response_id may name the response later"},
    {"stream", "boolean", kGenerate, "events instead of a whole reply"},
    {"stream_options", "object", kChat | kCompletions, "include_usage"},
    {"structural_tag", "object|string", kGenerate, "a structural tag that the content obeys"},
    {"structured_outputs", "object", kGenerate,
     "json, regex, choice, grammar, json_object or structural_tag"},
    {"suffix", "string", kCompletions, "the text behind the hole that the answer fills"},
    {"system", "string|array:object", kMessages, "the system message"},
    {"temperature", "number", kGenerate, "0: greedy"},
    {"text", "object", kResponses, "format"},
    {"timeout", "number", kGenerate, "seconds"},
    {"tool_choice", "string|object", kChat | kResponses, "auto, none, required or a function"},
    {"tool_choice", "object", kMessages, "auto, any, tool or none"},
    {"tools", "array:object", kChat | kResponses | kMessages, "functions that may be called"},
    {"top_k", "integer", kGenerate, "the so many most probable tokens"},
    {"top_logprobs", "integer", kChat | kResponses, "of each token, so many of the most probable ones"},
    {"top_p", "number", kGenerate, "the smallest set of tokens whose probabilities reach it"},
    {"truncation", "string", kResponses, "disabled: a conversation that is too long is refused"},
    {"user", "string", kResponses, "without effect"},
};

Json TypeSchema(std::string_view type) {
  Json options = Json::array();
  for (size_t begin = 0; begin <= type.size();) {
    const size_t end = std::min(type.find('|', begin), type.size());
    const std::string_view one = type.substr(begin, end - begin);
    const size_t colon = one.find(':');
    Json schema = {{"type", one.substr(0, colon)}};
    if (colon != std::string_view::npos) schema["items"] = {{"type", one.substr(colon + 1)}};
    options.push_back(std::move(schema));
    begin = end + 1;
  }
  return options.size() == 1 ? options[0] : Json{{"anyOf", options}};
}

bool IsRequired(std::string_view name, ApiReader reader) {
  return name == "messages" || (name == "prompt" && reader == kCompletions) || name == "input";
}

Json BodySchema(const ApiRoute& route) {
  Json properties = Json::object();
  Json required = Json::array();
  const auto add = [&](std::string_view name, std::string_view type, std::string_view says, bool needed) {
    Json schema = TypeSchema(type);
    schema["description"] = says;
    properties[std::string(name)] = std::move(schema);
    if (needed) required.push_back(name);
  };
  for (const ApiField& field : ApiFields()) {
    if ((field.readers & route.reader) != 0)
      add(field.name, field.type, field.says, IsRequired(field.name, route.reader));
  }
  for (const ApiField& field : route.own_fields) add(field.name, field.type, field.says, field.required);
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

Json Content(std::string_view type) {
  return {{"description", "OK"}, {"content", {{type, {{"schema", Json::object()}}}}}};
}

Json Operation(const ApiRoute& route) {
  Json operation = {{"summary", route.says}};
  Json ok = Content(route.content_type);
  if (route.reader != kNoBody && !route.path.ends_with("tokens"))
    ok["content"]["text/event-stream"] = {{"schema", Json::object()}};
  Json error = Content("application/json");
  error["description"] = "An error that names the field";
  operation["responses"] = {{"200", std::move(ok)}, {"4XX", error}, {"503", error}, {"504", error}};
  if (route.method == "POST") {
    operation["requestBody"] = {{"required", true},
                                {"content", {{"application/json", {{"schema", BodySchema(route)}}}}}};
  }
  if (route.path.size() > 1 && route.path.ends_with('/')) {
    operation["parameters"] = Json::array(
        {{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (route.open) operation["security"] = Json::array();
  return operation;
}

}  // namespace

std::span<const ApiField> ApiFields() {
  static const std::vector<ApiField> all = [] {
    std::vector<ApiField> fields(std::begin(kFields), std::end(kFields));
    for (const chat::ThinkingField& field : chat::ThinkingFields()) {
      const bool has_own = std::ranges::find(kFields, field.name, &ApiField::name) != std::end(kFields);
      if (field.inside.empty() && !has_own)
        fields.push_back({.name = field.name, .type = field.type, .readers = kTurns, .says = field.says});
    }
    std::ranges::stable_sort(fields, {}, &ApiField::name);
    return fields;
  }();
  return all;
}

std::vector<std::string> TableFaults(ApiReader reader, const std::vector<std::string>& asked_for) {
  std::vector<std::string> faults;
  for (const std::string& name : asked_for) {
    const bool known = std::ranges::any_of(ApiFields(), [&](const ApiField& field) {
      return field.name == name && (field.readers & reader) != 0;
    });
    if (!known) faults.push_back(name + " is read and not in the table");
  }
  for (const ApiField& field : ApiFields()) {
    if ((field.readers & reader) != 0 && std::ranges::find(asked_for, field.name) == asked_for.end())
      faults.push_back(std::string(field.name) + " is in the table and not read");
  }
  return faults;
}

std::string OpenApiDocument(std::string_view version, std::span<const ApiRoute> routes) {
  Json paths = Json::object();
  for (const ApiRoute& route : routes) {
    std::string path(route.path);
    if (path.size() > 1 && path.ends_with('/')) path += "{name}";
    std::string method(route.method);
    std::ranges::transform(method, method.begin(), [](char c) { return static_cast<char>(c | 0x20); });
    paths[path][method] = Operation(route);
  }
  return JsonText({{"openapi", "3.1.0"},
                   {"info", {{"title", "dsv4 serve"}, {"version", version}}},
                   {"paths", std::move(paths)},
                   {"components", {{"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
                   {"security", Json::array({Json::object(), {{"key", Json::array()}}})}});
}

}  // namespace dsv4::server
