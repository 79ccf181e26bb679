// Endpoints of ollama's dialect, and those that routers ask for.
#include <fmt/format.h>

#include "base/json.h"
#include "server/api/fields.h"
#include "server/dialects/ollama.h"
#include "server/observe/kv_publisher.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

// The version of ollama whose requests are understood: its clients look whether it is new enough for them.
constexpr std::string_view kOllamaVersion = "0.12.6";

constexpr std::string_view kNoEvents =
    "no events of the prefix cache are published; serve --kv-events says where to";

}  // namespace

Result<std::unique_ptr<Reply>> Service::OllamaChat(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  if (std::string loaded = OllamaLoad(model_, body, OllamaKind::kChat); !loaded.empty())
    return MakeReply({}, std::move(loaded));
  DSV4_ASSIGN_OR_RETURN(OllamaRequest ollama, ReadOllamaChat(model_, body));
  body = {};  // The call has copies.
  std::unique_ptr<AnswerWriter> writer = MakeOllamaWriter(model_, ollama);
  return StartChat(std::move(ollama.chat.call), std::move(writer), caller, request);
}

Result<std::unique_ptr<Reply>> Service::OllamaGenerate(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  if (std::string loaded = OllamaLoad(model_, body, OllamaKind::kGenerate); !loaded.empty())
    return MakeReply({}, std::move(loaded));
  DSV4_ASSIGN_OR_RETURN(OllamaRequest ollama, ReadOllamaGenerate(model_, body));
  body = {};
  std::unique_ptr<AnswerWriter> writer = MakeOllamaWriter(model_, ollama);
  if (!ollama.text) return StartChat(std::move(ollama.chat.call), std::move(writer), caller, request);
  std::vector<PreparedCall> calls(1);
  DSV4_ASSIGN_OR_RETURN(calls.front(), PrepareText(model_, caller, std::move(ollama.text->prompts.front()),
                                                   ollama.text->sampling));
  return CompleteAndStart(std::move(calls), std::move(writer), caller, request,
                          std::move(ollama.text->sampling.unknown_fields));
}

Result<std::unique_ptr<Reply>> Service::OllamaShow(HttpRequest& request, const Caller&) {
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
  Fields fields(body);
  std::string name;  // Its older name, which clients still send.
  fields.Read("name", &name);
  DSV4_TRY(fields.status());
  if (!model_.AnswersTo(name) && !model_.AnswersTo(WithoutTag(name)))
    return Error(NotFound(fmt::format("name: '{}' is not served here, only '{}'", name, model_.id)));
  return MakeReply({}, server::OllamaShow(model_));
}

Result<std::unique_ptr<Reply>> Service::OllamaTags(HttpRequest&, const Caller&) {
  return MakeReply({}, OllamaModels(model_, /*running=*/false));
}

Result<std::unique_ptr<Reply>> Service::OllamaRunning(HttpRequest&, const Caller&) {
  return MakeReply({}, OllamaModels(model_, /*running=*/true));
}

Result<std::unique_ptr<Reply>> Service::OllamaVersion(HttpRequest&, const Caller&) {
  return MakeReply({}, JsonText({{"version", kOllamaVersion}, {"dsv4", options_.version}}));
}

Result<std::unique_ptr<Reply>> Service::OpenApi(HttpRequest&, const Caller&) {
  return MakeReply({}, OpenApiDocument(options_.version, Routes()));
}

Result<std::unique_ptr<Reply>> Service::ServerInfo(HttpRequest&, const Caller&) {
  const engine::EngineStats stats = engine_.stats();
  return MakeReply({}, JsonText({{"model_path", options_.model_path},
                                 {"served_model_name", model_.id},
                                 {"tokenizer_path", options_.model_path},
                                 {"version", options_.version},
                                 {"context_length", engine_.context_length()},
                                 {"max_running_requests", options_.max_sequences},
                                 {"num_running_reqs", stats.num_running},
                                 {"num_waiting_reqs", stats.num_waiting},
                                 {"tp_size", 1},
                                 {"dp_size", 1},
                                 {"status", ready_ ? "ready" : "stopping"}}));
}

Result<std::unique_ptr<Reply>> Service::ModelInfo(HttpRequest&, const Caller&) {
  return MakeReply({}, JsonText({{"model_path", options_.model_path},
                                 {"served_model_name", model_.id},
                                 {"tokenizer_path", options_.model_path},
                                 {"is_generation", true},
                                 {"max_model_len", engine_.context_length()},
                                 {"vocab_size", model_.vocab_size},
                                 {"version", options_.version}}));
}

Result<std::unique_ptr<Reply>> Service::KvEventSources(HttpRequest& request, const Caller&) {
  const KvPublisher* const events = options_.kv_events;
  if (events == nullptr) return Fail(404, kNoEvents, request.path);
  const std::string& replay = events->replay_endpoint();
  return MakeReply({}, JsonText(Json::array({{{"data_parallel_rank", 0},
                                              {"endpoint", events->endpoint()},
                                              {"replay_endpoint", replay.empty() ? Json() : Json(replay)},
                                              {"topic", events->topic()}}})));
}

Result<std::unique_ptr<Reply>> Service::KvBlocks(HttpRequest& request, const Caller&) {
  const KvPublisher* const events = options_.kv_events;
  if (events == nullptr) return Fail(404, kNoEvents, request.path);
  uint64_t next = 0;
  const std::vector<uint64_t> hashes = engine_.KeptBlocks([&] { next = events->next_number(); });
  return MakeReply(
      {},
      JsonText({{"next_number", next}, {"block_size", engine_.stats().block_tokens}, {"hashes", hashes}}));
}

Result<std::unique_ptr<Reply>> Service::Load(HttpRequest&, const Caller&) {
  const engine::EngineStats stats = engine_.stats();
  return MakeReply({}, JsonText(Json::array({{{"dp_rank", 0},
                                              {"num_reqs", stats.num_running + stats.num_waiting},
                                              {"num_running_reqs", stats.num_running},
                                              {"num_waiting_reqs", stats.num_waiting},
                                              {"state_bytes", stats.state_bytes},
                                              {"cache_bytes", stats.cache_bytes}}})));
}

Result<std::unique_ptr<Reply>> Service::FlushCache(HttpRequest&, const Caller&) {
  engine_.DropKeptStates();
  return MakeReply(
      {}, R"({"success": true, "message": "the states in memory go before the next step; files stay"})");
}

}  // namespace dsv4::server
