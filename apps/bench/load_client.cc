// HTTP client of a load: one streamed chat completion with its times.
#include "apps/bench/load_client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>

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

// A reply's body, unchunked as it comes. `on_body` gets each piece. Returns the HTTP status, 0 when there was none.
int Exchange(const Socket& socket, const std::string& request,
             const std::function<void(std::string_view)>& on_body) {
  if (!socket.Send(request)) return 0;
  std::string bytes;
  size_t head_end = std::string::npos;
  while ((head_end = bytes.find("\r\n\r\n")) == std::string::npos) {
    if (!socket.Receive(bytes)) return 0;
  }
  const std::string head = bytes.substr(0, head_end);
  bytes.erase(0, head_end + 4);
  const int status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
  if (head.find("Transfer-Encoding: chunked") == std::string::npos) {
    do {
      on_body(bytes);
      bytes.clear();
    } while (socket.Receive(bytes));
    return status;
  }
  for (;;) {
    const size_t line = bytes.find("\r\n");
    if (line != std::string::npos) {
      const size_t size = std::strtoul(bytes.c_str(), nullptr, 16);
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
    const Json chunk = Json::parse(data, nullptr, false);
    if (chunk.is_discarded() || chunk.contains("error")) {
      error_ = std::string(data);
      return;
    }
    if (chunk.contains("usage") && chunk["usage"].is_object()) {
      answer_.num_prompt_tokens = chunk["usage"]["prompt_tokens"];
      answer_.num_output_tokens = chunk["usage"]["completion_tokens"];
      answer_.num_cached_tokens = chunk["usage"]["prompt_tokens_details"]["cached_tokens"];
    }
    for (const Json& choice : chunk["choices"]) {
      const Json& delta = choice["delta"];
      for (const char* name : {"reasoning_content", "content"}) TakeText(delta, name);
      if (delta.contains("tool_calls")) {
        answer_.has_call = true;
        for (const Json& call : delta["tool_calls"]) TakeText(call["function"], "arguments");
      }
      if (choice.contains("logprobs") && choice["logprobs"].is_object())
        answer_.num_logprobs += static_cast<int64_t>(choice["logprobs"]["content"].size());
    }
  }

  void TakeText(const Json& from, const char* name) {
    if (!from.contains(name) || !from[name].is_string() || from[name].get_ref<const std::string&>().empty())
      return;
    answer_.text += from[name].get_ref<const std::string&>();
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
