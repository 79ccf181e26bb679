// The endpoints that say what the server is, and the chat page.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/list_page.h"
#include "server/http/body_decoder.h"
#include "server/page/page.h"
#include "server/service.h"

namespace dsv4::server {

namespace {

// Whether a client takes gzip (RFC 9110 section 12.5.3): named, or `*`, and not with a weight of 0.
bool TakesGzip(std::string header) {
  for (char& letter : header)
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
  std::string_view accepted = header;
  bool any = false;
  while (!accepted.empty()) {
    const std::string_view entry = accepted.substr(0, accepted.find(','));
    accepted.remove_prefix(std::min(accepted.size(), entry.size() + 1));
    const std::string_view padded = entry.substr(0, entry.find(';'));
    const size_t begin = std::min(padded.find_first_not_of(" \t"), padded.size());
    const std::string_view coding = padded.substr(begin, padded.find_last_not_of(" \t") + 1 - begin);
    const size_t weight = entry.find("q=");
    const bool taken = weight == std::string_view::npos ||
                       entry.find_first_of("123456789", weight) != std::string_view::npos;
    if (coding == "gzip" || coding == "x-gzip") return taken;
    if (coding == "*") any = taken;
  }
  return any;
}

std::string Inflated(std::string_view bytes) {
  std::string text;
  const Result<std::unique_ptr<BodyDecoder>> decoder = BodyDecoder::Make("gzip");
  while (decoder && !(*decoder)->whole() && (*decoder)->Decode(bytes, text).ok()) {
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Reply>> Service::Page(HttpRequest& request, const Caller&) {
  constexpr std::string_view kFolder = "/page/";
  std::string_view name = "page.html";
  bool lasting = false;  // The address changes with the bytes.
  if (request.path.starts_with(kFolder)) {
    name = std::string_view(request.path).substr(kFolder.size());
    const size_t slash = name.find('/');
    lasting = name.substr(0, slash) == PageDigest();
    // A tab that is older than the server still gets what it loads late.
    name = slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1);
  }
  const std::optional<PageFile> file = FindPageFile(name);
  if (!file)
    return MakeReply(ErrorHead(404),
                     OpenAiError(404, fmt::format("{}: the page has no such file", request.path), {}, {}));
  HttpHead head = {.content_type = std::string(file->type)};
  const std::string tag = fmt::format("W/\"{}\"", PageDigest());
  head.headers.emplace_back("Cache-Control", lasting ? "public, max-age=31536000, immutable" : "no-cache");
  head.headers.emplace_back("ETag", tag);
  head.headers.emplace_back("Vary", "Accept-Encoding");
  head.headers.emplace_back("X-Content-Type-Options", "nosniff");
  head.headers.emplace_back("Referrer-Policy", "no-referrer");
  // No code or style stands in the document, and no script makes markup of text.
  head.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
      "img-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'");
  if (request.Header("if-none-match").find(tag) != std::string_view::npos) {
    head.status = 304;
    return MakeReply(std::move(head), "");
  }
  if (!file->gzip) return MakeReply(std::move(head), std::string(file->bytes));
  if (!TakesGzip(std::string(request.Header("accept-encoding"))))
    return MakeReply(std::move(head), Inflated(file->bytes));
  head.headers.emplace_back("Content-Encoding", "gzip");
  return MakeReply(std::move(head), std::string(file->bytes));
}

Result<std::unique_ptr<Reply>> Service::Health(HttpRequest&, const Caller&) {
  if (!options_.verification) return MakeReply({}, R"({"status": "ok"})");
  const Verification found = options_.verification();
  const Json body = {{"status", found.drift ? "drift" : "ok"}, {"verification", found.text}};
  return MakeReply(found.drift ? ErrorHead(503) : HttpHead(), JsonText(body));
}

Result<std::unique_ptr<Reply>> Service::Ready(HttpRequest&, const Caller&) {
  if (ready_) return MakeReply({}, R"({"status": "ready"})");
  return MakeReply(ErrorHead(503), R"({"status": "stopping"})");
}

Result<std::unique_ptr<Reply>> Service::Version(HttpRequest&, const Caller&) {
  return MakeReply({},
                   JsonText({{"version", options_.version}, {"chat_revision", model_.profile->revision}}));
}

Result<std::unique_ptr<Reply>> Service::MetricsText(HttpRequest&, const Caller&) {
  if (options_.verification) metrics_.OnVerification(options_.verification());
  return MakeReply({.content_type = "text/plain; version=0.0.4"}, metrics_.Text());
}

Result<std::unique_ptr<Reply>> Service::Models(HttpRequest& request, const Caller&) {
  Json entry = {{"id", model_.id},
                {"object", "model"},
                {"created", model_.created},
                {"owned_by", "dsv4"},
                {"max_model_len", engine_.context_length()}};
  // Anthropic's SDKs ask the same path in their own header's name.
  const bool is_anthropic = !request.Header("anthropic-version").empty();
  if (is_anthropic) {
    entry = {{"type", "model"},
             {"id", model_.id},
             {"display_name", model_.id},
             {"created_at",
              fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(model_.created)))},
             {"max_model_len", engine_.context_length()}};
  }
  constexpr std::string_view kList = "/v1/models";
  if (request.path == kList || request.path == "/v1/models/") {
    if (is_anthropic) {
      const std::string ids[] = {model_.id};
      const Result<ListPage> page =
          PageOf(request.query, ids, kModelLimits, {.after = "after_id", .before = "before_id"});
      if (!page) return MakeReply(ErrorHead(HttpStatus(page.error())), AnthropicError(page.error()));
      const bool is_empty = page->indices.empty();
      const Json id = is_empty ? Json(nullptr) : Json(model_.id);
      return MakeReply({}, JsonText({{"data", is_empty ? Json::array() : Json::array({entry})},
                                     {"first_id", id},
                                     {"last_id", id},
                                     {"has_more", false}}));
    }
    return MakeReply({}, JsonText({{"object", "list"}, {"data", Json::array({entry})}}));
  }
  std::string name = request.path.substr(kList.size() + 1);
  if (name.ends_with('/')) name.pop_back();
  if (name == model_.id) return MakeReply({}, JsonText(entry));
  const std::string message = fmt::format("model: '{}' is not served here, only '{}'", name, model_.id);
  return MakeReply(ErrorHead(404),
                   is_anthropic ? AnthropicError(404, message) : OpenAiError(404, message, "model", {}));
}

// llama.cpp's: clients ask it for the context and the template.
Result<std::unique_ptr<Reply>> Service::Props(HttpRequest&, const Caller&) {
  const session::AnswerDefaults& defaults = model_.defaults;
  const bool thinks = model_.default_thinking.mode == chat::ThinkingMode::kThinking;
  const Json sampling = {{"temperature", defaults.temperature_thinking},
                         {"top_k", 0},
                         {"top_p", 1.0},
                         {"min_p", 0.0},
                         {"max_tokens", thinks ? defaults.max_tokens_thinking : defaults.max_tokens_chat}};
  const chat::ChatProfile& profile = *model_.profile;
  Json examples = Json::array();
  for (const auto& [title, ask] : model_.card.examples) examples.push_back({{"title", title}, {"ask", ask}});
  return MakeReply(
      {},
      JsonText({{"default_generation_settings", {{"n_ctx", engine_.context_length()}, {"params", sampling}}},
                {"total_slots", options_.max_sequences},
                {"model_alias", model_.id},
                {"model_path", options_.model_path},
                {"modalities", {{"vision", false}, {"audio", false}}},
                {"chat_template", fmt::format("deepseek {} (built in)", profile.revision)},
                {"bos_token", profile.bos},
                {"eos_token", profile.eos},
                {"backend", options_.backend},
                {"device", options_.device},
                {"examples", std::move(examples)},
                {"build_info", options_.version}}));
}

// vLLM's: what a client needs that counts tokens itself with /tokenize and /detokenize.
Result<std::unique_ptr<Reply>> Service::TokenizerInfo(HttpRequest&, const Caller&) {
  const chat::ChatProfile& profile = *model_.profile;
  Json added = Json::object();
  for (tokenizer::TokenId id = 0; id < model_.tokenizer.num_ids(); ++id) {
    if (!model_.tokenizer.IsAdded(id)) continue;
    added[fmt::format("{}", id)] = {{"content", std::string(model_.tokenizer.TokenBytes(id))},
                                    {"special", true}};
  }
  const int32_t pad[] = {model_.tokenizer.FindToken("<｜▁pad▁｜>").value_or(model_.special->end_of_sentence)};
  return MakeReply({}, JsonText({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", profile.bos},
                                 {"eos_token", profile.eos},
                                 {"pad_token", model_.tokenizer.Decode(pad)},
                                 {"unk_token", nullptr},
                                 {"add_bos_token", false},
                                 {"add_eos_token", false},
                                 {"chat_template", nullptr},
                                 {"vocab_size", model_.vocab_size},
                                 {"model_max_length", engine_.context_length()},
                                 {"added_tokens_decoder", std::move(added)}}));
}

}  // namespace dsv4::server
