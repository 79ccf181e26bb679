// Errors as the two API families spell them. One table says which status code becomes which HTTP status.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http.h"

namespace dsv4::server {

// The status of an answer that the end of the server cuts: Unavailable.
Status ServerStopping();

// InvalidArgument and OutOfRange 400, NotFound 404, ResourceExhausted 429, Cancelled 499, Unimplemented 501,
// Unavailable 503, DeadlineExceeded 504, all else 500.
int HttpStatus(const Status& status);

// {"error": {"message", "type", "param", "code"}}; `param` is the field that the message names, `code` may be
// empty (null).
std::string OpenAiError(int http_status, std::string_view message, std::string_view param = {},
                        std::string_view code = {});
std::string OpenAiError(const Status& status);

// {"type": "error", "error": {"type", "message"}}.
std::string AnthropicError(int http_status, std::string_view message);
std::string AnthropicError(const Status& status);

// The whole reply; a 429 carries Retry-After.
HttpHead ErrorHead(int http_status);

}  // namespace dsv4::server
