// The one file that includes Beast and Asio (and http_transport.h, which is a part of it).
#include <fmt/format.h>
#include <malloc.h>
#include <sys/poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"
#include "server/http.h"
#include "server/http_parts.h"
#include "server/http_transport.h"
#include "server/http_wakeable.h"

namespace dsv4::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = Transport::Protocol;
using Socket = Transport::Socket;
using Task = asio::awaitable<void, asio::io_context::executor_type>;
template <typename T>
using TaskOf = asio::awaitable<T, asio::io_context::executor_type>;
constexpr asio::use_awaitable_t<asio::io_context::executor_type> kAwait;

// A reply that is shorter goes with its head; a longer one is not copied for that.
constexpr size_t kCopied = size_t{64} << 10;

// How often a connection that waits for its reply looks whether its client is there, and for how long it has been silent.
constexpr std::chrono::seconds kTick(1);

// g++ 12 destroys temporaries of an expression with co_await twice, so nothing that owns memory is made in one here.

// For places that must go on without memory too: then nothing is said.
template <typename... Args>
void WarnNoThrow(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    LogWarning(fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
  }
}

// asio::redirect_error with our awaitable.
auto AwaitInto(error_code& error) { return asio::redirect_error(kAwait, error); }

class Server;

// What a request takes of the room for bodies, from its header to its reply.
class BodyShare {
 public:
  explicit BodyShare(Server& server) : server_(server) {}
  ~BodyShare() { Return(); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // False when there is not so much left.
  bool Take(uint64_t num_bytes);
  void Return();

 private:
  Server& server_;
  uint64_t num_bytes_ = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, Socket socket, std::string client);
  void Start();
  // Closes the connection if it is between two requests; else it closes after the running one.
  void Drain();
  void Abort();
  // Closes a connection that waits for a request.
  void GiveWay();
  // Since when it has waited for the head of a request; none while it has one.
  std::optional<std::chrono::steady_clock::time_point> waiting_since() const { return waiting_since_; }

 private:
  Task Serve();
  TaskOf<bool> Greet();
  TaskOf<void> Part();
  TaskOf<bool> ServeOne();
  using Parser = http::request_parser<http::buffer_body>;
  TaskOf<bool> Send(std::unique_ptr<Reply>& reply, bool keep_alive, unsigned version, const std::string& id,
                    bool head_only);
  bool WriteAtOnce(std::string_view* bytes);
  TaskOf<bool> Write(std::string_view bytes);
  Refusal WhyRefused(const error_code& error) const;
  TaskOf<void> Refuse(const Refusal& refusal);
  // Reads the rest of a request into `body`. `ended`: without a word, because the client went away.
  struct BodyRead {
    Refusal refusal;
    bool ended = false;
  };
  TaskOf<BodyRead> ReadBody(Parser& parser, BodyShare& share, std::string& body);
  TaskOf<std::unique_ptr<Reply>> Handle(HttpRequest& request);
  void WatchPeer(const std::shared_ptr<Wakeable>& wakeable);
  std::chrono::steady_clock::time_point Deadline(std::chrono::steady_clock::time_point begin,
                                                 size_t moved) const;
  std::string HeadText(const HttpHead& head, std::optional<size_t> length, bool keep_alive,
                       const std::string& id) const;

  Server& server_;
  Transport stream_;
  std::string client_;
  beast::flat_buffer buffer_;
  bool idle_ = false;
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;
};

class Server final : public HttpServer {
 public:
  Server(HttpOptions options, HttpHandler handler, HttpGate gate, HttpErrorBody error_body)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        gate_(std::move(gate)),
        error_body_(std::move(error_body)),
        acceptor_(context_),
        signals_(context_),
        drain_timer_(context_),
        pool_(static_cast<size_t>(std::max(options_.num_handler_threads, 1))),
        large_pool_(1) {
    wakes_->context = &context_;
  }

  ~Server() override {
    pool_.join();
    large_pool_.join();
    const std::lock_guard lock(wakes_->mutex);
    wakes_->context = nullptr;
    if (!options_.unix_socket.empty() && bound_) ::unlink(options_.unix_socket.c_str());
  }

  Status LoadTls();
  Status Bind();
  std::string address() const override { return address_; }
  void HandleSignals() override;
  void Run(const std::function<void()>& on_drain) override;
  void Shutdown() override {
    asio::post(context_, [this] { BeginDrain(); });
  }

 private:
  friend class BodyShare;
  friend class Connection;

  Task Accept();
  // Closes the connection that has waited longest for a request; false when all are at work.
  bool CloseIdlest();
  void WaitForSignal();
  void BeginDrain();
  void EndNow();
  void Remove(Connection* connection) {
    connections_.erase(connection);
    if (draining_ && connections_.empty()) drain_timer_.cancel();
  }

  HttpOptions options_;
  HttpHandler handler_;
  HttpGate gate_;
  HttpErrorBody error_body_;
  std::unique_ptr<asio::ssl::context> tls_;  // Null: none.
  uint64_t body_bytes_ = 0;                  // Taken by BodyShare.
  asio::io_context context_{1};
  asio::basic_socket_acceptor<Protocol, asio::io_context::executor_type> acceptor_;
  asio::basic_signal_set<asio::io_context::executor_type> signals_;
  Timer drain_timer_;
  asio::thread_pool pool_;
  asio::thread_pool large_pool_;  // For requests of large bodies.
  const std::shared_ptr<WakeGate> wakes_ = std::make_shared<WakeGate>();
  RareWarning turned_away_, given_way_, accept_failed_;
  std::string address_;
  std::function<void()> on_drain_;
  std::set<Connection*> connections_;
  bool accepting_ = false;
  bool draining_ = false;
  bool bound_ = false;
};

bool BodyShare::Take(uint64_t num_bytes) {
  if (num_bytes > server_.options_.max_body_bytes_together - server_.body_bytes_) return false;
  server_.body_bytes_ += num_bytes;
  num_bytes_ += num_bytes;
  return true;
}

void BodyShare::Return() { server_.body_bytes_ -= std::exchange(num_bytes_, 0); }

// ---------------------------------------------------------------------------------------------------------------------
// Connection

Connection::Connection(Server& server, Socket socket, std::string client)
    : server_(server), stream_(std::move(socket), server.tls_.get()), client_(std::move(client)) {
  error_code ignored;
  stream_.socket().non_blocking(true, ignored);  // For WriteAtOnce.
}

void Connection::Start() {
  server_.connections_.insert(this);
  asio::co_spawn(
      stream_.get_executor(), [self = shared_from_this()]() -> Task { co_await self->Serve(); },
      [self = shared_from_this()](const std::exception_ptr& exception) {
        if (exception) {
          try {
            std::rethrow_exception(exception);
          } catch (const std::exception& error) {
            WarnNoThrow("http: connection of {} ended: {}", self->client_, error.what());
          }
        }
        self->server_.Remove(self.get());
      });
}

void Connection::Drain() {
  if (idle_) Abort();
}

void Connection::GiveWay() {
  waiting_since_.reset();
  Abort();
}

void Connection::Abort() {
  error_code ignored;
  stream_.socket().shutdown(Socket::shutdown_both, ignored);
  stream_.socket().cancel(ignored);
}

Task Connection::Serve() {
  bool open = co_await Greet();  // In a condition around the loop g++ 12 makes code of it that traps.
  while (open) open = co_await ServeOne();
  co_await Part();
}

// The handshake, where there is TLS. False when the client does not get through it.
TaskOf<bool> Connection::Greet() {
  if (stream_.tls() == nullptr) co_return true;
  error_code error;
  idle_ = true;
  waiting_since_ = std::chrono::steady_clock::now();
  stream_.plain().expires_after(server_.options_.client_timeout);
  co_await stream_.tls()->async_handshake(asio::ssl::stream_base::server, AwaitInto(error));
  idle_ = false;
  if (error) LogInfo(fmt::format("http: {}: no TLS connection: {}", client_, error.message()));
  co_return !error;
}

// What was written should arrive before the connection is reset by what the client may still be sending.
TaskOf<void> Connection::Part() {
  error_code ignored;
  stream_.plain().expires_after(std::chrono::seconds(1));
  // That nothing was cut off.
  if (stream_.tls() != nullptr) co_await stream_.tls()->async_shutdown(AwaitInto(ignored));
  stream_.socket().shutdown(Socket::shutdown_send, ignored);
  std::array<char, 4096> rest;
  stream_.plain().expires_after(std::chrono::seconds(1));
  for (size_t drained = 0; drained < (4U << 20);) {
    error_code error;
    const size_t count = co_await stream_.plain().async_read_some(asio::buffer(rest), AwaitInto(error));
    if (error) break;
    drained += count;
  }
  stream_.socket().close(ignored);
}

Refusal Connection::WhyRefused(const error_code& error) const {
  if (error == http::error::header_limit) {
    return {431, fmt::format("header: more than {} bytes", server_.options_.max_header_bytes)};
  }
  if (error == http::error::body_limit) {
    return {413, fmt::format("body: more than {} bytes", server_.options_.max_body_bytes)};
  }
  const bool is_http = error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message) return {};
  return {400, fmt::format("request: not HTTP/1.1 ({})", error.message())};
}

TaskOf<void> Connection::Refuse(const Refusal& refusal) {
  const std::string body = server_.error_body_(refusal.status, refusal.message);
  const std::string id = NewRequestId();
  LogInfo(fmt::format("http: {} {} {}: {}", id, client_, refusal.status, refusal.message));
  HttpHead head = {.status = refusal.status};
  if (refusal.status == 503) head.headers.emplace_back("Retry-After", "1");
  const std::string bytes = HeadText(head, body.size(), false, id) + body;
  co_await Write(bytes);
}

std::chrono::steady_clock::time_point Connection::Deadline(std::chrono::steady_clock::time_point begin,
                                                           size_t moved) const {
  return begin + server_.options_.client_timeout + std::chrono::seconds(moved >> 10);
}

TaskOf<Connection::BodyRead> Connection::ReadBody(Parser& parser, BodyShare& share, std::string& body) {
  BodyRead read;
  std::string piece(size_t{64} << 10, '\0');
  const auto begin = std::chrono::steady_clock::now();
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    error_code error;
    stream_.plain().expires_at(Deadline(begin, body.size()));
    co_await http::async_read_some(stream_, buffer_, parser, AwaitInto(error));
    if (error == http::error::need_buffer) error = {};
    if (error) {
      if (error == beast::error::timeout)
        LogInfo(fmt::format("http: {}: a request did not arrive in time", client_));
      read.refusal = WhyRefused(error);
      read.ended = true;
      break;
    }
    const size_t count = piece.size() - parser.get().body().size;
    if (!share.Take(count)) {
      read.refusal = {503, "the bodies of other requests take all the room there is; try again later"};
      read.ended = true;
      break;
    }
    body.append(piece.data(), count);
  }
  co_return read;
}

// False when the connection should end.
TaskOf<bool> Connection::ServeOne() {
  Parser parser;
  parser.header_limit(server_.options_.max_header_bytes);
  parser.body_limit(server_.options_.max_body_bytes);
  error_code error;
  idle_ = buffer_.size() == 0;
  if (idle_ && server_.draining_) co_return false;
  waiting_since_ = std::chrono::steady_clock::now();
  stream_.plain().expires_after(server_.options_.client_timeout);
  co_await http::async_read_header(stream_, buffer_, parser, AwaitInto(error));
  idle_ = false;
  waiting_since_.reset();
  Refusal refusal;
  if (error) {
    if (error == beast::error::timeout && parser.got_some()) {
      LogInfo(fmt::format("http: {}: a request did not arrive in time", client_));
    }
    refusal = WhyRefused(error);
    if (refusal.status != 0) co_await Refuse(refusal);
    co_return false;
  }
  refusal = BadFraming(parser.get());
  if (refusal.status != 0) {
    co_await Refuse(refusal);
    co_return false;
  }
  HttpRequest request = ReadHead(parser.get());
  request.id = NewRequestId();
  request.client = client_;
  const std::string id = request.id;
  const bool head_only = parser.get().method() == http::verb::head;
  const bool keep_alive = parser.get().keep_alive();
  const unsigned version = parser.get().version();
  BodyShare share(server_);
  std::unique_ptr<Reply> reply;
  if (!parser.is_done()) {
    // A client that may not ask is not read any further.
    reply = server_.gate_(request);
    if (reply != nullptr) {
      co_await Send(reply, false, version, id, head_only);
      co_return false;
    }
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      if (!co_await Write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    const BodyRead read = co_await ReadBody(parser, share, request.body);
    if (read.ended) {
      if (read.refusal.status != 0) co_await Refuse(read.refusal);
      co_return false;
    }
  }
  reply = co_await Handle(request);
  share.Return();
  co_return co_await Send(reply, keep_alive, version, id, head_only);
}

TaskOf<std::unique_ptr<Reply>> Connection::Handle(HttpRequest& request) {
  // Reading JSON and counting tokens can take long; the connections' thread has others to serve.
  std::unique_ptr<Reply> reply;
  bool failed = false;
  auto done = std::make_shared<Wakeable>(server_.wakes_);
  WakeTimer timer(done, stream_.get_executor());
  asio::thread_pool& pool =
      request.body.size() > server_.options_.large_body_bytes ? server_.large_pool_ : server_.pool_;
  asio::post(pool, [this, &pool, &reply, &failed, &request, done] {
    try {
      reply = server_.handler_(std::move(request));
    } catch (const std::bad_alloc&) {
      WarnNoThrow("http: no memory for a request of {}", client_);
    } catch (const std::exception& error) {
      WarnNoThrow("http: a handler failed: {}", error.what());
      failed = true;
    }
    if (&pool == &server_.large_pool_) ::malloc_trim(0);  // The heap of a large request is not needed again.
    done->Wake();
  });
  while (!done->woken && !done->missed) {
    error_code ignored;
    timer->expires_after(kTick);
    co_await timer->async_wait(AwaitInto(ignored));
  }
  if (reply == nullptr) {
    const int status = failed ? 500 : 503;
    HttpHead head = {.status = status};
    if (!failed) head.headers.emplace_back("Retry-After", "1");
    reply =
        MakeReply(std::move(head),
                  server_.error_body_(status, failed ? "internal error" : "memory ran out; try again later"));
  }
  co_return reply;
}

// Wakes when the client closes its side. Data that a client sends ahead would wake for ever, so then the look is left to the
// tick in Send.
void Connection::WatchPeer(const std::shared_ptr<Wakeable>& wakeable) {
  stream_.socket().async_wait(Socket::wait_read,
                              [self = shared_from_this(), wakeable](const error_code& error) {
                                if (error || !PeerHasLeft(self->stream_.socket().native_handle())) return;
                                wakeable->peer_left = true;
                                if (wakeable->timer != nullptr) wakeable->timer->cancel();
                              });
}

std::string Connection::HeadText(const HttpHead& head, std::optional<size_t> length, bool keep_alive,
                                 const std::string& id) const {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(head.status)));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nx-request-id: {}\r\n", head.status,
                                 std::string_view(reason.data(), reason.size()), head.content_type, id);
  for (const auto& [name, value] : head.headers) text += fmt::format("{}: {}\r\n", name, value);
  text +=
      length
          ? fmt::format("Content-Length: {}\r\n", *length)
          : std::string("Transfer-Encoding: chunked\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

// Writes what the socket takes without waiting, and moves `bytes` on. A token of a stream is a few bytes: nearly always that is all of
// it, and costs neither a timer nor a turn of the event loop. False when the connection is broken.
bool Connection::WriteAtOnce(std::string_view* bytes) {
  if (stream_.tls() != nullptr || bytes->empty()) return true;
  error_code error;
  bytes->remove_prefix(stream_.socket().write_some(asio::buffer(*bytes), error));
  if (!error || error == asio::error::would_block) return true;
  LogInfo(fmt::format("http: {}: writing failed: {}", client_, error.message()));
  return false;
}

// False when the connection is broken or the client took too long.
TaskOf<bool> Connection::Write(std::string_view bytes) {
  if (!WriteAtOnce(&bytes)) co_return false;
  if (bytes.empty()) co_return true;
  error_code error;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t written = 0; !error && written < bytes.size();) {
    stream_.plain().expires_at(Deadline(begin, written));
    written += co_await stream_.async_write_some(asio::buffer(bytes.substr(written)), AwaitInto(error));
  }
  stream_.plain().expires_never();
  if (error) LogInfo(fmt::format("http: {}: writing failed: {}", client_, error.message()));
  co_return !error;
}

// Sends the reply as it comes. False when the connection should end: also when the client has left, which ends the reply.
TaskOf<bool> Connection::Send(std::unique_ptr<Reply>& reply, bool keep_alive, unsigned version,
                              const std::string& id, bool head_only) {
  using Clock = std::chrono::steady_clock;
  const auto wakeable = std::make_shared<Wakeable>(server_.wakes_);
  WakeTimer timer(wakeable, stream_.get_executor());
  reply->OnProgress([weak = std::weak_ptr<Wakeable>(wakeable)] {
    if (const std::shared_ptr<Wakeable> alive = weak.lock()) alive->Wake();
  });
  WatchPeer(wakeable);
  stream_.plain().expires_never();
  std::optional<HttpHead> head;
  std::string body;  // Of a reply that is sent as a whole.
  bool head_sent = false;
  bool alive = true;
  Clock::time_point silent_since = Clock::now();
  timer->expires_after(kTick);
  while (alive) {
    wakeable->woken = false;
    ReplyOutput out;
    reply->Advance(out);
    if (out.head) head = std::move(out.head);
    // HTTP/1.0 knows no chunks: there the stream ends with the connection, and the whole reply is as good.
    const bool streamed = head && head->streamed && version >= 11 && !head_only;
    std::string bytes;
    if (!streamed) {
      body += out.body;
    } else {
      if (!std::exchange(head_sent, true)) {
        keep_alive = keep_alive && !server_.draining_;
        bytes = HeadText(*head, std::nullopt, keep_alive, id);
      }
      if (!out.body.empty()) bytes += fmt::format("{:x}\r\n{}\r\n", out.body.size(), out.body);
      if (out.done) bytes += "0\r\n\r\n";
    }
    if (out.done && !streamed) {
      keep_alive = keep_alive && !server_.draining_ && version >= 11;
      bytes = HeadText(head.value_or(HttpHead{.status = 500}), body.size(), keep_alive, id);
      if (!head_only && body.size() < kCopied) {
        bytes += body;
      } else if (!head_only) {
        alive = co_await Write(bytes);
        bytes = std::move(body);
      }
      if (!alive) break;
    }
    if (!bytes.empty()) {
      std::string_view rest = bytes;
      alive = WriteAtOnce(&rest);
      if (alive && !rest.empty()) alive = co_await Write(rest);
      silent_since = Clock::now();
    }
    if (out.done) break;
    while (alive && !wakeable->woken) {
      error_code ignored;
      co_await timer->async_wait(AwaitInto(ignored));
      const bool tick = Clock::now() >= timer->expiry();
      if (tick) timer->expires_after(kTick);
      if (tick && wakeable->missed.exchange(false)) break;
      if (wakeable->peer_left || (tick && PeerHasLeft(stream_.socket().native_handle()))) {
        LogInfo(fmt::format("http: {} {} left before the end", id, client_));
        alive = false;
      } else if (streamed && !reply->KeepAlive().empty() &&
                 Clock::now() - silent_since >= server_.options_.keep_alive_interval) {
        const std::string_view text = reply->KeepAlive();
        const std::string chunk = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
        alive = co_await Write(chunk);
        silent_since = Clock::now();
      }
    }
  }
  reply.reset();
  error_code ignored;
  stream_.socket().cancel(ignored);  // The watch.
  co_return alive&& keep_alive;
}

// ---------------------------------------------------------------------------------------------------------------------
// Server

Status Server::LoadTls() {
  if (options_.tls_certificate.empty()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(tls_, dsv4::server::LoadTls(options_.tls_certificate, options_.tls_key));
  return {};
}

Status Server::Bind() {
  error_code error;
  if (!options_.unix_socket.empty()) {
    if (options_.unix_socket.size() >= sizeof(sockaddr_un::sun_path)) {
      return InvalidArgument(fmt::format("--unix-socket {}: {} bytes, a socket's path has at most {}",
                                         options_.unix_socket, options_.unix_socket.size(),
                                         sizeof(sockaddr_un::sun_path) - 1));
    }
    const asio::local::stream_protocol::endpoint endpoint(options_.unix_socket);
    struct stat status = {};
    // A socket that a killed server left behind; anything else at that path is not ours.
    if (::lstat(options_.unix_socket.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      asio::local::stream_protocol::socket probe(context_);
      probe.connect(endpoint, error);
      if (!error)
        return InvalidArgument(fmt::format("{}: another server is listening there", options_.unix_socket));
      ::unlink(options_.unix_socket.c_str());
    }
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.bind(Protocol::endpoint(endpoint), error);
    address_ = "unix:" + options_.unix_socket;
  } else {
    asio::ip::tcp::resolver resolver(context_);
    const auto results = resolver.resolve(options_.host, std::to_string(options_.port), error);
    if (error) return InvalidArgument(fmt::format("--host {}: {}", options_.host, error.message()));
    const asio::ip::tcp::endpoint endpoint = results.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(Protocol::endpoint(endpoint), error);
    if (!error) {
      asio::ip::tcp::endpoint bound;
      const Protocol::endpoint local = acceptor_.local_endpoint();
      std::memcpy(bound.data(), local.data(), std::min(local.size(), bound.capacity()));
      const bool v6 = endpoint.address().is_v6();
      address_ = fmt::format("{}://{}{}{}:{}", tls_ ? "https" : "http", v6 ? "[" : "",
                             endpoint.address().to_string(), v6 ? "]" : "", bound.port());
    }
  }
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format("cannot listen on {}: {}",
                    options_.unix_socket.empty() ? fmt::format("{}:{}", options_.host, options_.port)
                                                 : options_.unix_socket,
                    error.message()));
  }
  bound_ = true;
  return {};
}

Task Server::Accept() {
  for (;;) {
    error_code error;
    Socket socket = co_await acceptor_.async_accept(AwaitInto(error));
    if (draining_ || error == asio::error::operation_aborted) co_return;
    if (error) {  // Out of file descriptors: wait for some to be closed.
      accept_failed_.Say(fmt::format("accepting a connection failed: {}", error.message()));
      Timer pause(context_.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(AwaitInto(error));
      continue;
    }
    if (static_cast<int64_t>(connections_.size()) >= options_.max_connections) {
      if (!CloseIdlest()) {
        turned_away_.Say(
            fmt::format("{} connections are at work, another was turned away", connections_.size()));
        socket.close(error);
        continue;
      }
      given_way_.Say(
          fmt::format("{} connections are open, one that waited gave way to a new one", connections_.size()));
    }
    std::string client;
    if (options_.unix_socket.empty()) {
      SetTcpOptions(socket.native_handle(), options_.client_timeout);
      asio::ip::tcp::endpoint peer;
      const Protocol::endpoint remote = socket.remote_endpoint(error);
      if (!error) {
        std::memcpy(peer.data(), remote.data(), std::min(remote.size(), peer.capacity()));
        client = peer.address().to_string(error);
      }
    }
    std::make_shared<Connection>(*this, std::move(socket), std::move(client))->Start();
  }
}

bool Server::CloseIdlest() {
  Connection* idlest = nullptr;
  for (Connection* connection : connections_) {
    if (!connection->waiting_since()) continue;
    if (idlest == nullptr || *connection->waiting_since() < *idlest->waiting_since()) idlest = connection;
  }
  if (idlest == nullptr) return false;
  idlest->GiveWay();
  return true;
}

void Server::WaitForSignal() {
  signals_.async_wait([this](const error_code& error, int) {
    if (error) return;
    WaitForSignal();  // First, so that a second signal is heard even if the first finds no memory.
    if (draining_)
      EndNow();
    else
      BeginDrain();
  });
}

void Server::BeginDrain() {
  if (std::exchange(draining_, true)) return;
  if (on_drain_) on_drain_();
  error_code ignored;
  acceptor_.close(ignored);
  const std::set<Connection*> open = connections_;
  for (Connection* connection : open) connection->Drain();
  drain_timer_.expires_after(connections_.empty() ? std::chrono::milliseconds(0) : options_.drain_timeout);
  drain_timer_.async_wait([this](const error_code&) { EndNow(); });
}

void Server::EndNow() {
  if (!connections_.empty()) WarnNoThrow("http: {} connections are cut off", connections_.size());
  context_.stop();
}

void Server::HandleSignals() {
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  WaitForSignal();
}

void Server::Run(const std::function<void()>& on_drain) {
  on_drain_ = on_drain;
  for (bool running = true; running;) {
    // What lacks memory outside of a connection, accepting one above all, is begun again when others have given some back.
    try {
      if (!accepting_) {
        asio::co_spawn(context_, Accept(), [this](const std::exception_ptr& exception) {
          accepting_ = false;
          if (exception) std::rethrow_exception(exception);
        });
        accepting_ = true;
      }
      context_.run();
      running = false;
    } catch (const std::exception& error) {
      WarnNoThrow("http: {}; going on", error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  pool_.join();
  large_pool_.join();
  // What is still open is destroyed here, and with it its reply.
  context_.restart();
  for (Connection* connection : std::set<Connection*>(connections_)) connection->Abort();
  drain_timer_.cancel();
  signals_.cancel();
  context_.run_for(std::chrono::seconds(2));
}

}  // namespace

Status CheckTlsFiles(const std::string& certificate, const std::string& key) {
  const auto tls = LoadTls(certificate, key);
  return tls ? Status() : tls.error();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(HttpOptions options, HttpHandler handler,
                                                       HttpGate gate, HttpErrorBody error_body) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler), std::move(gate),
                                         std::move(error_body));
  DSV4_TRY(server->LoadTls());
  DSV4_TRY(server->Bind());
  return server;
}

}  // namespace dsv4::server
