// Facts that the HTTP server knows of sockets and heads without a connection. A part of it, which alone
// includes this, and Beast.
#pragma once

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "server/http/http.h"

namespace dsv4::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;

inline std::string NewRequestId() {
  // Not guessable by other clients, which matters for nothing but logs; uniqueness does.
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("req_{:016x}{:08x}", random(), static_cast<uint32_t>(random()));
}

inline bool PeerHasLeft(int fd) {
  pollfd entry = {.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// Each token is written at once. A client that has vanished without a word is given up after `patience`. A
// stream's few bytes would not notice it for a quarter of an hour. These can only fail to help.
inline void SetTcpOptions(int fd, std::chrono::milliseconds patience) {
  const auto set = [fd](int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof value);
  };
  const auto seconds = static_cast<int>(std::max<int64_t>(1, patience.count() / 1000));
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // The kernel keeps no more unsent: a client that does not read is seen soon.
  set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16 << 10);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 3));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(patience.count()));
}

constexpr std::string_view kForwardedFor = "x-forwarded-for";

// An id that a client or a proxy chose, where it may stand in a log and in a header.
inline bool IsRequestId(std::string_view id) {
  constexpr size_t kLongest = 128;
  return !id.empty() && id.size() <= kLongest &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return c > 0x20 && c < 0x7F; });
}

// Answer to a client whose request cannot be read; status 0: nothing, the connection just ends.
struct Refusal {
  int status = 0;
  std::string message;
};

// A line about something that a client can make happen as often as it likes: one in ten seconds, with how
// often it was.
class RareWarning {
 public:
  void Say(std::string_view what) {
    ++count_;
    const auto now = std::chrono::steady_clock::now();
    if (said_ && now - *said_ < std::chrono::seconds(10)) return;
    said_ = now;
    LogWarning(fmt::format("http: {} ({} since this was last said)", what,
                           Counted(std::exchange(count_, 0), "time")));
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> said_;
  int64_t count_ = 0;
};

// Refusal of a head whose framing leaves in doubt where the request ends (RFC 9112, 3.2 and 6.1); status 0:
// nothing.
inline Refusal BadFraming(const http::request<http::buffer_body>& message) {
  const auto count = [&](http::field name) { return message.count(name); };
  if (count(http::field::transfer_encoding) > 0) {
    const auto coding = message[http::field::transfer_encoding];
    if (count(http::field::transfer_encoding) > 1 || !beast::iequals(coding, "chunked")) {
      return {400, "Transfer-Encoding: wanted chunked alone"};
    }
    if (count(http::field::content_length) > 0) return {400, "Content-Length beside Transfer-Encoding"};
    if (message.version() < 11) return {400, "Transfer-Encoding: HTTP/1.0 has none"};
  }
  const size_t hosts = count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11))
    return {400, fmt::format("Host: got {}, wanted one", hosts)};
  return {};
}

// Without the body and the id.
inline HttpRequest ReadHead(const http::request<http::buffer_body>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string_view target = {message.target().data(), message.target().size()};
  // The absolute form, as clients send it to proxies: its host counts (RFC 9112, 3.2.2).
  std::string_view authority;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!authority.empty() || !beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    authority = target.substr(0, target.find_first_of("/?"));
    target.remove_prefix(authority.size());
  }
  const std::string_view path = target.substr(0, target.find('?'));
  request.path = path.empty() && !authority.empty() ? "/" : PercentDecoded(path);
  if (path.size() < target.size()) request.query = std::string(target.substr(path.size() + 1));
  for (const auto& field : message) {
    const auto [header, is_new] =
        request.headers.try_emplace(Lowercase(std::string(field.name_string())), field.value());
    if (!is_new && header->first == kForwardedFor) header->second += fmt::format(", {}", field.value());
  }
  if (!authority.empty()) request.headers["host"] = authority;
  return request;
}

}  // namespace dsv4::server
