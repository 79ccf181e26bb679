// HttpServer over Asio: accepts, hands connections on, drains. With connection.cc the files that include
// Beast and Asio.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <thread>

#include "base/text.h"
#include "server/http/connection.h"
#include "server/http/handler_memory.h"
#include "server/http/http.h"
#include "server/http/unwind_reserve.h"

namespace dsv4::server {
namespace {

// The resolver takes an empty name for a missing one: this machine's, of IPv6.
Result<std::string> HostToResolve(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const bool is_blank = host.find_first_not_of(" \t") == std::string::npos;
  if (is_blank || host == "*") {
    return Error(InvalidArgument(fmt::format(
        "--host: got '{}', wanted an address or a name (0.0.0.0: all of IPv4, :: all there are)", host)));
  }
  return host;
}

class Server final : public HttpServer {
 public:
  Server(HttpOptions options, HttpHandler handler, HttpGate gate, HttpErrorBody error_body)
      : shared_(std::move(options), std::move(handler), std::move(gate), std::move(error_body)),
        acceptor_(shared_.context),
        signals_(shared_.context),
        pause_(shared_.context) {}

  ~Server() override {
    shared_.pool.Join();
    shared_.large_pool.Join();
    const std::lock_guard lock(shared_.wakes->mutex);
    shared_.wakes->context = nullptr;
    if (!shared_.options.unix_socket.empty() && bound_) ::unlink(shared_.options.unix_socket.c_str());
  }

  Status LoadTls();
  Status Bind();
  std::string address() const override { return address_; }
  void HandleSignals(std::function<void()> on_hangup) override;
  int stop_signal() const override { return stop_signal_; }
  Status ReloadTls() override { return LoadTls(); }
  void Run(const std::function<void()>& on_stop) override;
  void Shutdown() override {
    asio::post(shared_.context, [this] { BeginDrain(); });
  }

 private:
  // Counted while it lives. It lives with the operation that accepts, or that pauses before it accepts again.
  // It dies with it where there was no memory for the operation's end.
  class Accepting {
   public:
    explicit Accepting(int& count) : count_(&count) { ++*count_; }
    Accepting(Accepting&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    ~Accepting() {
      if (count_ != nullptr) --*count_;
    }

   private:
    int* count_;
  };
  // Begins to accept the next connection. Needs no memory.
  void Accept();
  void Accepted(const error_code& error, Socket socket);
  void Serve(Socket socket);
  // Closes a connection of the owner that has most, if those are more than `owner` has. It is the one that
  // has waited longest for a request, else the last that came. Else any that waits is closed. False when
  // there is none.
  bool MakeRoomFor(uint64_t owner);
  void WaitForSignal();
  // One after the other, each once: for the lame-duck time, for the drain time, for last words.
  void Stop();
  void BeginDrain();
  void EndNow();

  // Work that must begin whatever memory there is. These outlive the operations of the context.
  int accepting_ = 0;
  HandlerMemory accept_memory_, pause_memory_, signal_memory_, drain_memory_;
  ConnectionsShared shared_;
  asio::basic_socket_acceptor<Protocol, asio::io_context::executor_type> acceptor_;
  asio::basic_signal_set<asio::io_context::executor_type> signals_;
  Timer pause_;
  RareWarning turned_away_, given_way_, accept_failed_, no_memory_;
  std::string address_;
  std::function<void()> on_stop_, on_hangup_;
  int stop_signal_ = 0;
  bool bound_ = false;
};

Status Server::LoadTls() {
  if (shared_.options.tls_certificate.empty()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(
      shared_.tls, dsv4::server::LoadTls(shared_.options.tls_certificate, shared_.options.tls_key));
  return {};
}

Status Server::Bind() {
  error_code error;
  if (!shared_.options.unix_socket.empty()) {
    if (shared_.options.unix_socket.size() >= sizeof(sockaddr_un::sun_path)) {
      return InvalidArgument(fmt::format(
          "--unix-socket {}: {}, a socket's path has at most {}", shared_.options.unix_socket,
          Counted(shared_.options.unix_socket.size(), "byte"), sizeof(sockaddr_un::sun_path) - 1));
    }
    const asio::local::stream_protocol::endpoint endpoint(shared_.options.unix_socket);
    struct stat status = {};
    // A socket that a killed server left behind; anything else at that path is not ours.
    if (::lstat(shared_.options.unix_socket.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      asio::local::stream_protocol::socket probe(shared_.context);
      probe.connect(endpoint, error);
      if (!error)
        return InvalidArgument(
            fmt::format("{}: another server is listening there", shared_.options.unix_socket));
      ::unlink(shared_.options.unix_socket.c_str());
    }
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.bind(Protocol::endpoint(endpoint), error);
    address_ = "unix:" + shared_.options.unix_socket;
  } else {
    asio::ip::tcp::resolver resolver(shared_.context);
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string host, HostToResolve(shared_.options.host));
    const auto results = resolver.resolve(host, std::to_string(shared_.options.port), error);
    if (error) return InvalidArgument(fmt::format("--host {}: {}", shared_.options.host, error.message()));
    // IPv4 of a name that has both: clients that ask for the name try all of its addresses, and others ask for
    // 127.0.0.1.
    const auto v4 = std::find_if(results.begin(), results.end(),
                                 [](const auto& result) { return result.endpoint().address().is_v4(); });
    const asio::ip::tcp::endpoint endpoint = (v4 != results.end() ? v4 : results.begin())->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(Protocol::endpoint(endpoint), error);
    if (!error) {
      asio::ip::tcp::endpoint bound;
      const Protocol::endpoint local = acceptor_.local_endpoint();
      std::memcpy(bound.data(), local.data(), std::min(local.size(), bound.capacity()));
      const bool v6 = endpoint.address().is_v6();
      address_ = fmt::format("{}://{}{}{}:{}", shared_.tls ? "https" : "http", v6 ? "[" : "",
                             endpoint.address().to_string(), v6 ? "]" : "", bound.port());
    }
  }
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot listen on {}: {}",
                              shared_.options.unix_socket.empty()
                                  ? fmt::format("{}:{}", shared_.options.host, shared_.options.port)
                                  : shared_.options.unix_socket,
                              error.message()));
  }
  bound_ = true;
  return {};
}

void Server::Accept() {
  acceptor_.async_accept(
      asio::bind_allocator(HandlerAllocator<void>(accept_memory_),
                           [this, accepting = Accepting(accepting_)](const error_code& error, Socket socket) {
                             Accepted(error, std::move(socket));
                           }));
}

void Server::Accepted(const error_code& error, Socket socket) {
  if (shared_.draining || error == asio::error::operation_aborted) return;
  if (error) {  // Out of file descriptors: wait for some to be closed.
    accept_failed_.Say(fmt::format("accepting a connection failed: {}", error.message()));
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait(asio::bind_allocator(
        HandlerAllocator<void>(pause_memory_),
        [this, accepting = Accepting(accepting_)](const error_code& /*ended*/) { Accept(); }));
    return;
  }
  Accept();  // First: what follows may find no memory.
  Serve(std::move(socket));
}

void Server::Serve(Socket socket) {
  error_code error;
  std::string client;
  if (shared_.options.unix_socket.empty()) {
    SetTcpOptions(socket.native_handle(), shared_.options.client_timeout);
    asio::ip::tcp::endpoint peer;
    const Protocol::endpoint remote = socket.remote_endpoint(error);
    if (!error) {
      std::memcpy(peer.data(), remote.data(), std::min(remote.size(), peer.capacity()));
      client = peer.address().to_string(error);
    }
  }
  if (static_cast<int64_t>(shared_.connections.size()) >= shared_.options.max_connections) {
    if (!MakeRoomFor(OwnerOfAddress(client))) {
      turned_away_.Say(fmt::format("{} at work, another was turned away",
                                   Counted(shared_.connections.size(), "connection is", "connections are")));
      return;
    }
    given_way_.Say(fmt::format("{} open, one of the owner of most gave way to a new one",
                               Counted(shared_.connections.size(), "connection is", "connections are")));
  }
  std::make_shared<Connection>(shared_, std::move(socket), std::move(client))->Start();
}

bool Server::MakeRoomFor(uint64_t owner) {
  struct Counts {
    int64_t all = 0;
    Connection* idlest = nullptr;
    Connection* last = nullptr;
  };
  std::map<uint64_t, Counts> owners;
  Counts* most = nullptr;
  for (Connection* connection : shared_.connections) {
    if (connection->gives_way()) continue;
    Counts& counts = owners[connection->owner()];
    ++counts.all;
    const auto& waiting = connection->waiting_since();
    if (waiting && (counts.idlest == nullptr || *waiting < *counts.idlest->waiting_since()))
      counts.idlest = connection;
    if (counts.last == nullptr || connection->since() > counts.last->since()) counts.last = connection;
    if (most == nullptr || counts.all > most->all) most = &counts;
  }
  const int64_t mine = owners[owner].all;
  if (most == nullptr) return true;  // All give way already.
  // One's own that waits gives way too, as before; work that is in progress only to an owner with fewer.
  Connection* gives = most->idlest != nullptr || most->all <= mine + 1 ? most->idlest : most->last;
  for (const auto& [id, counts] : owners) {
    if (gives == nullptr) gives = counts.idlest;
  }
  if (gives == nullptr) return false;
  gives->GiveWay();
  return true;
}

void Server::WaitForSignal() {
  signals_.async_wait(asio::bind_allocator(
      HandlerAllocator<void>(signal_memory_), [this](const error_code& error, int signal) {
        if (error) return;
        WaitForSignal();  // First, so that a second signal is heard even if the first finds no memory.
        if (signal == SIGHUP) return on_hangup_();
        if (stop_signal_ == 0) stop_signal_ = signal;
        if (shared_.draining)
          EndNow();
        else if (shared_.stopping)
          BeginDrain();
        else
          Stop();
      }));
}

void Server::Stop() {
  if (std::exchange(shared_.stopping, true)) return;
  if (on_stop_) on_stop_();
  if (shared_.options.lame_duck.count() == 0) return BeginDrain();
  shared_.drain_timer.expires_after(shared_.options.lame_duck);
  shared_.drain_timer.async_wait([this](const error_code& error) {
    if (!error) BeginDrain();
  });
}

void Server::BeginDrain() {
  if (std::exchange(shared_.draining, true)) return;
  error_code ignored;
  acceptor_.close(ignored);
  // First: whatever fails after it, the end comes.
  shared_.drain_timer.expires_after(shared_.connections.empty() ? std::chrono::milliseconds(0)
                                                                : shared_.options.drain_timeout);
  shared_.drain_timer.async_wait(
      asio::bind_allocator(HandlerAllocator<void>(drain_memory_), [this](const error_code&) { EndNow(); }));
  for (Connection* connection : shared_.connections) connection->Drain();
  if (!std::exchange(shared_.stopping, true) && on_stop_) on_stop_();
}

void Server::EndNow() {
  // A second time, or with nothing left to say.
  if (std::exchange(shared_.ending, true) || shared_.connections.empty()) return shared_.context.stop();
  WarnNoThrow("http: open connections that are cut off: {}", shared_.connections.size());
  for (Connection* connection : shared_.connections) connection->Cut();
  constexpr std::chrono::seconds kLastWords(1);
  shared_.drain_timer.expires_after(kLastWords);
  shared_.drain_timer.async_wait([this](const error_code&) { shared_.context.stop(); });
}

void Server::HandleSignals(std::function<void()> on_hangup) {
  on_hangup_ = std::move(on_hangup);
  signals_.add(SIGHUP);
  signals_.add(SIGTERM);
  signals_.add(SIGINT);
  WaitForSignal();
}

void Server::Run(const std::function<void()>& on_stop) {
  on_stop_ = on_stop;
  UnwindReserve reserve;
  for (bool running = true; running;) {
    // Memory that lacks outside of a connection, or as an operation of one begins, ends up here. Others give
    // memory back meanwhile.
    try {
      if (accepting_ == 0) Accept();
      shared_.context.run();
      running = false;
    } catch (const std::exception& error) {
      try {
        no_memory_.Say(fmt::format("{}; going on", error.what()));
      } catch (const std::exception&) {  // No memory to say so.
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      reserve.Refill();
    }
  }
  shared_.pool.Join();
  shared_.large_pool.Join();
  // Open connections are destroyed here, and with them their replies.
  shared_.context.restart();
  for (Connection* connection : shared_.connections) connection->Abort();
  shared_.drain_timer.cancel();
  signals_.cancel();
  shared_.context.run_for(std::chrono::seconds(2));
}

int64_t OpenDescriptors() {
  std::error_code failed;
  const std::filesystem::directory_iterator open("/proc/self/fd", failed);
  return failed ? 0 : std::distance(begin(open), end(open));
}

// With no more connections than the process may have besides what else it opens; it may have as many as the
// system lets it. FailedPrecondition where hardly any is left.
Result<HttpOptions> WithinDescriptors(HttpOptions options) {
  constexpr int64_t kOthers = 128;
  constexpr int64_t kLeast = 16;  // The server's own, and some clients'.
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return options;
  const auto wanted = static_cast<rlim_t>(options.max_connections + kOthers);
  if (files.rlim_cur < wanted) {
    files.rlim_cur = std::min(files.rlim_max, wanted);
    (void)::setrlimit(RLIMIT_NOFILE, &files);
    (void)::getrlimit(RLIMIT_NOFILE, &files);
  }
  const int64_t needed = OpenDescriptors() + kLeast;
  if (files.rlim_cur < static_cast<rlim_t>(needed)) {
    return Error(FailedPrecondition(fmt::format(
        "descriptors: got a limit of {}, wanted at least {} (ulimit -n)", files.rlim_cur, needed)));
  }
  const auto most = static_cast<int64_t>(std::min<rlim_t>(files.rlim_cur, wanted)) - kOthers;
  options.max_connections = std::min(options.max_connections, std::max<int64_t>(most, 8));
  return options;
}

}  // namespace

Status CheckTlsFiles(const std::string& certificate, const std::string& key) {
  const auto tls = LoadTls(certificate, key);
  return tls ? Status() : tls.error();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(HttpOptions options, HttpHandler handler,
                                                       HttpGate gate, HttpErrorBody error_body) {
  DSV4_ASSIGN_OR_RETURN(HttpOptions fitting, WithinDescriptors(std::move(options)));
  auto server = std::make_unique<Server>(std::move(fitting), std::move(handler), std::move(gate),
                                         std::move(error_body));
  DSV4_TRY(server->LoadTls());
  DSV4_TRY(server->Bind());
  return server;
}

}  // namespace dsv4::server
