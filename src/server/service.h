// Service: the routes. Turns an HTTP request into a reply: which client may ask, what is asked, in which dialect.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "server/api/answer_writer.h"
#include "server/api/api_table.h"
#include "server/api/call_memory.h"
#include "server/api/chat_call.h"
#include "server/api/response_store.h"
#include "server/api/served_model.h"
#include "server/dialects/openai_responses.h"
#include "server/http/fair_pool.h"
#include "server/http/http.h"
#include "server/observe/access_log.h"
#include "server/observe/metrics.h"
#include "server/observe/trace_exporter.h"
#include "server/observe/unknown_fields.h"
#include "server/observe/verification.h"

namespace dsv4::server {

class BatchStore;
class KvPublisher;

struct ServiceOptions {
  std::vector<std::string> api_keys;  // Empty: anyone may ask.
  bool open_metrics = false;          // /metrics needs none.
  // For Access-Control-Allow-Origin; empty: none, browsers on other pages are refused.
  std::string cors_origin;
  // Requests must name the server by an address, localhost, or one of these (see IsAllowedHost): where browsers reach it and no key protects it.
  bool checks_host = false;
  std::vector<std::string> allowed_hosts = {};
  std::string version;
  // The longest reply that lists tokens or gives a text back: a client's share of the room (HttpOptions).
  size_t max_reply_bytes = size_t{64} << 20;
  double default_timeout_seconds = 0.0;  // Limit of a request that names none; 0: none.
  // State for /health and /metrics; from several threads. Empty: nothing is verified.
  std::function<Verification()> verification = {};
  // Secret that separates the caches of API keys. It is random bytes that are not known outside, the same
  // after a restart where the caches outlive one. Empty: drawn now.
  std::string cache_secret = {};
  std::string model_path = {};  // For /props.
  int max_sequences = 1;        // For /props.
  std::string backend = {};     // For /props: "cuda" and "NVIDIA H200".
  std::string device = {};
  // Outlive the service; null: no response is kept, no line written, no trace sent.
  ResponseStore* responses = nullptr;
  KvPublisher* kv_events = nullptr;  // Null: no events are published.
  BatchStore* batches = nullptr;     // Null: there are no files and batches.
  AccessLog* access_log = nullptr;
  TraceExporter* traces = nullptr;
};

class Service {
 public:
  // All outlive the service and its replies.
  Service(const ServedModel& model, engine::EngineThread& engine, Metrics& metrics, ServiceOptions options);

  // The one table of endpoints (service_routes.cc).
  static std::span<const ApiRoute> Routes();

  // From several threads.
  std::unique_ptr<Reply> Handle(HttpRequest request);
  // A request of a batch, for the client whose batch it is (Caller::batch_owner). It has a share beside other requests. Null: its key is not
  // known any more.
  std::unique_ptr<Reply> HandleOfBatch(HttpRequest request, uint64_t batch_owner);
  // Answers by the head alone: with a refusal or with the health of the server. Refused are an unknown
  // endpoint or method, and an origin or a key that may not ask. It never waits for work of others. Null:
  // neither; then the request's owner is set. From any thread.
  std::unique_ptr<Reply> AnswerAtOnce(HttpRequest& head);

  // The keys that may ask from here on, instead of those of the options: at least one where those were. From
  // any thread.
  void SetApiKeys(const std::vector<std::string>& keys);

  // /ready says 503 from here on.
  void StopBeingReady() { ready_ = false; }

 private:
  // The route and the caller, or the reply that refuses.
  struct Admission {
    const ApiRoute* route = nullptr;  // Null: there is no such endpoint.
    Caller caller;
    std::unique_ptr<Reply> refusal;
  };
  Admission Admit(const HttpRequest& head) const;
  // Asks for no key.
  bool IsOpen(const ApiRoute& route) const;
  std::unique_ptr<Reply> Wrap(std::unique_ptr<Reply> reply, const ApiRoute* route, AccessLine line,
                              const HttpRequest& request);
  std::unique_ptr<Reply> Answer(HttpRequest& request, const Admission& admission);
  Result<Caller> FindCaller(const HttpRequest& request) const;
  Result<std::unique_ptr<Reply>> Page(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Health(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Ready(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Version(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> MetricsText(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Models(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> ChatCompletions(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Completions(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Messages(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> CountTokens(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Responses(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Tokenize(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> StoredResponseOf(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaChat(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaGenerate(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaShow(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaTags(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaRunning(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OllamaVersion(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> OpenApi(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Props(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> TokenizerInfo(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Compact(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> InputTokens(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> ServerInfo(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> ModelInfo(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> KvEventSources(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> KvBlocks(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Files(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> FileById(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Batches(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> BatchById(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Load(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> FlushCache(HttpRequest& request, const Caller& caller);
  // /v1/responses and what is beside it: reads the body, with the stored conversation and the stored items that it names.
  Result<ResponsesRequest> ReadStored(HttpRequest& request, const Caller& caller, bool compacts);
  Result<std::unique_ptr<Reply>> RunResponses(HttpRequest& request, const Caller& caller, bool compacts);
  Result<std::unique_ptr<Reply>> Render(HttpRequest& request, const Caller& caller);
  Result<std::unique_ptr<Reply>> Detokenize(HttpRequest& request, const Caller& caller);

  Result<std::unique_ptr<Reply>> StartChat(ChatCall call, std::unique_ptr<AnswerWriter> writer,
                                           const Caller& caller, const HttpRequest& request);
  // Starts the calls, and says which fields are not known. Grammars that are not at hand are compiled on threads of their own, in shares for owners: the
  // reply then has to wait for one.
  Result<std::unique_ptr<Reply>> CompleteAndStart(std::vector<PreparedCall> calls,
                                                  std::unique_ptr<AnswerWriter> writer, const Caller& caller,
                                                  const HttpRequest& request,
                                                  std::vector<std::string> unknown_fields);
  // The reply with a header that lists these fields of its request, which are counted and logged once.
  // Without such fields the reply is unchanged.
  std::unique_ptr<Reply> Tell(std::unique_ptr<Reply> reply, const HttpRequest& request,
                              std::span<const std::string> unknown_fields);
  // Starts the choices of one or several prompts. Errors are those of the engine: the queue is full, the prompt too long.
  Result<std::unique_ptr<Reply>> Start(std::vector<PreparedCall> calls, std::unique_ptr<AnswerWriter> writer,
                                       const HttpRequest& request);

  const ServedModel& model_;
  engine::EngineThread& engine_;
  Metrics& metrics_;
  ServiceOptions options_;
  // Never changed: requests read the one that they found.
  struct Callers {
    std::vector<std::string> keys;
    std::vector<Caller> of_keys;
    Caller without_key;
  };
  std::shared_ptr<const Callers> callers() const {
    const std::lock_guard lock(callers_mutex_);
    return callers_;
  }
  mutable std::mutex callers_mutex_;
  std::shared_ptr<const Callers> callers_;  // Under callers_mutex_.
  CallMemory call_memory_;
  UnknownFields unknown_fields_;
  FairPool grammar_threads_{{.num_threads = 2, .nice = 10, .trims_heap = true}};
  std::atomic<bool> ready_ = true;
};

}  // namespace dsv4::server
