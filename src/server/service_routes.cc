// The table of endpoints, their other names, and what is not here.
#include <array>
#include <utility>

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
    {"/beta/", "/v1/"},
    {"/chat/completions", "/v1/chat/completions"},
    {"/completions", "/v1/completions"},
    {"/get_model_info", "/model_info"},
    {"/get_server_info", "/server_info"},
    {"/models", "/v1/models"},
    {"/models/", "/v1/models/"},
    {"/responses", "/v1/responses"},
};

constexpr std::string_view kNoEmbeddings =
    "this model makes no embeddings and ranks nothing; run an embedding server beside it";
constexpr std::string_view kNoMedia = "this model reads and writes text alone";
constexpr std::string_view kOneModel =
    "one model is served, the one that the command named; dsv4 pull fetches others";
constexpr std::string_view kNoBatches = "batches are run by dsv4 batch, and by /v1/batches in OpenAI's form";
constexpr std::pair<std::string_view, std::string_view> kAbsent[] = {
    {"/api/blobs/", kOneModel},
    {"/api/copy", kOneModel},
    {"/api/create", kOneModel},
    {"/api/delete", kOneModel},
    {"/api/embed", kNoEmbeddings},
    {"/api/embeddings", kNoEmbeddings},
    {"/api/pull", kOneModel},
    {"/api/push", kOneModel},
    {"/classify", kNoEmbeddings},
    {"/embeddings", kNoEmbeddings},
    {"/encode", kNoEmbeddings},
    {"/generate", "SGLang's own form is not here; see /v1/completions"},
    {"/is_sleeping", "the server does not sleep: its weights stay where they are"},
    {"/pooling", kNoEmbeddings},
    {"/rerank", kNoEmbeddings},
    {"/score", kNoEmbeddings},
    {"/sleep", "the server does not sleep: its weights stay where they are"},
    {"/update_weights", "weights are read at the start alone"},
    {"/user/balance", "nothing is billed here"},
    {"/v1/assistants", "OpenAI's assistants are not here; see /v1/responses"},
    {"/v1/audio/", kNoMedia},
    {"/v1/conversations", "conversations are kept as responses; see previous_response_id"},
    {"/v1/embeddings", kNoEmbeddings},
    {"/v1/fine_tuning/", "the server trains nothing"},
    {"/v1/images/", kNoMedia},
    {"/v1/load_lora_adapter", "adapters are not loaded"},
    {"/v1/messages/batches", kNoBatches},
    {"/v1/moderations", "this model judges no texts for others"},
    {"/v1/realtime", kNoMedia},
    {"/v1/rerank", kNoEmbeddings},
    {"/v1/score", kNoEmbeddings},
    {"/v1/threads", "OpenAI's assistants are not here; see /v1/responses"},
    {"/v1/unload_lora_adapter", "adapters are not loaded"},
    {"/v1/vector_stores", "texts are not stored for search"},
    {"/v1/videos", kNoMedia},
    {"/wake_up", "the server does not sleep: its weights stay where they are"},
};

bool Fits(std::string_view name, std::string_view path) {
  return name == path || (name.ends_with('/') && path.starts_with(name));
}

}  // namespace

std::string CanonicalPath(std::string_view path) {
  for (const auto& [other, own] : kOtherNames) {
    if (Fits(other, path)) return std::string(own) + std::string(path.substr(other.size()));
  }
  return std::string(path);
}

std::string_view WhyAbsent(std::string_view path) {
  if (path.starts_with("/v1/responses/") && path.ends_with("/cancel"))
    return "answers are not made in the background, so none can be cancelled";
  for (const auto& [absent, why] : kAbsent) {
    if (Fits(absent, path)) return why;
  }
  return {};
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
      {"GET", "/v1/responses/", &S::StoredResponseOf, "A stored response"},
      {"DELETE", "/v1/responses/", &S::StoredResponseOf, "Forgets a stored response"},
      {"POST", "/v1/files", &S::Files, "Stores a file of requests (multipart/form-data)", kNoBody,
       kFileFields},
      {"GET", "/v1/files", &S::Files, "The stored files"},
      {"GET", "/v1/files/", &S::FileById, "A stored file; below /content what it holds"},
      {"DELETE", "/v1/files/", &S::FileById, "Forgets a stored file"},
      {"POST", "/v1/batches", &S::Batches, "Answers the requests of a stored file in its own time", kNoBody,
       kBatchFields},
      {"GET", "/v1/batches", &S::Batches, "The batches"},
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
