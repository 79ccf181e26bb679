// Lines of batch files, read and written.
#include "server/batch/batch_line.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/text.h"
#include "chat/json_value.h"
#include "server/api/fields.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kUrls[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                      "/v1/messages"};

// The text of a member that must be one; else its kind.
Result<std::string> TextOf(const chat::JsonValue& object, std::string_view name) {
  const chat::JsonValue* found = object.Find(name);
  if (found == nullptr) return Error(InvalidArgument(fmt::format("{}: missing, wanted a text", name)));
  if (!found->is_string() || found->text().empty())
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a text", name, found->is_string() ? "none" : found->kind_name())));
  return found->text();
}

Result<BatchLine> Read(std::string_view text) {
  if (text.size() > kMaxBatchLine)
    return Error(InvalidArgument(
        fmt::format("{}, wanted {} MiB at most", Counted(text.size(), "byte"), kMaxBatchLine >> 20)));
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue json,
                        chat::ReadJson(text, "request", chat::JsonDialect::kRfc8259,
                                       {.token_lists = kTokenLists, .finite = true}));
  BatchLine line;
  DSV4_ASSIGN_OR_RETURN(line.custom_id, TextOf(json, "custom_id"));
  DSV4_ASSIGN_OR_RETURN(const std::string method, TextOf(json, "method"));
  if (method != "POST") return Error(InvalidArgument(fmt::format("method: got '{}', wanted POST", method)));
  DSV4_ASSIGN_OR_RETURN(line.url, TextOf(json, "url"));
  DSV4_TRY(CheckBatchUrl("url", line.url));
  const chat::JsonValue* body = json.Find("body");
  if (body == nullptr || !body->is_object())
    return Error(InvalidArgument(
        fmt::format("body: got {}, wanted an object", body == nullptr ? "none" : body->kind_name())));
  if (const chat::JsonValue* stream = body->Find("stream"); stream != nullptr && stream->IsTruthy())
    return Error(InvalidArgument("body.stream: got true; an answer of a batch is one line"));
  line.body = chat::WriteJson(*body);
  return line;
}

}  // namespace

Status CheckBatchUrl(std::string_view field, std::string_view url) {
  if (std::ranges::find(kUrls, url) != std::end(kUrls)) return {};
  return InvalidArgument(fmt::format("{}: got '{}', wanted {}, {}, {} or {}", field, url, kUrls[0], kUrls[1],
                                     kUrls[2], kUrls[3]));
}

std::string BatchLine::Digest() const {
  return fmt::format("{:016x}", XXH3_64bits(body.data(), body.size()) ^ XXH3_64bits(url.data(), url.size()));
}

Result<BatchLine> ReadBatchLine(std::string_view text, int64_t number) {
  Result<BatchLine> line = Read(text);
  if (!line) return Error(line.error().WithContext(fmt::format("line {}", number)));
  return line;
}

std::string WriteBatchAnswer(const BatchAnswer& answer) {
  std::string_view body = answer.body;
  while (body.ends_with('\n')) body.remove_suffix(1);
  std::string one_line;
  if (body.find('\n') != std::string_view::npos) {
    const Result<chat::JsonValue> json = chat::ReadJson(body, "answer");
    one_line = json ? chat::WriteJson(*json) : chat::QuoteJson(body);
    body = one_line;
  }
  return fmt::format(
      R"({{"id": "batch_req_{}", "custom_id": {}, "response": {{"status_code": {}, "request_id": "{}", "body": {}}}, )"
      R"("error": null}})"
      "\n",
      answer.digest, chat::QuoteJson(answer.custom_id), answer.status, answer.request_id, body);
}

Result<AnsweredLine> ReadAnsweredLine(std::string_view text) {
  DSV4_ASSIGN_OR_RETURN(
      const chat::JsonValue json,
      chat::ReadJson(text, "answer", chat::JsonDialect::kRfc8259, {.token_lists = kTokenLists}));
  AnsweredLine line;
  DSV4_ASSIGN_OR_RETURN(line.custom_id, TextOf(json, "custom_id"));
  if (const chat::JsonValue* id = json.Find("id"); id != nullptr && id->is_string()) {
    constexpr std::string_view kBefore = "batch_req_";
    const std::string_view text_of_id = id->text();
    if (text_of_id.starts_with(kBefore) && text_of_id.size() == kBefore.size() + 16)
      line.digest = text_of_id.substr(kBefore.size());
  }
  const chat::JsonValue* response = json.Find("response");
  const chat::JsonValue* status = response == nullptr ? nullptr : response->Find("status_code");
  if (status == nullptr) return Error(InvalidArgument("response.status_code: missing"));
  line.ok = status->text() == "200";
  return line;
}

}  // namespace dsv4::server
