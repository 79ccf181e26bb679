// Batches in OpenAI's format: a file with a request in each line, and one with an answer in each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4::server {

// Bytes of a line at most: those of the longest body that a server takes by default, and room for escapes.
inline constexpr size_t kMaxBatchLine = size_t{64} << 20;

struct BatchLine {
  std::string custom_id;  // No other line of its file has it.
  std::string url;        // "/v1/chat/completions"
  std::string body;       // A JSON object.

  // Told in the answer's id: a batch that goes on takes no answer to another request.
  std::string Digest() const;
};

struct BatchAnswer {
  std::string custom_id;
  std::string digest;  // BatchLine's.
  std::string request_id;
  int status = 0;    // HTTP's.
  std::string body;  // JSON.

  bool ok() const { return status == 200; }
};

// Whether it is the url of what generates. InvalidArgument names `field`.
Status CheckBatchUrl(std::string_view field, std::string_view url);

// A line {"custom_id", "method": "POST", "url", "body"}. `url` is of what generates: chat and text
// completions, responses, messages. Errors (InvalidArgument) name the file's line.
Result<BatchLine> ReadBatchLine(std::string_view text, int64_t number);

// {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}, and a line's end.
std::string WriteBatchAnswer(const BatchAnswer& answer);

// A line of answers, as far as a batch that goes on needs it. InvalidArgument for any other text.
struct AnsweredLine {
  std::string custom_id;
  std::string digest;  // Empty where its id has none.
  bool ok = false;
};
Result<AnsweredLine> ReadAnsweredLine(std::string_view text);

}  // namespace dsv4::server
