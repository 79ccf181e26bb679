// Error bodies and HTTP statuses of OpenAI's and Anthropic's dialects.
#include "server/api/api_error.h"

#include "base/json.h"
#include "server/api/fields.h"

namespace dsv4::server {
namespace {

std::string_view OpenAiType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string_view AnthropicType(int http_status) {
  switch (http_status) {
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status < 500 ? OpenAiType(http_status) : "api_error";
  }
}

}  // namespace

Status ServerStopping() { return {StatusCode::kUnavailable, "the server is stopping"}; }

int HttpStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kCancelled:
      return 499;
    case StatusCode::kUnimplemented:
      return 501;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string OpenAiError(int http_status, std::string_view message, std::string_view param,
                        std::string_view code) {
  Json error = {
      {"message", message}, {"type", OpenAiType(http_status)}, {"param", nullptr}, {"code", nullptr}};
  if (!param.empty()) error["param"] = param;
  if (!code.empty()) error["code"] = code;
  return JsonText({{"error", std::move(error)}});
}

std::string OpenAiError(const Status& status) {
  std::string_view code;
  if (status.code() == StatusCode::kOutOfRange) code = "context_length_exceeded";
  if (status.message() == ServerStopping().message()) code = "server_stopping";
  return OpenAiError(HttpStatus(status), status.message(), FieldOf(status), code);
}

std::string AnthropicError(int http_status, std::string_view message) {
  return JsonText(
      {{"type", "error"}, {"error", {{"type", AnthropicType(http_status)}, {"message", message}}}});
}

std::string AnthropicError(const Status& status) {
  return AnthropicError(HttpStatus(status), status.message());
}

HttpHead ErrorHead(int http_status) {
  HttpHead head = {.status = http_status};
  // A queue moves within seconds; clients with back-off double it themselves.
  if (http_status == 429 || http_status == 503) head.headers.emplace_back("Retry-After", "1");
  if (http_status == 401) head.headers.emplace_back("WWW-Authenticate", "Bearer");
  return head;
}

}  // namespace dsv4::server
