#include "server/service.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>

#include "base/log.h"
#include "server/anthropic_messages.h"
#include "server/api_error.h"
#include "server/generation_reply.h"
#include "server/json_text.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_responses.h"
#include "server/page.h"
#include "server/random_id.h"

namespace dsv4::server {
namespace {

// The dialect of an endpoint's errors.
bool IsAnthropic(std::string_view path) { return path.starts_with("/v1/messages"); }

std::unique_ptr<Reply> Fail(const Status& status, std::string_view path) {
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
  if (!model.AnswersTo(name))
    return Error(NotFound(fmt::format("model: '{}' is not served here, only '{}'", name, model.id)));
  return body;
}

std::unique_ptr<Reply> OrFail(Result<std::unique_ptr<Reply>> reply, std::string_view path) {
  return reply ? std::move(*reply) : Fail(reply.error(), path);
}

// A reply with the headers that all replies carry; its status is counted.
class DressedReply final : public Reply {
 public:
  DressedReply(std::unique_ptr<Reply> inner, std::string cors_origin, std::function<void(int)> count)
      : inner_(std::move(inner)), cors_origin_(std::move(cors_origin)), count_(std::move(count)) {}
  void Advance(ReplyOutput& out) override {
    inner_->Advance(out);
    if (!out.head || std::exchange(dressed_, true)) return;
    count_(out.head->status);
    if (cors_origin_.empty()) return;
    auto& headers = out.head->headers;
    headers.emplace_back("Access-Control-Allow-Origin", cors_origin_);
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    headers.emplace_back("Access-Control-Allow-Headers", "*, Authorization");
    headers.emplace_back("Access-Control-Expose-Headers", "x-request-id");
    headers.emplace_back("Vary", "Origin");
  }
  void OnProgress(std::function<void()> wake) override { inner_->OnProgress(std::move(wake)); }
  std::string_view KeepAlive() const override { return inner_->KeepAlive(); }

 private:
  std::unique_ptr<Reply> inner_;
  std::string cors_origin_;
  std::function<void(int)> count_;
  bool dressed_ = false;
};

}  // namespace

Service::Service(const ServedModel& model, engine::EngineThread& engine, Metrics& metrics,
                 ServiceOptions options)
    : model_(model), engine_(engine), metrics_(metrics), options_(std::move(options)) {
  if (options_.cache_secret.empty()) options_.cache_secret = RandomId("");
  const auto owner = [&](const std::string& key) {
    const std::string text = options_.cache_secret + key;
    return XXH3_64bits(text.data(), text.size());
  };
  for (const std::string& key : options_.api_keys) owners_.push_back(owner(key));
  owners_.push_back(owner(""));
}

Result<Caller> Service::FindCaller(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return Caller{.owner = owners_.back()};
  std::string_view key = request.Header("x-api-key");
  constexpr std::string_view kScheme = "bearer ";  // In any case: RFC 9110, 11.1.
  if (const std::string_view given = request.Header("authorization");
      given.size() >= kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(),
                 [](char wanted, char got) { return wanted == (got | 0x20); })) {
    key = given.substr(kScheme.size());
  }
  for (size_t i = 0; i < options_.api_keys.size(); ++i) {
    if (Equal(key, options_.api_keys[i])) return Caller{.owner = owners_[i]};
  }
  return Error(StatusCode::kFailedPrecondition,
               key.empty() ? "no API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                           : "the API key is not known here");
}

std::unique_ptr<Reply> Service::Handle(HttpRequest request) {
  LogDebug(fmt::format("http id={} client={} method={} path={} body_bytes={}", request.id, request.client,
                       request.method, request.path, request.body.size()));
  Admission admission = Admit(request);
  std::unique_ptr<Reply> reply = admission.refusal != nullptr
                                     ? std::move(admission.refusal)
                                     : (this->*admission.entry->endpoint)(request, admission.caller);
  return Dress(std::move(reply), admission.entry);
}

std::unique_ptr<Reply> Service::Refuse(const HttpRequest& head) {
  Admission admission = Admit(head);
  return admission.refusal == nullptr ? nullptr : Dress(std::move(admission.refusal), admission.entry);
}

std::unique_ptr<Reply> Service::Dress(std::unique_ptr<Reply> reply, const Entry* entry) {
  const std::string route(entry == nullptr ? std::string_view("unknown") : entry->path);
  return std::make_unique<DressedReply>(std::move(reply), options_.cors_origin,
                                        [this, route](int status) { metrics_.OnHttp(route, status); });
}

Service::Admission Service::Admit(const HttpRequest& request) const {
  static constexpr Entry kEntries[] = {
      {"GET", "/", &Service::Page, true},
      {"GET", "/page/", &Service::Page, true},
      {"GET", "/health", &Service::Health, true},
      {"GET", "/ready", &Service::Ready, true},
      {"GET", "/version", &Service::Version},
      {"GET", "/metrics", &Service::MetricsText},
      {"GET", "/v1/models", &Service::Models},
      {"GET", "/v1/models/", &Service::Models},
      {"POST", "/v1/chat/completions", &Service::ChatCompletions},
      {"POST", "/v1/completions", &Service::Completions},
      {"POST", "/v1/messages", &Service::Messages},
      {"POST", "/v1/messages/count_tokens", &Service::CountTokens},
      {"POST", "/v1/responses", &Service::Responses},
      {"POST", "/tokenize", &Service::Tokenize},
      {"POST", "/detokenize", &Service::Detokenize},
  };
  Admission admission;
  std::string_view path = request.path;
  // Clients that join a base address and a path often write one slash too many.
  if (path.size() > 1 && path.ends_with('/') && path != "/page/") path.remove_suffix(1);
  const auto entry = std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry& candidate) {
    return candidate.path == path ||
           (candidate.path.size() > 1 && candidate.path.ends_with('/') && path.starts_with(candidate.path));
  });
  if (entry == std::end(kEntries)) {
    admission.refusal = Fail(404, fmt::format("{}: no such endpoint", path), path);
    return admission;
  }
  admission.entry = entry;
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
  if (!entry->open) {
    const Result<Caller> found = FindCaller(request);
    if (!found) {
      admission.refusal = Fail(401, found.error().message(), path, "invalid_api_key");
      return admission;
    }
    admission.caller = *found;
  }
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  if (method != entry->method) {
    admission.refusal =
        Fail(405, fmt::format("{}: got {}, wanted {}", path, request.method, entry->method), path);
  }
  return admission;
}

std::unique_ptr<Reply> Service::Page(const HttpRequest& request, const Caller&) {
  constexpr std::string_view kFolder = "/page/";
  const std::string_view path = request.path;
  const std::optional<PageFile> file =
      FindPageFile(path.starts_with(kFolder) ? path.substr(kFolder.size()) : "page.html");
  if (!file) return Fail(404, fmt::format("{}: the page has no such file", path), path);
  HttpHead head = {.content_type = std::string(file->type)};
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Content-Type-Options", "nosniff");
  head.headers.emplace_back("Referrer-Policy", "no-referrer");
  // No code or style stands in the document, and no script makes markup of text.
  head.headers.emplace_back("Content-Security-Policy",
                            "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
                            "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                            "require-trusted-types-for 'script'; trusted-types 'none'");
  return MakeReply(std::move(head), std::string(file->text));
}

std::unique_ptr<Reply> Service::Health(const HttpRequest&, const Caller&) {
  if (!options_.verification) return MakeReply({}, R"({"status": "ok"})");
  const Verification found = options_.verification();
  const Json body = {{"status", found.drift ? "drift" : "ok"}, {"verification", found.text}};
  return MakeReply(found.drift ? ErrorHead(503) : HttpHead(), JsonText(body));
}

std::unique_ptr<Reply> Service::Ready(const HttpRequest&, const Caller&) {
  if (ready_) return MakeReply({}, R"({"status": "ready"})");
  return MakeReply(ErrorHead(503), R"({"status": "stopping"})");
}

std::unique_ptr<Reply> Service::Version(const HttpRequest&, const Caller&) {
  return MakeReply({},
                   JsonText({{"version", options_.version}, {"chat_revision", model_.profile->revision}}));
}

std::unique_ptr<Reply> Service::MetricsText(const HttpRequest&, const Caller&) {
  if (options_.verification) metrics_.OnVerification(options_.verification());
  return MakeReply({.content_type = "text/plain; version=0.0.4"}, metrics_.Text());
}

std::unique_ptr<Reply> Service::Models(const HttpRequest& request, const Caller&) {
  const Json entry = {{"id", model_.id},
                      {"object", "model"},
                      {"created", model_.created},
                      {"owned_by", "dsv4"},
                      {"max_model_len", engine_.context_length()}};
  constexpr std::string_view kList = "/v1/models";
  if (request.path == kList || request.path == "/v1/models/")
    return MakeReply({}, JsonText({{"object", "list"}, {"data", Json::array({entry})}}));
  const std::string name = request.path.substr(kList.size() + 1);
  if (name == model_.id) return MakeReply({}, JsonText(entry));
  return Fail(NotFound(fmt::format("model: '{}' is not served here, only '{}'", name, model_.id)),
              request.path);
}

Result<std::unique_ptr<Reply>> Service::Start(std::vector<PreparedCall> calls,
                                              std::unique_ptr<AnswerWriter> writer,
                                              const std::string& request_id) {
  std::vector<engine::Request> requests;
  std::vector<session::AnswerReader> readers;
  int64_t num_prompt_tokens = 0;
  for (PreparedCall& call : calls) {
    num_prompt_tokens += call.num_prompt_tokens;
    for (size_t i = 0; i < call.requests.size(); ++i) readers.emplace_back(model_, call.format);
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
  return std::make_unique<GenerationReply>(std::move(choices), std::move(writer), num_prompt_tokens, metrics_,
                                           request_id);
}

Result<std::unique_ptr<Reply>> Service::StartChat(ChatCall call, std::unique_ptr<AnswerWriter> writer,
                                                  const Caller& caller, const std::string& request_id) {
  std::vector<PreparedCall> calls(1);
  DSV4_ASSIGN_OR_RETURN(calls.front(), PrepareChat(model_, call_memory_, caller, std::move(call)));
  return Start(std::move(calls), std::move(writer), request_id);
}

std::unique_ptr<Reply> Service::ChatCompletions(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeOpenAiChatWriter(model_, chat, call_memory_);
    return StartChat(std::move(chat.call), std::move(writer), caller, request.id);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Messages(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeAnthropicWriter(model_, messages, call_memory_);
    return StartChat(std::move(messages.call), std::move(writer), caller, request.id);
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::CountTokens(const HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(AnthropicRequest messages, ReadAnthropic(model_, body));
    DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          ChatPrompt(model_, call_memory_, std::move(messages.call)));
    return MakeReply({}, JsonText({{"input_tokens", ids.size()}}));
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Responses(const HttpRequest& request, const Caller& caller) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadResponses(model_, body));
    std::unique_ptr<AnswerWriter> writer = MakeResponsesWriter(model_, responses, call_memory_);
    return StartChat(std::move(responses.call), std::move(writer), caller, request.id);
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
    return Start(std::move(calls), std::move(writer), request.id);
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
    if (fields.Find("messages") != nullptr) {
      DSV4_TRY(fields.status());
      DSV4_ASSIGN_OR_RETURN(OpenAiChatRequest chat, ReadOpenAiChat(model_, body));
      DSV4_ASSIGN_OR_RETURN(ids, ChatPrompt(model_, call_memory_, std::move(chat.call)));
    } else {
      if (!fields.Read("prompt", &prompt)) fields.Fail("prompt", "missing, wanted a text (or messages)");
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
    return MakeReply({}, text + '}');
  };
  return OrFail(run(), request.path);
}

std::unique_ptr<Reply> Service::Detokenize(const HttpRequest& request, const Caller&) {
  const auto run = [&]() -> Result<std::unique_ptr<Reply>> {
    DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body, ReadBody(request, model_));
    Fields fields(body);
    std::vector<int32_t> tokens;
    if (!fields.ReadTokens("tokens", &tokens)) fields.Fail("tokens", "missing, wanted a list of token ids");
    DSV4_TRY(fields.status());
    return MakeReply({}, JsonText({{"prompt", model_.tokenizer.Decode(tokens)}}));
  };
  return OrFail(run(), request.path);
}

}  // namespace dsv4::server
