// Dispatch of requests: keys, hosts, routes, bodies, errors by dialect, and headers of replies.
#include "server/service.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "server/api/api_error.h"
#include "server/api/browser_rules.h"
#include "server/api/deferred_reply.h"
#include "server/api/generation_reply.h"
#include "server/batch/batch_store.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "server/http/warn_no_throw.h"
#include "server/observe/random_id.h"
#include "server/page/page.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

// The dialect of an endpoint's errors.
bool IsAnthropic(std::string_view path) { return path.starts_with("/v1/messages"); }
bool IsOllama(std::string_view path) { return path.starts_with("/api/"); }

// The header that lists what of a request is not known here.
constexpr std::string_view kUnknownFields = "x-dsv4-unknown-fields";
// The header of the model's own notice on words that it does not know (session::ModelCard).
constexpr std::string_view kNotice = "x-dsv4-notice";

// Takes as long for a wrong key as for a right one of the same length.
bool Equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

AccessLine LineOf(const HttpRequest& request) {
  return {.client = request.client, .method = request.method, .path = request.path, .id = request.id};
}

// A reply with the headers that all replies carry; its status is counted and its line written.
class WrappedReply final : public Reply {
 public:
  // `log` and `traces` may be null; both are told of the reply as it ends.
  WrappedReply(std::unique_ptr<Reply> inner, std::string cors_origin, std::function<void(int)> count,
               AccessLog* log, AccessLine line, TraceExporter* traces, RequestTrace trace)
      : inner_(std::move(inner)),
        cors_origin_(std::move(cors_origin)),
        count_(std::move(count)),
        log_(log),
        line_(std::move(line)),
        traces_(traces),
        trace_(std::move(trace)) {
    trace_.start = std::chrono::system_clock::now();
  }
  ~WrappedReply() override {
    // Refusals have a span too. Other replies that generate nothing have none: checks of health would be most of them.
    constexpr int kFirstError = 400;
    if (traces_ != nullptr && line_.status >= kFirstError && !inner_->IsTraced()) {
      trace_.finish = std::chrono::system_clock::now();
      trace_.http_status = line_.status;
      trace_.end = "refused";
      traces_->Export(std::move(trace_));
    }
    if (log_ == nullptr) return;
    line_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    log_->Write(line_);
  }
  void Advance(ReplyOutput& out) override {
    Pass(out, [&] { inner_->Advance(out); });
  }
  void Cut(ReplyOutput& out) override {
    Pass(out, [&] { inner_->Cut(out); });
  }
  void OnProgress(std::function<void()> wake) override { inner_->OnProgress(std::move(wake)); }
  bool HoldsRequest() const override { return inner_->HoldsRequest(); }
  std::string_view KeepAlive() const override { return inner_->KeepAlive(); }

 private:
  // Takes the inner reply's addition to `out` in `step`.
  template <typename Step>
  void Pass(ReplyOutput& out, const Step& step) {
    const size_t had = out.body.size();
    step();
    line_.num_bytes += out.body.size() - had;
    if (out.head) line_.status = out.head->status;
    if (!out.head || std::exchange(dressed_, true)) return;
    count_(out.head->status);
    if (cors_origin_.empty()) return;
    auto& headers = out.head->headers;
    headers.emplace_back("Access-Control-Allow-Origin", cors_origin_);
    headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
    headers.emplace_back("Access-Control-Expose-Headers",
                         fmt::format("x-request-id, {}, {}", kUnknownFields, kNotice));
    headers.emplace_back("Vary", "Origin");
  }

  std::unique_ptr<Reply> inner_;
  std::string cors_origin_;
  std::function<void(int)> count_;
  AccessLog* log_;
  AccessLine line_;
  TraceExporter* traces_;
  RequestTrace trace_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool dressed_ = false;
};

}  // namespace

std::unique_ptr<Reply> Fail(const Status& status, std::string_view path) {
  if (IsOllama(path)) return MakeReply(ErrorHead(HttpStatus(status)), OllamaError(status));
  return MakeReply(ErrorHead(HttpStatus(status)),
                   IsAnthropic(path) ? AnthropicError(status) : OpenAiError(status));
}

std::unique_ptr<Reply> Fail(int http_status, std::string_view message, std::string_view path,
                            std::string_view code) {
  std::string body = IsOllama(path)      ? JsonText({{"error", message}})
                     : IsAnthropic(path) ? AnthropicError(http_status, message)
                                         : OpenAiError(http_status, message, {}, code);
  return MakeReply(ErrorHead(http_status), std::move(body));
}

namespace {

// OpenAI's SDK for Python puts the members of its argument extra_body into the body. Clients without such an
// argument send it as it is written, and so does Google's example of it. They mean the same.
Status LiftExtraBody(chat::JsonValue& body) {
  constexpr std::string_view kName = "extra_body";
  while (body.is_object() && body.Find(kName) != nullptr) {
    std::vector<chat::JsonValue::Member>& members = body.mutable_members();
    const auto found = std::ranges::find(members, kName, &chat::JsonValue::Member::first);
    chat::JsonValue extra = std::move(found->second);
    members.erase(found);
    if (extra.is_null()) continue;
    if (!extra.is_object())
      return InvalidArgument(fmt::format("{}: got {}, wanted an object", kName, extra.kind_name()));
    for (chat::JsonValue::Member& one : extra.mutable_members()) {
      std::erase_if(members, [&](const chat::JsonValue::Member& other) { return other.first == one.first; });
      members.push_back(std::move(one));
    }
  }
  return {};
}

}  // namespace

Result<chat::JsonValue> ReadBody(HttpRequest& request, const ServedModel& model) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, chat::TakeJson(std::exchange(request.body, {}), "body",
                                                             {.token_lists = kTokenLists, .finite = true}));
  DSV4_TRY(LiftExtraBody(body));
  Fields fields(body);
  std::string name;
  fields.Read("model", &name);
  DSV4_TRY(fields.status());
  if (!model.AnswersTo(name) && !(IsOllama(request.path) && model.AnswersTo(WithoutTag(name))))
    return Error(NotFound(fmt::format("model: '{}' is not served here, only '{}'", name, model.id)));
  return body;
}

std::unique_ptr<Reply> OrFail(Result<std::unique_ptr<Reply>> reply, std::string_view path) {
  return reply ? std::move(*reply) : Fail(reply.error(), path);
}

Service::Service(const ServedModel& model, engine::EngineThread& engine, Metrics& metrics,
                 ServiceOptions options)
    : model_(model),
      engine_(engine),
      metrics_(metrics),
      options_(std::move(options)),
      unknown_fields_(metrics) {
  if (options_.cache_secret.empty()) options_.cache_secret = RandomId("");
  SetApiKeys(options_.api_keys);
}

void Service::SetApiKeys(const std::vector<std::string>& keys) {
  const auto hash = [](const std::string& text) { return XXH3_64bits(text.data(), text.size()); };
  const auto caller = [&](const std::string& key) {
    const std::string& stored =
        options_.responses != nullptr ? options_.responses->secret() : options_.cache_secret;
    const uint64_t owner = hash(options_.cache_secret + key);
    const uint64_t batch_owner = options_.batches != nullptr ? hash(options_.batches->secret() + key) : 0;
    return Caller{
        .owner = owner, .share = owner, .store_owner = hash(stored + key), .batch_owner = batch_owner};
  };
  auto callers = std::make_shared<Callers>();
  callers->keys = keys;
  for (const std::string& key : keys) callers->of_keys.push_back(caller(key));
  callers->without_key = caller("");
  const std::lock_guard lock(callers_mutex_);
  callers_ = std::move(callers);
}

Result<Caller> Service::FindCaller(const HttpRequest& request) const {
  const std::shared_ptr<const Callers> callers = this->callers();
  if (callers->keys.empty()) {
    Caller caller = callers->without_key;
    caller.share = request.owner;
    return caller;
  }
  std::string_view key = request.Header("x-api-key");
  constexpr std::string_view kScheme = "bearer ";  // In any case: RFC 9110, 11.1.
  if (const std::string_view given = request.Header("authorization");
      given.size() >= kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(),
                 [](char wanted, char got) { return wanted == (got | 0x20); })) {
    key = given.substr(kScheme.size());
    key.remove_prefix(std::min(key.find_first_not_of(' '), key.size()));
  }
  for (size_t i = 0; i < callers->keys.size(); ++i) {
    if (Equal(key, callers->keys[i])) return callers->of_keys[i];
  }
  return Error(StatusCode::kFailedPrecondition,
               key.empty() ? "no API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                           : "the API key is not known here");
}

std::unique_ptr<Reply> Service::Handle(HttpRequest request) {
  LogDebug(fmt::format("http id={} client={} method={} path={} body_bytes={}", request.id, request.client,
                       request.method, request.path, request.body.size()));
  AccessLine line = LineOf(request);
  Admission admission = Admit(request);
  request.path = CanonicalPath(request.path);
  std::unique_ptr<Reply> reply =
      admission.refusal != nullptr ? std::move(admission.refusal) : Answer(request, admission);
  return Wrap(std::move(reply), admission.route, std::move(line), request);
}

std::unique_ptr<Reply> Service::Answer(HttpRequest& request, const Admission& admission) {
  const std::vector<std::string> unknown = UnknownQuery(*admission.route, request.query);
  if (model_.refuse_unknown_fields && !unknown.empty()) {
    const std::string message = fmt::format("{}: not known here (--unknown-fields refuse)", unknown.front());
    return Fail(InvalidArgument(message), request.path);
  }
  return Tell(OrFail((this->*admission.route->handler)(request, admission.caller), request.path), request,
              unknown);
}

std::unique_ptr<Reply> Service::AnswerAtOnce(HttpRequest& head) {
  Admission admission = Admit(head);
  std::unique_ptr<Reply> reply = std::move(admission.refusal);
  if (reply == nullptr) {
    if (!IsOpen(*admission.route)) head.owner = admission.caller.share;
    if (!admission.route->at_once) return nullptr;
    reply = Answer(head, admission);
  }
  return Wrap(std::move(reply), admission.route, LineOf(head), head);
}

std::unique_ptr<Reply> Service::Wrap(std::unique_ptr<Reply> reply, const ApiRoute* found, AccessLine line,
                                     const HttpRequest& request) {
  const std::string route(found == nullptr ? std::string_view("unknown") : found->path);
  RequestTrace trace = {.traceparent = std::string(request.Header("traceparent")),
                        .tracestate = std::string(request.Header("tracestate")),
                        .request_id = request.id,
                        .method = request.method,
                        .route = route};
  return std::make_unique<WrappedReply>(
      std::move(reply), options_.cors_origin, [this, route](int status) { metrics_.OnHttp(route, status); },
      options_.access_log, std::move(line), options_.traces, std::move(trace));
}

bool Service::IsOpen(const ApiRoute& route) const {
  return route.open || (options_.open_metrics && route.path == "/metrics");
}

Service::Admission Service::Admit(const HttpRequest& request) const {
  Admission admission;
  const std::string canonical = CanonicalPath(request.path);
  std::string_view path = canonical;
  // Clients that join a base address and a path often write one slash too many.
  if (path.size() > 1 && path.ends_with('/') && path != "/page/") path.remove_suffix(1);
  // From the routes of a path the one for the method; else any.
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const ApiRoute* route = nullptr;
  for (const ApiRoute& candidate : Routes()) {
    const bool fits = candidate.path == path || (candidate.path.size() > 1 && candidate.path.ends_with('/') &&
                                                 path.starts_with(candidate.path));
    if (fits && (route == nullptr || candidate.method == method)) route = &candidate;
    if (fits && candidate.method == method) break;
  }
  const bool is_action =
      method == "POST" && route != nullptr && route->method != method && route->path == "/v1/responses/";
  if (route == nullptr || is_action) {
    const std::string_view why = WhyAbsent(path);
    admission.refusal =
        Fail(404, fmt::format("{}: {}", request.path, why.empty() ? "no such endpoint" : why), path);
    return admission;
  }
  admission.route = route;
  if (options_.checks_host && !IsAllowedHost(request.Header("host"), options_.allowed_hosts)) {
    admission.refusal =
        Fail(403,
             fmt::format("host: got '{}', wanted an address, localhost, a name without a dot or "
                         "one of --allowed-host",
                         request.Header("host")),
             path);
    return admission;
  }
  if (!IsAllowedOrigin(request, options_.cors_origin)) {
    admission.refusal = Fail(
        403, fmt::format("origin: pages of '{}' may not ask here (--cors-origin)", request.Header("origin")),
        path);
    return admission;
  }
  if (request.method == "OPTIONS") {  // A preflight.
    admission.refusal = MakeReply({.status = 204, .content_type = "text/plain"}, "");
    return admission;
  }
  if (!IsOpen(*route)) {
    const Result<Caller> found = FindCaller(request);
    if (!found) {
      admission.refusal = Fail(401, found.error().message(), path, "invalid_api_key");
      return admission;
    }
    admission.caller = *found;
  }
  if (method != route->method) {
    admission.refusal =
        Fail(405, fmt::format("{}: got {}, wanted {}", path, request.method, route->method), path);
  }
  return admission;
}

Result<std::unique_ptr<Reply>> Service::Start(std::vector<PreparedCall> calls,
                                              std::unique_ptr<AnswerWriter> writer, const HttpRequest& http) {
  std::vector<engine::Request> requests;
  std::vector<session::AnswerReader> readers;
  int64_t num_prompt_tokens = 0;
  for (PreparedCall& call : calls) {
    num_prompt_tokens += call.num_prompt_tokens;
    for (size_t i = 0; i < call.requests.size(); ++i) readers.emplace_back(model_, call.format);
    if (!call.requests.empty()) writer->TakePrompt(call.requests.front().prompt);
    for (engine::Request& request : call.requests) {
      if (!request.deadline && options_.default_timeout_seconds > 0.0) {
        request.deadline = std::chrono::steady_clock::now() +
                           std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                               std::chrono::duration<double>(options_.default_timeout_seconds));
      }
      requests.push_back(std::move(request));
    }
  }
  DSV4_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<engine::Generation>> generations,
                        engine_.SubmitAll(std::move(requests)));
  std::vector<GenerationReply::Choice> choices;
  for (size_t i = 0; i < readers.size(); ++i) {
    choices.push_back({.generation = std::move(generations[i]), .reader = std::move(readers[i])});
  }
  return std::make_unique<GenerationReply>(
      std::move(choices), std::move(writer), num_prompt_tokens, metrics_, options_.traces,
      RequestTrace{
          .traceparent = std::string(http.Header("traceparent")),
          .tracestate = std::string(http.Header("tracestate")),
          .request_id = http.id,
          .method = http.method,
          .route = http.path,
          .operation = http.path.ends_with("/completions") && !http.path.ends_with("chat/completions")
                           ? "text_completion"
                           : "chat"});
}

std::unique_ptr<Reply> Service::Tell(std::unique_ptr<Reply> reply, const HttpRequest& request,
                                     std::span<const std::string> unknown_fields) {
  if (unknown_fields.empty()) return reply;
  std::string listed = unknown_fields_.Note(request.path, unknown_fields);
  return WithHeader(std::move(reply), std::string(kUnknownFields), std::move(listed));
}

Result<std::unique_ptr<Reply>> Service::StartChat(ChatCall call, std::unique_ptr<AnswerWriter> writer,
                                                  const Caller& caller, const HttpRequest& request) {
  std::vector<std::string> unknown = std::move(call.sampling.unknown_fields);
  std::vector<PreparedCall> calls(1);
  DSV4_ASSIGN_OR_RETURN(calls.front(), PrepareChat(model_, call_memory_, caller, std::move(call)));
  std::string notice = std::move(calls.front().notice);
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Reply> reply, CompleteAndStart(std::move(calls), std::move(writer),
                                                                       caller, request, std::move(unknown)));
  if (notice.empty()) return reply;
  return WithHeader(std::move(reply), std::string(kNotice), std::move(notice));
}

Result<std::unique_ptr<Reply>> Service::CompleteAndStart(std::vector<PreparedCall> calls,
                                                         std::unique_ptr<AnswerWriter> writer,
                                                         const Caller& caller, const HttpRequest& request,
                                                         std::vector<std::string> unknown_fields) {
  struct Work {
    std::vector<PreparedCall> calls;
    std::unique_ptr<AnswerWriter> writer;
    HttpRequest request;
    std::vector<std::string> unknown_fields;
    std::unique_ptr<Reply> without_memory, failed;  // Made while there is memory.
  };
  const auto work = std::make_shared<Work>(
      Work{std::move(calls), std::move(writer), request, std::move(unknown_fields), nullptr, nullptr});
  const auto run = [this, work]() -> Result<std::unique_ptr<Reply>> {
    for (PreparedCall& call : work->calls) DSV4_TRY(Complete(model_, call));
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Reply> reply,
                          Start(std::move(work->calls), std::move(work->writer), work->request));
    return Tell(std::move(reply), work->request, work->unknown_fields);
  };
  const bool at_hand = std::ranges::all_of(
      work->calls, [&](const PreparedCall& call) { return IsAtHand(model_, call.grammar); });
  if (at_hand) return run();
  work->without_memory =
      OrFail(Error(StatusCode::kUnavailable, "memory ran out; try again later"), request.path);
  work->failed = Fail(500, "internal error", request.path);
  auto deferred = std::make_unique<DeferredReply>();
  grammar_threads_.Post(caller.share, 0, [run, work, promise = deferred->promise()] {
    if (promise->abandoned()) return;
    std::unique_ptr<Reply> reply;
    try {
      reply = OrFail(run(), work->request.path);
    } catch (const std::bad_alloc&) {
      reply = std::move(work->without_memory);
    } catch (const std::exception& error) {
      WarnNoThrow("http: a grammar failed: {}", error.what());
      reply = std::move(work->failed);
    }
    promise->Set(std::move(reply));
    *work = {};
  });
  return deferred;
}

Result<std::unique_ptr<Reply>> Service::ChatCompletions(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
  body = {};  // The call has copies.
  std::unique_ptr<AnswerWriter> writer = MakeOpenAiChatWriter(model_, chat, call_memory_);
  return StartChat(std::move(chat.call), std::move(writer), caller, request);
}

Result<std::unique_ptr<Reply>> Service::Messages(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
  body = {};  // The call has copies.
  std::unique_ptr<AnswerWriter> writer = MakeAnthropicWriter(model_, messages, call_memory_);
  return StartChat(std::move(messages.call), std::move(writer), caller, request);
}

Result<std::unique_ptr<Reply>> Service::Completions(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  DSV4_ASSIGN_OR_RETURN(CompletionsRequest completions, ReadCompletions(model_, body));
  body = {};  // The call has copies.
  std::unique_ptr<AnswerWriter> writer = MakeCompletionsWriter(model_, completions);
  std::vector<PreparedCall> calls;
  for (std::vector<int32_t>& prompt : completions.prompts) {
    DSV4_ASSIGN_OR_RETURN(PreparedCall call,
                          PrepareText(model_, caller, std::move(prompt), completions.sampling));
    calls.push_back(std::move(call));
  }
  return CompleteAndStart(std::move(calls), std::move(writer), caller, request,
                          std::move(completions.sampling.unknown_fields));
}

}  // namespace dsv4::server
