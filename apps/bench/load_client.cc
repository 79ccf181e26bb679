// HTTP client of a load: one streamed chat completion with its times.
#include "apps/bench/load_client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "base/json.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Socket {
 public:
  Socket() = default;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  Status Connect(const HostAndPort& server) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found) != 0) {
      return InvalidArgument(fmt::format("--server: host '{}' is not known", server.host));
    }
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
      fd_ = ::socket(entry->ai_family, entry->ai_socktype, entry->ai_protocol);
      if (fd_ >= 0 && ::connect(fd_, entry->ai_addr, entry->ai_addrlen) == 0) break;
      if (fd_ >= 0) ::close(fd_);
      fd_ = -1;
    }
    ::freeaddrinfo(found);
    if (fd_ >= 0) return {};
    return Status(StatusCode::kUnavailable,
                  fmt::format("--server {}:{}: {}", server.host, server.port, std::strerror(errno)));
  }
  bool Send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  // Appends what is there; false at the end.
  bool Receive(std::string& bytes) const {
    char buffer[16384];
    const ssize_t count = ::recv(fd_, buffer, sizeof buffer, 0);
    if (count > 0) bytes.append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

 private:
  int fd_ = -1;
};

// Bytes of a reply's head at most.
constexpr size_t kMostHead = size_t{1} << 20;

// Names of fields and codings have any case.
bool IsChunked(std::string_view head) {
  constexpr std::string_view kField = "\r\ntransfer-encoding:";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  const auto field = std::search(head.begin(), head.end(), kField.begin(), kField.end(), same);
  if (field == head.end()) return false;
  std::string_view value(&*field, static_cast<size_t>(head.end() - field));
  value.remove_prefix(kField.size());
  value = value.substr(0, value.find("\r\n"));
  constexpr std::string_view kCoding = "chunked";
  return std::search(value.begin(), value.end(), kCoding.begin(), kCoding.end(), same) != value.end();
}

// The length in front of a chunk, and in front of its extensions. None where it is no number, or one that no server of ours sends.
std::optional<size_t> ChunkSize(std::string_view line) {
  constexpr size_t kMost = size_t{1} << 40;
  size_t size = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
  const std::string_view behind = line.substr(static_cast<size_t>(end - line.data()));
  if (error != std::errc() || size > kMost) return std::nullopt;
  if (!behind.empty() && behind.front() != ';' && behind.front() != ' ') return std::nullopt;
  return size;
}

// A reply's body, unchunked as it comes. `on_body` gets each piece. Returns the HTTP status, 0 when there was none.
int Exchange(const Socket& socket, const std::string& request,
             const std::function<void(std::string_view)>& on_body) {
  if (!socket.Send(request)) return 0;
  std::string bytes;
  size_t head_end = std::string::npos;
  while ((head_end = bytes.find("\r\n\r\n")) == std::string::npos) {
    if (bytes.size() > kMostHead || !socket.Receive(bytes)) return 0;
  }
  const std::string head = bytes.substr(0, head_end);
  bytes.erase(0, head_end + 4);
  const int status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
  if (!IsChunked(head)) {
    do {
      on_body(bytes);
      bytes.clear();
    } while (socket.Receive(bytes));
    return status;
  }
  for (;;) {
    const size_t line = bytes.find("\r\n");
    if (line != std::string::npos) {
      const std::optional<size_t> announced = ChunkSize(std::string_view(bytes).substr(0, line));
      if (!announced) return 0;
      const size_t size = *announced;
      if (size == 0) return status;
      if (bytes.size() >= line + 2 + size + 2) {
        on_body(std::string_view(bytes).substr(line + 2, size));
        bytes.erase(0, line + 2 + size + 2);
        continue;
      }
    }
    if (!socket.Receive(bytes)) return 0;  // It ended in the middle.
  }
}

std::string Head(const char* method, const std::string& path, const HostAndPort& server,
                 const std::string& api_key, size_t length) {
  return fmt::format(
      "{} {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n{}\r\n",
      method, path, server.host, server.port, length,
      api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", api_key));
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
    rest_ += piece;
    for (size_t end = 0; (end = rest_.find("\n\n")) != std::string::npos; rest_.erase(0, end + 2)) {
      const std::string_view event = std::string_view(rest_).substr(0, end);
      if (event.starts_with("data: ")) TakeEvent(event.substr(6));
    }
  }
  bool done() const { return done_; }
  const std::string& error() const { return error_; }
  StreamedAnswer TakeAnswer() {
    answer_.seconds = SecondsSince(start_);
    return std::move(answer_);
  }

 private:
  void TakeEvent(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Result<Json> read = ParseJson(data, "event");
    if (!read || !read->is_object() || read->contains("error")) {
      error_ = std::string(data);
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
      for (const char* name : {"reasoning_content", "content"}) TakeText(delta, name);
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
  std::string rest_;
  StreamedAnswer answer_;
  std::string error_;
  bool done_ = false;
};

}  // namespace

Result<HostAndPort> ParseServerUrl(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  const size_t colon = rest.rfind(':');
  const std::string port = colon == std::string::npos ? "" : rest.substr(colon + 1);
  if (colon == std::string::npos || colon == 0 || port.empty() ||
      port.find_first_not_of("0123456789") != std::string::npos) {
    return Error(InvalidArgument(fmt::format("--server: got '{}', wanted http://HOST:PORT", url)));
  }
  return HostAndPort{rest.substr(0, colon), port};
}

Result<StreamedAnswer> AskStreamed(const HostAndPort& server, const std::string& api_key,
                                   const std::string& body) {
  const Clock::time_point start = Clock::now();
  Socket socket;
  DSV4_TRY(socket.Connect(server));
  Collector collector(start);
  std::string whole;
  const int status =
      Exchange(socket, Head("POST", "/v1/chat/completions", server, api_key, body.size()) + body,
               [&](std::string_view piece) {
                 if (whole.size() < 500) whole += piece;
                 collector.Take(piece);
               });
  if (status == 429) return Error(ResourceExhausted(whole));
  if (status != 200 || !collector.done() || !collector.error().empty()) {
    return Error(Internal(
        fmt::format("status {}: {}", status, collector.error().empty() ? whole : collector.error())));
  }
  return collector.TakeAnswer();
}

Result<std::string> Post(const HostAndPort& server, const std::string& api_key, const std::string& path,
                         const std::string& body) {
  Socket socket;
  DSV4_TRY(socket.Connect(server));
  std::string reply;
  const int status = Exchange(socket, Head("POST", path, server, api_key, body.size()) + body,
                              [&](std::string_view piece) { reply += piece; });
  if (status == 200) return reply;
  return Error(Internal(fmt::format("POST {}: status {}: {}", path, status, reply.substr(0, 500))));
}

Result<std::string> Get(const HostAndPort& server, const std::string& api_key, const std::string& path) {
  Socket socket;
  DSV4_TRY(socket.Connect(server));
  std::string body;
  const int status =
      Exchange(socket, Head("GET", path, server, api_key, 0), [&](std::string_view piece) { body += piece; });
  if (status == 200) return body;
  return Error(Internal(fmt::format("GET {}: status {}: {}", path, status, body.substr(0, 500))));
}

}  // namespace dsv4::apps
