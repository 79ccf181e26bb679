// The endpoints that say what the server is, and the chat page.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "server/api/api_error.h"
#include "server/api/json_text.h"
#include "server/page/page.h"
#include "server/service.h"

namespace dsv4::server {

std::unique_ptr<Reply> Service::Page(const HttpRequest& request, const Caller&) {
  constexpr std::string_view kFolder = "/page/";
  const std::string_view path = request.path;
  const std::optional<PageFile> file =
      FindPageFile(path.starts_with(kFolder) ? path.substr(kFolder.size()) : "page.html");
  if (!file)
    return MakeReply(ErrorHead(404),
                     OpenAiError(404, fmt::format("{}: the page has no such file", path), {}, {}));
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
      return MakeReply({}, JsonText({{"data", Json::array({entry})},
                                     {"first_id", model_.id},
                                     {"last_id", model_.id},
                                     {"has_more", false}}));
    }
    return MakeReply({}, JsonText({{"object", "list"}, {"data", Json::array({entry})}}));
  }
  const std::string name = request.path.substr(kList.size() + 1);
  if (name == model_.id) return MakeReply({}, JsonText(entry));
  const std::string message = fmt::format("model: '{}' is not served here, only '{}'", name, model_.id);
  return MakeReply(ErrorHead(404),
                   is_anthropic ? AnthropicError(404, message) : OpenAiError(404, message, "model", {}));
}

// llama.cpp's: clients ask it for the context and the template.
std::unique_ptr<Reply> Service::Props() {
  const session::AnswerDefaults& defaults = model_.defaults;
  const bool thinks = model_.default_thinking.mode == chat::ThinkingMode::kThinking;
  const Json sampling = {{"temperature", defaults.temperature_thinking},
                         {"top_k", 0},
                         {"top_p", 1.0},
                         {"min_p", 0.0},
                         {"max_tokens", thinks ? defaults.max_tokens_thinking : defaults.max_tokens_chat}};
  const chat::ChatProfile& profile = *model_.profile;
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
                {"build_info", options_.version}}));
}

// vLLM's: what a client needs that counts tokens itself with /tokenize and /detokenize.
std::unique_ptr<Reply> Service::TokenizerInfo() {
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
