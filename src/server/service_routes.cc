// The table of endpoints, their other names, and what is not here.
#include <algorithm>
#include <span>
#include <utility>

#include "server/api/list_page.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

constexpr ApiField kTokenizeFields[] = {
    {"prompt", "string", kNoBody, "a text"},
    {"messages", "array:object", kNoBody, "a conversation, with the fields of a chat beside it"},
    {"return_token_strs", "boolean", kNoBody, "the tokens as texts too"},
};
constexpr ApiField kDetokenizeFields[] = {{"tokens", "array:integer", kNoBody, "token ids", true}};
constexpr ApiField kOllamaChatFields[] = {
    {"model", "string", kNoBody, "a name that /api/tags lists"},
    {"messages", "array:object", kNoBody, "the conversation; empty: the model is only loaded", true},
    {"tools", "array:object", kNoBody, "functions that may be called"},
    {"think", "boolean|string", kNoBody, "reason before answering, and how much"},
    {"format", "string|object", kNoBody, "json, or a JSON schema"},
    {"options", "object", kNoBody, "temperature, top_p, num_predict and others"},
    {"stream", "boolean", kNoBody, "lines instead of a whole reply; true unless said otherwise"},
};
constexpr ApiField kOllamaGenerateFields[] = {
    {"model", "string", kNoBody, "a name that /api/tags lists"},
    {"prompt", "string", kNoBody, "the question; empty: the model is only loaded"},
    {"suffix", "string", kNoBody, "the text behind the hole that the answer fills"},
    {"system", "string", kNoBody, "the system message"},
    {"raw", "boolean", kNoBody, "the prompt is continued as it is"},
    {"think", "boolean|string", kNoBody, "reason before answering, and how much"},
    {"format", "string|object", kNoBody, "json, or a JSON schema"},
    {"options", "object", kNoBody, "temperature, top_p, num_predict and others"},
    {"stream", "boolean", kNoBody, "lines instead of a whole reply; true unless said otherwise"},
};
constexpr ApiField kFileFields[] = {
    {"file", "string", kNoBody, "the file: a request a line", true},
    {"purpose", "string", kNoBody, "batch", true},
};
constexpr ApiField kBatchFields[] = {
    {"input_file_id", "string", kNoBody, "a stored file of purpose batch", true},
    {"endpoint", "string", kNoBody, "the url of all its lines", true},
    {"completion_window", "string", kNoBody, "24h", true},
    {"metadata", "object", kNoBody, "comes back with the batch"},
};
constexpr ApiField kModelField[] = {{"model", "string", kNoBody, "a name that /api/tags lists"}};

// Paths of services whose clients can exchange the host alone, and of routers: a final '/' stands for all below.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"/anthropic/v1/", "/v1/"},
    {"/api/v1/", "/v1/"},
    {"/batches", "/v1/batches"},
    {"/batches/", "/v1/batches/"},
    {"/beta/v1/", "/v1/"},
    {"/beta/", "/v1/"},
    {"/chat/completions", "/v1/chat/completions"},
    {"/chat/completions/", "/v1/chat/completions/"},
    {"/completions", "/v1/completions"},
    {"/completions/", "/v1/completions/"},
    {"/files", "/v1/files"},
    {"/files/", "/v1/files/"},
    {"/get_model_info", "/model_info"},
    {"/get_server_info", "/server_info"},
    {"/messages", "/v1/messages"},
    {"/messages/", "/v1/messages/"},
    {"/models", "/v1/models"},
    {"/models/", "/v1/models/"},
    {"/openai/v1/", "/v1/"},
    {"/ping", "/health"},
    {"/responses", "/v1/responses"},
    {"/responses/", "/v1/responses/"},
};

constexpr std::string_view kNoEmbeddings =
    "this model makes no embeddings and ranks nothing; run an embedding server beside it";
constexpr std::string_view kNoMedia = "this model reads and writes text alone";
constexpr std::string_view kOneModel =
    "one model is served, the one that the command named; dsv4 pull fetches others";
constexpr std::string_view kNoSleep = "the server does not sleep: its weights stay where they are";
constexpr std::string_view kNoUpdates = "weights are read at the start alone";
constexpr std::string_view kNoAdapters = "adapters are not loaded";
constexpr std::string_view kNoAssistants = "OpenAI's assistants are not here; see /v1/responses";
constexpr std::string_view kNoTraining = "the server trains and judges nothing";
// Without a version in front ("/v1"), and with all that is below.
constexpr std::pair<std::string_view, std::string_view> kAbsent[] = {
    {"/api/blobs", kOneModel},
    {"/api/copy", kOneModel},
    {"/api/create", kOneModel},
    {"/api/delete", kOneModel},
    {"/api/embed", kNoEmbeddings},
    {"/api/embeddings", kNoEmbeddings},
    {"/api/pull", kOneModel},
    {"/api/push", kOneModel},
    {"/assistants", kNoAssistants},
    {"/audio", kNoMedia},
    {"/classify", kNoEmbeddings},
    {"/complete", "Anthropic's text completions are not here; see /v1/messages"},
    {"/completion", "llama.cpp's own form is not here; see /v1/completions"},
    {"/containers", "the server runs no code of others"},
    {"/conversations", "conversations are kept as responses; see previous_response_id"},
    {"/embed", kNoEmbeddings},
    {"/embedding", kNoEmbeddings},
    {"/embeddings", kNoEmbeddings},
    {"/encode", kNoEmbeddings},
    {"/evals", kNoTraining},
    {"/fine_tuning", kNoTraining},
    {"/generate", "SGLang's own form is not here; see /v1/completions"},
    {"/images", kNoMedia},
    {"/infill", "llama.cpp's own form is not here; see suffix of /v1/completions"},
    {"/init_weights_update_group", kNoUpdates},
    {"/is_sleeping", kNoSleep},
    {"/load_lora_adapter", kNoAdapters},
    {"/lora-adapters", kNoAdapters},
    {"/messages/batches", "batches are run by dsv4 batch, and by /v1/batches in OpenAI's form"},
    {"/moderations", "this model judges no texts for others"},
    {"/pooling", kNoEmbeddings},
    {"/realtime", kNoMedia},
    {"/release_memory_occupation", kNoSleep},
    {"/rerank", kNoEmbeddings},
    {"/reranking", kNoEmbeddings},
    {"/resume_memory_occupation", kNoSleep},
    {"/score", kNoEmbeddings},
    {"/sleep", kNoSleep},
    {"/threads", kNoAssistants},
    {"/unload_lora_adapter", kNoAdapters},
    {"/update_weights", kNoUpdates},
    {"/update_weights_from_disk", kNoUpdates},
    {"/update_weights_from_distributed", kNoUpdates},
    {"/update_weights_from_tensor", kNoUpdates},
    {"/uploads", "files are stored whole; see /v1/files"},
    {"/user/balance", "nothing is billed here"},
    {"/vector_stores", "texts are not stored for search"},
    {"/videos", kNoMedia},
    {"/wake_up", kNoSleep},
};

// Names in the queries of lists and stored things.
constexpr std::string_view kResponseQuery[] = {
    "after", "before", "include_obfuscation", "limit", "order", "starting_after", "stream"};
constexpr std::string_view kFilesQuery[] = {"after", "before", "limit", "order", "purpose"};
constexpr std::string_view kBatchesQuery[] = {"after", "before", "limit", "order"};
constexpr std::string_view kModelsQuery[] = {"after_id", "before_id", "limit"};
constexpr std::string_view kTokenizeQuery[] = {"api"};
struct RouteQuery {
  std::string_view method, path;
  std::span<const std::string_view> names;
};
constexpr RouteQuery kQueries[] = {
    {"GET", "/v1/batches", kBatchesQuery}, {"GET", "/v1/files", kFilesQuery},
    {"GET", "/v1/models", kModelsQuery},   {"GET", "/v1/responses/", kResponseQuery},
    {"POST", "/tokenize", kTokenizeQuery},
};
// Names that the SDKs of Anthropic and Azure give everywhere. They change nothing.
constexpr std::string_view kIdleQuery[] = {"api-version", "beta"};

}  // namespace

std::string CanonicalPath(std::string_view path) {
  for (const auto& [other, own] : kOtherNames) {
    // A path may end in a slash.
    const bool same = other == path || (path.ends_with('/') && other == path.substr(0, path.size() - 1));
    if (same || (other.ends_with('/') && path.starts_with(other)))
      return std::string(own) + std::string(path.substr(other.size()));
  }
  return std::string(path);
}

std::string_view WhyAbsent(std::string_view path) {
  if (path.starts_with("/v1/responses/") && path.ends_with("/cancel"))
    return "answers are not made in the background, so none can be cancelled";
  if (path.starts_with("/v1/v1/")) return "/v1 stands there twice; wanted a base address without it";
  for (const std::string_view version : {"/v1", "/v2"}) {
    if (path.starts_with(version) && path.substr(version.size()).starts_with('/'))
      path.remove_prefix(version.size());
  }
  for (const auto& [absent, why] : kAbsent) {
    if (path.starts_with(absent) && (path.size() == absent.size() || path[absent.size()] == '/')) return why;
  }
  return {};
}

std::vector<std::string> UnknownQuery(const ApiRoute& route, std::string_view query) {
  std::vector<std::string> unknown;
  if (route.open || query.empty()) return unknown;
  const auto has = [](std::span<const std::string_view> names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::span<const std::string_view> read;
  for (const auto& [method, path, names] : kQueries)
    if (path == route.path && method == route.method) read = names;
  for (const std::string& name : QueryNames(query)) {
    if (!has(read, name) && !has(kIdleQuery, name)) unknown.push_back("?" + name);
  }
  return unknown;
}

std::span<const ApiRoute> Service::Routes() {
  using S = Service;
  static constexpr std::string_view kLines = "application/x-ndjson";
  static constexpr ApiRoute kRoutes[] = {
      {"GET", "/", &S::Page, "The chat page", kNoBody, {}, true, false, "text/html"},
      {"GET", "/page/", &S::Page, "What the chat page loads", kNoBody, {}, true, false, "*/*"},
      {"GET", "/health", &S::Health, "Alive, and not seen to drift", kNoBody, {}, true, true},
      {"GET", "/ready", &S::Ready, "Taking requests", kNoBody, {}, true, true},
      {"GET", "/version", &S::Version, "Of this program, and the chat format"},
      {"GET", "/metrics", &S::MetricsText, "For Prometheus", kNoBody, {}, false, true, "text/plain"},
      {"GET", "/openapi.json", &S::OpenApi, "This document"},
      {"GET", "/props", &S::Props, "What the server runs, as llama.cpp says it"},
      {"GET", "/tokenizer_info", &S::TokenizerInfo, "The tokenizer, as vLLM says it"},
      {"GET", "/server_info", &S::ServerInfo, "The server, as SGLang's routers ask for it"},
      {"GET", "/model_info", &S::ModelInfo, "The model, as SGLang's routers ask for it"},
      {"GET", "/get_load", &S::Load, "Requests that run and wait, as SGLang's routers ask for them"},
      {"GET", "/kv_event_sources", &S::KvEventSources,
       "Where changes of the prefix cache are published, as vLLM says it"},
      {"GET", "/kv_blocks", &S::KvBlocks,
       "Hashes of the blocks that are kept, as the published events add up to them"},
      {"POST", "/flush_cache", &S::FlushCache, "Forgets the states that are kept for reuse in memory"},
      {"POST", "/reset_prefix_cache", &S::FlushCache, "The same, as vLLM calls it"},
      {"GET", "/v1/models", &S::Models, "The one model"},
      {"GET", "/v1/models/", &S::Models, "A model by its name"},
      {"POST", "/v1/chat/completions", &S::ChatCompletions, "OpenAI chat", kChat},
      {"POST", "/v1/completions", &S::Completions, "Text continued as it is", kCompletions},
      {"POST", "/v1/chat/completions/render", &S::Render, "The prompt's token ids, as vLLM renders it",
       kChat},
      {"POST", "/v1/completions/render", &S::Render, "The same of each prompt", kCompletions},
      {"POST", "/v1/messages", &S::Messages, "Anthropic messages", kMessages},
      {"POST", "/v1/messages/count_tokens", &S::CountTokens, "Tokens of the prompt", kMessages},
      {"POST", "/v1/responses", &S::Responses, "OpenAI responses", kResponses},
      {"POST", "/v1/responses/compact", &S::Compact, "A summary that stands for a conversation", kResponses},
      {"POST", "/v1/responses/input_tokens", &S::InputTokens, "Tokens of the prompt", kResponses},
      {"GET", "/v1/responses/", &S::StoredResponseOf,
       "A stored response; below /input_items what was asked, in pages (limit, order, after, before)"},
      {"DELETE", "/v1/responses/", &S::StoredResponseOf, "Forgets a stored response"},
      {"POST", "/v1/files", &S::Files, "Stores a file of requests (multipart/form-data)", kNoBody,
       kFileFields},
      {"GET", "/v1/files", &S::Files, "The stored files, in pages (limit, order, after, before, purpose)"},
      {"GET", "/v1/files/", &S::FileById, "A stored file; below /content what it holds"},
      {"DELETE", "/v1/files/", &S::FileById, "Forgets a stored file"},
      {"POST", "/v1/batches", &S::Batches, "Answers the requests of a stored file in its own time", kNoBody,
       kBatchFields},
      {"GET", "/v1/batches", &S::Batches, "The batches, in pages (limit, order, after, before)"},
      {"GET", "/v1/batches/", &S::BatchById, "A batch"},
      {"POST", "/v1/batches/", &S::BatchById, "Below /cancel: ends a batch"},
      {"POST", "/tokenize", &S::Tokenize, "Text or messages to token ids", kNoBody, kTokenizeFields},
      {"POST", "/detokenize", &S::Detokenize, "Token ids to text", kNoBody, kDetokenizeFields},
      {"POST", "/api/chat", &S::OllamaChat, "Chat as ollama has it", kNoBody, kOllamaChatFields, false, false,
       kLines},
      {"POST", "/api/generate", &S::OllamaGenerate, "An answer to one prompt as ollama has it", kNoBody,
       kOllamaGenerateFields, false, false, kLines},
      {"POST", "/api/show", &S::OllamaShow, "A model as ollama describes it", kNoBody, kModelField},
      {"GET", "/api/tags", &S::OllamaTags, "Models as ollama lists them"},
      {"GET", "/api/ps", &S::OllamaRunning, "Models in memory as ollama lists them"},
      {"GET", "/api/version", &S::OllamaVersion, "Of ollama's dialect, and of this program"},
  };
  return kRoutes;
}

}  // namespace dsv4::server
