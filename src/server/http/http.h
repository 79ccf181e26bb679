// The HTTP server as handlers see it: a whole request in, a reply that is asked for its bytes until it is
// done. No Beast here; only connection.cc and http_server.cc know it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", percent-decoded, without the query.
  std::string query;   // Text that follows '?'.
  // Names in lower case; of a repeated one the first, but x-forwarded-for, which is a list.
  std::map<std::string, std::string> headers;
  std::string body;
  std::string id;      // The client's x-request-id, or a new one; goes into logs and the header of that name.
  std::string client;  // Address, for logs and shares; empty on a unix socket.
  // The owner of its share of rooms and threads: the client's address, unless the gate says better.
  uint64_t owner = 0;

  // Empty when there is none.
  std::string_view Header(std::string_view lower_case_name) const;
};

struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  // The body's bytes go out as they come (chunked) instead of together with their length.
  bool streamed = false;
};

// Bytes of a reply so far.
struct ReplyOutput {
  std::optional<HttpHead>
      head;          // Set once; before it no byte goes out. Streamed replies set it in the first Advance.
  std::string body;  // Bytes to append.
  bool done = false;
};

// An answer in the making. Destroyed when it is done, or earlier when the client has left: it then stops what
// works for it.
class Reply {
 public:
  virtual ~Reply() = default;
  // Called on the connection's thread: once at the start, and again some time after each wake. Must not
  // block.
  virtual void Advance(ReplyOutput& out) = 0;
  // `wake` may be called from any thread, any number of times, until this object is destroyed. Set before the
  // first Advance.
  virtual void OnProgress(std::function<void()> wake) = 0;
  // Whether it still holds what the request said. Then the request keeps its part of the room for bodies.
  virtual bool HoldsRequest() const { return false; }
  // Comment of a streamed reply that has been silent for a while, so that proxies and clients see that it
  // lives.
  virtual std::string_view KeepAlive() const { return {}; }
  // Whether it has a trace of its own (trace_exporter.h).
  virtual bool IsTraced() const { return false; }
  // The server ends before the reply has: its last words, as Advance. `out.done` is set behind it whatever it
  // says.
  virtual void Cut(ReplyOutput& /*out*/) {}
};

// A reply that is complete from the start.
std::unique_ptr<Reply> MakeReply(HttpHead head, std::string body);
// The same reply with one more header.
// A header of that name that the reply has gets this value behind its own and a comma.
std::unique_ptr<Reply> WithHeader(std::unique_ptr<Reply> reply, std::string name, std::string value);

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;     // 0: one that is free.
  std::string unix_socket;  // Instead of host and port.
  // PEM files (TLS 1.2 and 1.3); both or none.
  std::string tls_certificate = {};
  std::string tls_key = {};
  int num_handler_threads = 3;  // One owner has at most all but one.
  // For bodies larger than this the handler runs on threads of their own, so that small requests do not wait
  // for large ones.
  uint64_t large_body_bytes = 256 << 10;
  // Beyond, a connection of the owner (by address) that has most gives way to a new one. An idle one goes
  // first, else the newest. Fewer where the process may not open so many descriptors.
  int64_t max_connections = 1024;
  uint32_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = 64 << 20;
  // The room that arrived bodies and untaken replies of all owners share: half as much again as one body may
  // have. A request beyond its owner's share gets a 503. What fits into kSmallBytes has a room of its own.
  static constexpr uint64_t kSmallBytes = uint64_t{64} << 10;
  static constexpr uint64_t kSmallRoom = uint64_t{32} << 20;
  uint64_t body_room() const { return max_body_bytes + max_body_bytes / 2; }
  // For a header to arrive, and for an idle connection. For a body that arrives, and for a reply that is
  // taken: see Pace.
  std::chrono::milliseconds client_timeout{30'000};
  std::chrono::milliseconds keep_alive_interval{10'000};
  std::chrono::milliseconds drain_timeout{30'000};
  // From the first signal to the end of accepting: load balancers see that the server is not ready, and send
  // their requests elsewhere.
  std::chrono::milliseconds lame_duck{0};
  // Peers whose X-Forwarded-For names the client: networks ("10.0.0.0/8", "::1") and "unix".
  std::vector<std::string> trusted_proxies = {};
};

// Turns a request into a reply; on one of the handler threads, several at a time. Must not throw.
using HttpHandler = std::function<std::unique_ptr<Reply>(HttpRequest request)>;
// Answers by the head, before the body is read (body is empty): what is refused, and what must never wait for
// a thread. Null lets the request in, whose owner it may set. On the connections' thread: must not block,
// must not throw.
using HttpGate = std::function<std::unique_ptr<Reply>(HttpRequest& head)>;
// For what fails before there is a request: (status, message) to head and body.
using HttpErrorBody = std::function<std::string(int status, std::string_view message)>;

// Whether a server could show this certificate and prove itself with this key. InvalidArgument names the
// file.
Status CheckTlsFiles(const std::string& certificate, const std::string& key);

class HttpServer {
 public:
  // Reads the TLS files and binds the address. InvalidArgument or Unavailable says which and why.
  static Result<std::unique_ptr<HttpServer>> Listen(HttpOptions options, HttpHandler handler, HttpGate gate,
                                                    HttpErrorBody error_body);
  virtual ~HttpServer() = default;

  // "http://127.0.0.1:8000", "https://..." or "unix:/path".
  virtual std::string address() const = 0;
  // From now on SIGTERM and SIGINT shut down, and SIGHUP calls `on_hangup` on the thread of Run; one that
  // comes before Run does so there. Once.
  virtual void HandleSignals(std::function<void()> on_hangup) = 0;
  // The first signal that shut down; 0: none did.
  virtual int stop_signal() const = 0;
  // Reads the TLS files again, for connections that come from now on; an error leaves those of before. On the
  // thread of Run.
  virtual Status ReloadTls() = 0;
  // Serves until a signal or Shutdown, and for the lame-duck time. Then it takes no new connection, and
  // running replies may end for the drain timeout. What is left is cut. A further signal ends each of these
  // times. `on_stop` is called when they begin.
  virtual void Run(const std::function<void()>& on_stop) = 0;
  // Without a lame-duck time. From any thread.
  virtual void Shutdown() = 0;
};

}  // namespace dsv4::server
