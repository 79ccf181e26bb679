#include "server/service.h"

#include <arpa/inet.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <xxhash.h>

#include <algorithm>

#include "base/log.h"
#include "server/api/api_error.h"
#include "server/api/generation_reply.h"
#include "server/api/json_text.h"
#include "server/api/random_id.h"
#include "server/dialects/anthropic_messages.h"
#include "server/dialects/known_fields.h"
#include "server/dialects/ollama.h"
#include "server/dialects/openai_chat.h"
#include "server/dialects/openai_completions.h"
#include "server/dialects/openai_responses.h"
#include "server/page/page.h"

namespace dsv4::server {
namespace {

// The header that lists what of a request is not known here.
constexpr std::string_view kUnknownFields = "x-dsv4-unknown-fields";

// The dialect of an endpoint's errors.
bool IsAnthropic(std::string_view path) { return path.starts_with("/v1/messages"); }
bool IsOllama(std::string_view path) { return path.starts_with("/api/"); }

std::unique_ptr<Reply> Fail(const Status& status, std::string_view path) {
  if (IsOllama(path)) return MakeReply(ErrorHead(HttpStatus(status)), OllamaError(status));
  return MakeReply(ErrorHead(HttpStatus(status)),
                   IsAnthropic(path) ? AnthropicError(status) : OpenAiError(status));
}

std::unique_ptr<Reply> Fail(int http_status, std::string_view message, std::string_view path,
                            std::string_view code = {}) {
  return MakeReply(ErrorHead(http_status), IsAnthropic(path) ? AnthropicError(http_status, message)
                                                             : OpenAiError(http_status, message, {}, code));
}

// Takes as long for a wrong key as for a right one of the same length.
bool Equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// Whose share of the places a client without a key has: its address's. Of IPv6 the network's (/64), since one client has all its addresses.
// 0 on a unix socket.
uint64_t ShareOf(const std::string& client) {
  if (client.empty()) return 0;
  in6_addr v6;
  const bool is_v6 = ::inet_pton(AF_INET6, client.c_str(), &v6) == 1;
  const bool is_v4 = is_v6 && IN6_IS_ADDR_V4MAPPED(&v6);
  if (is_v6 && !is_v4) return XXH3_64bits(&v6, 8);
  const size_t begin = is_v4 ? client.rfind(':') + 1 : 0;
  return XXH3_64bits(client.data() + begin, client.size() - begin);
}

// A browser says which page asks. Other people's pages must not make a server on this machine work, even if they cannot read what
// it says; our own page has the server's own address.
bool FromAllowedOrigin(const HttpRequest& request, std::string_view allowed) {
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || allowed == "*" || origin == allowed) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == request.Header("host");
}

// The body's object; an unknown model is NotFound.
Result<chat::JsonValue> ReadBody(const HttpRequest& request, const ServedModel& model) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, chat::ReadJson(request.body, "body"));
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

AccessLine LineOf(const HttpRequest& request) {
  return {.client = request.client, .method = request.method, .path = request.path, .id = request.id};
}

// A reply with the headers that all replies carry; its status is counted and its line written.
class DressedReply final : public Reply {
 public:
  // `log` may be null.
  DressedReply(std::unique_ptr<Reply> inner, std::string cors_origin, std::function<void(int)> count,
               AccessLog* log, AccessLine line)
      : inner_(std::move(inner)),
        cors_origin_(std::move(cors_origin)),
        count_(std::move(count)),
        log_(log),
        line_(std::move(line)) {}
  ~DressedReply() override {
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
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
    headers.emplace_back("Access-Control-Expose-Headers", fmt::format("x-request-id, {}", kUnknownFields));
    headers.emplace_back("Vary", "Origin");
  }

  std::unique_ptr<Reply> inner_;
  std::string cors_origin_;
  std::function<void(int)> count_;
  AccessLog* log_;
  AccessLine line_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool dressed_ = false;
};

}  // namespace

Service::Service(const ServedModel& model, engine::EngineThread& engine, Metrics& metrics,
                 ServiceOptions options)
    : model_(model),
      engine_(engine),
      metrics_(metrics),
      options_(std::move(options)),
      unknown_fields_(metrics) {
  if (options_.cache_secret.empty()) options_.cache_secret = RandomId("");
  const auto hash = [](const std::string& text) { return XXH3_64bits(text.data(), text.size()); };
  const auto add = [&](const std::string& key) {
    const std::string& stored =
        options_.responses != nullptr ? options_.responses->secret() : options_.cache_secret;
    const uint64_t owner = hash(options_.cache_secret + key);
    callers_.push_back({.owner = owner, .share = owner, .store_owner = hash(stored + key)});
  };
  for (const std::string& key : options_.api_keys) add(key);
  add("");
}

Result<Caller> Service::FindCaller(const HttpRequest& request) const {
  if (options_.api_keys.empty()) {
    Caller caller = callers_.back();
    caller.share = ShareOf(request.client);
    return caller;
  }
  std::string_view key = request.Header("x-api-key");
  constexpr std::string_view kScheme = "bearer ";  // In any case: RFC 9110, 11.1.
  if (const std::string_view given = request.Header("authorization");
      given.size() >= kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(),
                 [](char wanted, char got) { return wanted == (got | 0x20); })) {
    key = given.substr(kScheme.size());
  }
  for (size_t i = 0; i < options_.api_keys.size(); ++i) {
    if (Equal(key, options_.api_keys[i])) return callers_[i];
  }
  return Error(StatusCode::kFailedPrecondition,
               key.empty() ? "no API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                           : "the API key is not known here");
}

std::unique_ptr<Reply> Service::Handle(HttpRequest request) {
  LogDebug(fmt::format("http id={} client={} method={} path={} body_bytes={}", request.id, request.client,
                       request.method, request.path, request.body.size()));
  Admission admission = Admit(request);
  std::unique_ptr<Reply> reply =
      admission.refusal != nullptr ? std::move(admission.refusal) : Answer(request, admission);
  return Dress(std::move(reply), admission.route, LineOf(request));
}

std::unique_ptr<Reply> Service::Answer(const HttpRequest& request, const Admission& admission) {
  const Caller& caller = admission.caller;
  switch (admission.route->endpoint) {
    case Endpoint::kPage:
      return Page(request, caller);
    case Endpoint::kHealth:
      return Health(request, caller);
    case Endpoint::kReady:
      return Ready(request, caller);
    case Endpoint::kVersion:
      return Version(request, caller);
    case Endpoint::kMetrics:
      return MetricsText(request, caller);
    case Endpoint::kOpenApi:
      return MakeReply({}, OpenApiDocument(options_.version));
    case Endpoint::kProps:
      return Props();
    case Endpoint::kTokenizerInfo:
      return TokenizerInfo();
    case Endpoint::kModels:
      return Models(request, caller);
    case Endpoint::kChatCompletions:
      return ChatCompletions(request, caller);
    case Endpoint::kCompletions:
      return Completions(request, caller);
    case Endpoint::kMessages:
      return Messages(request, caller);
    case Endpoint::kCountTokens:
      return CountTokens(request, caller);
    case Endpoint::kResponses:
      return Responses(request, caller);
    case Endpoint::kStoredResponse:
      return StoredResponseOf(request, caller);
    case Endpoint::kTokenize:
      return Tokenize(request, caller);
    case Endpoint::kDetokenize:
      return Detokenize(request, caller);
    case Endpoint::kOllamaChat:
      return OllamaChat(request, caller);
    case Endpoint::kOllamaTags:
      return MakeReply({}, OllamaTags(model_));
    case Endpoint::kOllamaVersion:
      return MakeReply({}, JsonText({{"version", options_.version}}));
  }
  return Fail(500, "no such endpoint", request.path);
}

std::unique_ptr<Reply> Service::Refuse(const HttpRequest& head) {
  Admission admission = Admit(head);
  return admission.refusal == nullptr ? nullptr
                                      : Dress(std::move(admission.refusal), admission.route, LineOf(head));
}

std::unique_ptr<Reply> Service::Dress(std::unique_ptr<Reply> reply, const ApiRoute* found, AccessLine line) {
  const std::string route(found == nullptr ? std::string_view("unknown") : found->path);
  return std::make_unique<DressedReply>(
      std::move(reply), options_.cors_origin, [this, route](int status) { metrics_.OnHttp(route, status); },
      options_.access_log, std::move(line));
}

Service::Admission Service::Admit(const HttpRequest& request) const {
  Admission admission;
  std::string_view path = request.path;
  // Clients that join a base address and a path often write one slash too many.
  if (path.size() > 1 && path.ends_with('/') && path != "/page/") path.remove_suffix(1);
  // Of the routes of a path the one for the method; else any.
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const ApiRoute* route = nullptr;
  for (const ApiRoute& candidate : ApiRoutes()) {
    const bool fits = candidate.path == path || (candidate.path.size() > 1 && candidate.path.ends_with('/') &&
                                                 path.starts_with(candidate.path));
    if (fits && (route == nullptr || candidate.method == method)) route = &candidate;
    if (fits && candidate.method == method) break;
  }
  if (route == nullptr) {
    admission.refusal = Fail(404, fmt::format("{}: no such endpoint", path), path);
    return admission;
  }
  admission.route = route;
  if (!FromAllowedOrigin(request, options_.cors_origin)) {
    admission.refusal = Fail(
        403, fmt::format("origin: pages of '{}' may not ask here (--cors-origin)", request.Header("origin")),
        path);
    return admission;
  }
  if (request.method == "OPTIONS") {  // A preflight.
    admission.refusal = MakeReply({.status = 204, .content_type = "text/plain"}, "");
    return admission;
  }
  if (!route->open) {
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
  const std::vector<std::string> unknown = std::move(call.sampling.unknown_fields);
  std::vector<PreparedCall> calls(1);
  DSV4_ASSIGN_OR_RETURN(calls.front(), PrepareChat(model_, call_memory_, caller, std::move(call)));
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Reply> reply, Start(std::move(calls), std::move(writer), request));
  return Tell(std::move(reply), request, unknown);
}

std::unique_ptr<Reply> Service::ChatCompletions(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeOpenAiChatWriter(model_, chat, call_memory_);
    return StartChat(std::move(chat.call), std::move(writer), caller, request);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Messages(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeAnthropicWriter(model_, messages, call_memory_);
    return StartChat(std::move(messages.call), std::move(writer), caller, request);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::CountTokens(const HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
    const std::vector<std::string> unknown = std::move(messages.call.sampling.unknown_fields);
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          ChatPrompt(model_, call_memory_, std::move(messages.call)));
    return Tell(MakeReply({}, JsonText({{"input_tokens", ids.size()}})), request, unknown);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Responses(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    ResponseStore* const store = options_.responses;
    const bool stores = store != nullptr && store->enabled();
    std::vector<chat::JsonValue> history;
    if (const std::string previous = PreviousResponse(body); !previous.empty()) {
      if (!stores) {
        return Error(
            InvalidArgument("previous_response_id: nothing is stored here (--responses-mib 0); send the "
                            "conversation as input"));
      }
      auto found = store->Conversation(caller.store_owner, previous);
      if (!found) return Error(found.error().WithContext("previous_response_id"));
      history = std::move(*found);
    }
    DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadResponses(model_, body, std::move(history)));
    std::function<void(const std::string&, const std::string&)> keep;
    if (stores && responses.store) {
      keep = [store, owner = caller.store_owner, previous = responses.previous, input = responses.own_input](
                 const std::string& id, const std::string& text) {
        if (Result<chat::JsonValue> reply = chat::ReadJson(text, "reply"))
          store->Put(owner, id, {.previous = previous, .input = input, .reply = std::move(*reply)});
      };
    }
    std::unique_ptr<AnswerWriter> writer =
        MakeResponsesWriter(model_, responses, call_memory_, std::move(keep));
    return StartChat(std::move(responses.call), std::move(writer), caller, request);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::StoredResponseOf(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    constexpr std::string_view kPath = "/v1/responses/";
    constexpr std::string_view kItems = "/input_items";
    std::string id = request.path.substr(kPath.size());
    const bool items = id.ends_with(kItems);
    if (items) id.resize(id.size() - kItems.size());
    if (options_.responses == nullptr)
      return Error(NotFound(fmt::format("response '{}' is not stored here", id)));
    if (request.method == "DELETE") {
      DSV4_TRY(options_.responses->Erase(caller.store_owner, id));
      return MakeReply({}, JsonText({{"id", id}, {"object", "response"}, {"deleted", true}}));
    }
    DSV4_ASSIGN_OR_RETURN(const StoredResponse stored, options_.responses->Get(caller.store_owner, id));
    if (!items) return MakeReply({}, chat::WriteJson(stored.reply));
    return MakeReply({}, fmt::format(R"({{"object": "list", "data": {}, "has_more": false}})",
                                     chat::WriteJson(stored.input)));
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::OllamaChat(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(OllamaRequest ollama, ReadOllamaChat(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeOllamaWriter(model_, ollama);
    return StartChat(std::move(ollama.chat.call), std::move(writer), caller, request);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Completions(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(CompletionsRequest completions, ReadCompletions(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeCompletionsWriter(model_, completions);
    std::vector<PreparedCall> calls;
    for (std::vector<int32_t>& prompt : completions.prompts) {
      DSV4_ASSIGN_OR_RETURN(PreparedCall call,
                            PrepareText(model_, caller, std::move(prompt), completions.sampling));
      calls.push_back(std::move(call));
    }
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Reply> reply, Start(std::move(calls), std::move(writer), request));
    return Tell(std::move(reply), request, completions.sampling.unknown_fields);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Tokenize(const HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    Fields fields(body);
    std::string prompt;
    bool with_strings = false;
    fields.Read("return_token_strs", &with_strings);
    std::vector<int32_t> ids;
    std::vector<std::string> unknown;
    const auto render = [&](ChatCall& call) {
      unknown = std::move(call.sampling.unknown_fields);
      return ChatPrompt(model_, call_memory_, std::move(call));
    };
    // The prompt of another dialect's request: /tokenize?api=messages, /tokenize?api=responses.
    if (request.query == "api=messages") {
      DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(messages.call));
    } else if (request.query == "api=responses") {
      DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadResponses(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(responses.call));
    } else if (fields.Find("messages") != nullptr) {
      DSV4_TRY(fields.status());
      DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, render(chat.call));
    } else {
      if (!fields.Read("prompt", &prompt)) fields.Fail("prompt", "missing, wanted a text (or messages)");
      fields.Expect({"model"});
      NoteUnknown(fields, body, model_, unknown);
      DSV4_TRY(fields.status());
      DSV4_ASSIGN_OR_RETURN(ids, model_.tokenizer.Encode(prompt));
    }
    // Written as it comes: of a text of megabytes a document in memory would be a hundred.
    std::string text = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}])", ids.size(),
                                   engine_.context_length(), fmt::join(ids, ","));
    if (with_strings) {
      text += R"(,"token_strs":[)";
      for (size_t i = 0; i < ids.size(); ++i) {
        const int32_t one[] = {ids[i]};
        if (i > 0) text += ',';
        text += JsonText(model_.tokenizer.Decode(one));
      }
      text += ']';
    }
    return Tell(MakeReply({}, text + '}'), request, unknown);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Detokenize(const HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    Fields fields(body);
    std::vector<int32_t> tokens;
    if (!fields.ReadTokens("tokens", &tokens)) fields.Fail("tokens", "missing, wanted a list of token ids");
    fields.Expect({"model"});
    std::vector<std::string> unknown;
    NoteUnknown(fields, body, model_, unknown);
    DSV4_TRY(fields.status());
    return Tell(MakeReply({}, JsonText({{"prompt", model_.tokenizer.Decode(tokens)}})), request, unknown);
  };
  return OrFail(run(), request.path);
}

}  // namespace dsv4::server
