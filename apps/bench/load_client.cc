// HTTP client of a load, by libcurl: one streamed chat completion with its times.
#include "apps/bench/load_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "apps/bench/event_stream.h"
#include "apps/terminal/printable.h"
#include "base/json.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kSilentSeconds = 600;  // A server is given up after.

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct FreeEasy {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using OnBody = std::function<void(std::string_view)>;

size_t TakeBody(char* data, size_t size, size_t count, void* on_body) {
  (*static_cast<const OnBody*>(on_body))(std::string_view(data, size * count));
  return size * count;
}

// The status of a reply to a POST of JSON, or to a GET where there is no body, over a connection of its own. `on_body` gets each piece as it
// comes, before this returns.
Result<long> Ask(const std::string& url, const std::string& api_key, const std::string* body,
                 const OnBody& on_body) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, FreeEasy> owned(initialised == CURLE_OK ? curl_easy_init() : nullptr);
  CURL* const handle = owned.get();
  const std::unique_ptr<curl_slist, FreeList> headers(curl_slist_append(nullptr, "Connection: close"));
  if (handle == nullptr || headers == nullptr || curl_slist_append(headers.get(), "Expect:") == nullptr ||
      curl_slist_append(headers.get(), "Content-Type: application/json") == nullptr)
    return Error(ResourceExhausted("libcurl cannot begin a transfer"));
  char cause[CURL_ERROR_SIZE] = {};
  const auto set = [handle](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http");
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  // A server that hangs is not waited for without an end.
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  set(CURLOPT_ERRORBUFFER, cause);
  set(CURLOPT_HTTPHEADER, headers.get());
  if (!api_key.empty()) {
    set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(CURLOPT_XOAUTH2_BEARER, api_key.c_str());
  }
  if (body != nullptr) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    set(CURLOPT_POSTFIELDS, body->c_str());
  }
  set(CURLOPT_WRITEFUNCTION, &TakeBody);
  set(CURLOPT_WRITEDATA, &on_body);
  const CURLcode code = curl_easy_perform(handle);
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  if (code == CURLE_OK) return status;
  const StatusCode kind = code == CURLE_COULDNT_CONNECT        ? StatusCode::kUnavailable
                          : code == CURLE_COULDNT_RESOLVE_HOST ? StatusCode::kInvalidArgument
                                                               : StatusCode::kInternal;
  return Error(kind,
               fmt::format("--server {}: {}", url, cause[0] != '\0' ? cause : curl_easy_strerror(code)));
}

// The body of a reply, which is a 200.
Result<std::string> Whole(const std::string& url, const std::string& api_key, const std::string* body) {
  std::string reply;
  DSV4_ASSIGN_OR_RETURN(const long status,
                        Ask(url, api_key, body, [&](std::string_view piece) { reply += piece; }));
  if (status == 200) return reply;
  return Error(Internal(fmt::format("{}: status {}: {}", url, status, reply.substr(0, 500))));
}

// Members of any server's JSON. One that is missing, or of what has none, is null. A list that is none is empty, a count that is none is 0.
const Json& At(const Json& from, const char* name) {
  static const Json none;
  const auto found = from.is_object() ? from.find(name) : from.end();
  return from.is_object() && found != from.end() ? *found : none;
}
const Json& Items(const Json& list) {
  static const Json none = Json::array();
  return list.is_array() ? list : none;
}
int64_t Count(const Json& number) {
  return number.is_number_unsigned() && number <= std::numeric_limits<int32_t>::max() ? number.get<int64_t>()
                                                                                      : 0;
}

// Puts the events of a stream together.
class Collector {
 public:
  explicit Collector(Clock::time_point start) : start_(start) {}

  void Take(std::string_view piece) {
    for (const std::string& data : events_.Take(piece)) TakeEvent(data);
  }
  bool done() const { return done_; }
  const std::string& error() const { return error_; }
  StreamedAnswer TakeAnswer() {
    answer_.seconds = SecondsSince(start_);
    return std::move(answer_);
  }

 private:
  void TakeEvent(const std::string& data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Result<Json> read = ParseJson(data, "event");
    if (!read || !read->is_object() || !At(*read, "error").is_null()) {
      error_ = data;
      return;
    }
    const Json& chunk = *read;
    if (const Json& usage = At(chunk, "usage"); usage.is_object()) {
      answer_.num_prompt_tokens = Count(At(usage, "prompt_tokens"));
      answer_.num_output_tokens = Count(At(usage, "completion_tokens"));
      answer_.num_cached_tokens = Count(At(At(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    for (const Json& choice : Items(At(chunk, "choices"))) {
      const Json& delta = At(choice, "delta");
      // Newer vLLM says "reasoning"; some servers say both, with the same text.
      TakeText(delta, At(delta, "reasoning_content").is_null() ? "reasoning" : "reasoning_content");
      TakeText(delta, "content");
      if (const Json& calls = At(delta, "tool_calls"); !calls.is_null()) {
        answer_.has_call = true;
        for (const Json& call : Items(calls)) TakeText(At(call, "function"), "arguments");
      }
      answer_.num_logprobs += static_cast<int64_t>(Items(At(At(choice, "logprobs"), "content")).size());
    }
  }

  void TakeText(const Json& from, const char* name) {
    const Json& text = At(from, name);
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) return;
    answer_.text += text.get_ref<const std::string&>();
    const Clock::time_point now = Clock::now();
    if (answer_.first_seconds == 0.0)
      answer_.first_seconds = std::chrono::duration<double>(now - start_).count();
    else
      answer_.gap_seconds.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

  Clock::time_point start_;
  Clock::time_point last_;
  EventStream events_;
  StreamedAnswer answer_;
  std::string error_;
  bool done_ = false;
};

}  // namespace

Status CheckServerUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const std::string_view rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  const size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos && colon > 0 && colon + 1 < rest.size() &&
      rest.find_first_not_of("0123456789", colon + 1) == std::string_view::npos && rest.size() - colon <= 6 &&
      std::stoi(std::string(rest.substr(colon + 1))) <= 65535)
    return {};
  return InvalidArgument(fmt::format("--server: got '{}', wanted http://HOST:PORT", url));
}

Result<StreamedAnswer> AskStreamed(const std::string& server, const std::string& api_key,
                                   const std::string& body) {
  Collector collector(Clock::now());
  std::string whole;
  DSV4_ASSIGN_OR_RETURN(const long status,
                        Ask(server + "/v1/chat/completions", api_key, &body, [&](std::string_view piece) {
                          if (whole.size() < 500) whole += piece.substr(0, 500 - whole.size());
                          collector.Take(piece);
                        }));
  const auto message = [&](std::string_view what, std::string_view reply) {
    return fmt::format("--server {}: status {}{}: {}", server, status, what, Printable(reply));
  };
  if (status == 429) return Error(ResourceExhausted(message("", whole)));
  if (status != 200) return Error(Internal(message("", whole)));
  if (!collector.error().empty()) return Error(Internal(message(", a chunk", collector.error())));
  if (!collector.done()) return Error(Internal(message(", the stream ended without 'data: [DONE]'", whole)));
  return collector.TakeAnswer();
}

Result<std::string> Post(const std::string& server, const std::string& api_key, const std::string& path,
                         const std::string& body) {
  return Whole(server + path, api_key, &body);
}

Result<std::string> Get(const std::string& server, const std::string& api_key, const std::string& path) {
  return Whole(server + path, api_key, nullptr);
}

}  // namespace dsv4::apps
