// Connection: one client's, from its handshake to its end. A part of the HTTP server, which alone includes this, and Beast.
#pragma once

#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/body_decoder.h"
#include "server/http/fair_pool.h"
#include "server/http/http.h"
#include "server/http/parts.h"
#include "server/http/shares.h"
#include "server/http/transport.h"
#include "server/http/trusted_proxies.h"
#include "server/http/wakeable.h"
#include "server/http/warn_no_throw.h"

namespace dsv4::server {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = Transport::Protocol;
using Socket = Transport::Socket;
using Task = asio::awaitable<void, asio::io_context::executor_type>;
template <typename T>
using TaskOf = asio::awaitable<T, asio::io_context::executor_type>;
constexpr asio::use_awaitable_t<asio::io_context::executor_type> kAwait;

// g++ 12 destroys temporaries of an expression with co_await twice, so nothing that owns memory is made in one.

// asio::redirect_error with our awaitable.
inline auto AwaitInto(error_code& error) { return asio::redirect_error(kAwait, error); }

class Connection;

// Common state of a server's connections. The server's thread only, but for the pools. Outlives the
// connections.
struct ConnectionsShared {
  ConnectionsShared(HttpOptions with_options, HttpHandler with_handler, HttpGate with_gate,
                    HttpErrorBody with_error_body)
      : options(std::move(with_options)),
        handler(std::move(with_handler)),
        gate(std::move(with_gate)),
        error_body(std::move(with_error_body)),
        trusted(options.trusted_proxies),
        body_room(options.body_room()),
        drain_timer(context),
        pool({.num_threads = options.num_handler_threads}),
        large_pool({.num_threads = 4,
                    .max_weight = options.max_body_bytes + (options.max_body_bytes >> 3),
                    .nice = 5,
                    .trims_heap = true}) {
    wakes->context = &context;
  }

  void Remove(Connection* connection) {
    connections.erase(connection);
    if (draining && connections.empty()) drain_timer.cancel();
  }

  const HttpOptions options;
  const HttpHandler handler;
  const HttpGate gate;
  const HttpErrorBody error_body;
  const TrustedProxies trusted;
  std::unique_ptr<asio::ssl::context> tls;  // Null: none.
  SharedRoom body_room;
  SharedRoom small_room{HttpOptions::kSmallRoom};
  std::set<Connection*> connections;  // Each takes itself out.
  asio::io_context context{1};
  Timer drain_timer;
  FairPool pool;
  FairPool large_pool;  // For requests of large bodies.
  const std::shared_ptr<WakeGate> wakes = std::make_shared<WakeGate>();
  bool stopping = false;  // A signal has come.
  bool draining = false;
  bool ending = false;  // Replies that run are cut.
};

// The parts of the rooms that a request takes, from its first byte to its reply's last.
class BodyShare {
 public:
  BodyShare(ConnectionsShared& shared, uint64_t owner) : shared_(shared), owner_(owner) {}
  ~BodyShare() { Return(); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // False when the owner's share has not so much left.
  bool Take(uint64_t num_bytes);
  void Return();

 private:
  ConnectionsShared& shared_;
  const uint64_t owner_;
  uint64_t small_ = 0;
  uint64_t large_ = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionsShared& shared, Socket socket, std::string client);
  // Also of one whose coroutine found no memory to go on, and was destroyed without a word.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  void Start();
  // Closes the connection if it is between two requests; else it closes after the running one.
  void Drain();
  void Abort();
  // Lets a reply that runs say its last words, once ConnectionsShared::ending is set.
  void Cut();
  // Closes the connection for another's sake.
  void GiveWay();
  bool gives_way() const { return gives_way_; }
  std::chrono::steady_clock::time_point since() const { return since_; }
  // By the address.
  uint64_t owner() const { return owner_; }
  // Since when it has waited for the head of a request; none while it has one.
  std::optional<std::chrono::steady_clock::time_point> waiting_since() const { return waiting_since_; }

 private:
  Task Serve();
  TaskOf<bool> Greet();
  TaskOf<void> Part();
  TaskOf<bool> ServeOne();
  using Parser = http::request_parser<http::buffer_body>;
  TaskOf<bool> Send(std::unique_ptr<Reply>& reply, BodyShare& share, bool keep_alive, unsigned version,
                    const std::string& id, bool head_only);
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
  // Appends to `body`; status 0: all is well.
  static Refusal TakePiece(std::string_view bytes, BodyShare& share, std::string& body);
  // `received`: bytes of the wire, so far.
  Refusal DecodePiece(BodyDecoder& decoder, std::string_view& bytes, uint64_t received, BodyShare& share,
                      std::string& body);
  TaskOf<std::unique_ptr<Reply>> Handle(HttpRequest& request);
  void WatchPeer(const std::shared_ptr<Wakeable>& wakeable);
  // How a reader finds the end of a body.
  enum class Framing : uint8_t { kLength, kChunks, kClose };
  std::string HeadText(const HttpHead& head, Framing framing, size_t length, bool keep_alive,
                       const std::string& id) const;

  ConnectionsShared& shared_;
  Transport stream_;
  std::string client_;
  const uint64_t owner_;
  Pace write_pace_;  // For the reply that is being sent.
  beast::flat_buffer buffer_;
  std::weak_ptr<Wakeable> sending_;  // While a reply runs.
  bool idle_ = false;
  bool gives_way_ = false;
  const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;
};

}  // namespace dsv4::server
