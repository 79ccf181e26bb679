// One streamed chat completion from a server, as a client sees it: what came and when. Blocking; for `bench --server`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::apps {

// InvalidArgument for anything else than "http://HOST:PORT", which `server` is below; TLS is not spoken.
Status CheckServerUrl(std::string_view url);

struct StreamedAnswer {
  std::string text;  // Reasoning, content and arguments of calls.
  bool has_call = false;
  int64_t num_logprobs = 0;         // Tokens that came with them.
  double first_seconds = 0.0;       // From the request to the first piece of text; 0 without text.
  std::vector<double> gap_seconds;  // Between one piece of text and the next.
  double seconds = 0.0;             // To the end.
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_output_tokens = 0;  // These three are 0 where the server sends no usage.
};

// POSTs `body`, which asks for a stream with usage. Unavailable when the port is closed; ResourceExhausted for a 429; Internal, with what
// came, for every other answer than a complete stream.
Result<StreamedAnswer> AskStreamed(const std::string& server, const std::string& api_key,
                                   const std::string& body);

// The body of a reply to a POST of JSON.
Result<std::string> Post(const std::string& server, const std::string& api_key, const std::string& path,
                         const std::string& body);

// The body of a GET.
Result<std::string> Get(const std::string& server, const std::string& api_key, const std::string& path);

}  // namespace dsv4::apps
