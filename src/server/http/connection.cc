// Coroutine of one client's connection: TLS, headers, bodies, replies, deadlines and shares.
#include "server/http/connection.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace dsv4::server {
namespace {

// A reply that is shorter goes with its head; a longer one is not copied for that.
constexpr size_t kCopied = size_t{64} << 10;

// By how much a body may grow as it is decoded: a text that repeats itself does tenfold. The first MiB is free.
constexpr uint64_t kMostGrowth = 100;
constexpr uint64_t kFreeGrowth = uint64_t{1} << 20;

// A body that is shorter grows as strings do.
constexpr size_t kReservedFrom = size_t{1} << 20;

constexpr std::string_view kNoRoom =
    "the bodies and replies of other requests take all the room there is; try again later";

// Room for all of a body, once a good part has come. Growth would copy it, and copies hold up the connections'
// thread. Pages that are not used are not there.
void ReserveWhole(std::string& body, uint64_t most) {
  if (body.size() >= kReservedFrom && body.size() >= most / 8 && body.capacity() < most) body.reserve(most);
}

// Bytes of a stream as they go out.
std::string Piece(std::string_view bytes, bool chunked) {
  return chunked ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes);
}

// How often a connection that waits for its reply looks whether its client is there, and for how long it has been silent.
constexpr std::chrono::seconds kTick(1);

}  // namespace

bool BodyShare::Take(uint64_t num_bytes) {
  const uint64_t small = std::min(num_bytes, HttpOptions::kSmallBytes - small_);
  if (!shared_.small_room.Take(owner_, small)) return false;
  small_ += small;
  if (!shared_.body_room.Take(owner_, num_bytes - small)) return false;
  large_ += num_bytes - small;
  return true;
}

void BodyShare::Return() {
  shared_.small_room.Return(owner_, std::exchange(small_, 0));
  shared_.body_room.Return(owner_, std::exchange(large_, 0));
}

Connection::Connection(ConnectionsShared& shared, Socket socket, std::string client)
    : shared_(shared),
      stream_(std::move(socket), shared.tls.get()),
      client_(std::move(client)),
      owner_(OwnerOfAddress(client_)),
      write_pace_(shared.options.client_timeout) {
  error_code ignored;
  stream_.socket().non_blocking(true, ignored);  // For WriteAtOnce.
}

Connection::~Connection() { shared_.connections.erase(this); }

void Connection::Start() {
  shared_.connections.insert(this);
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
        self->shared_.Remove(self.get());
      });
}

void Connection::Drain() {
  if (idle_) Abort();
}

void Connection::Cut() {
  if (const std::shared_ptr<Wakeable> waiting = sending_.lock()) waiting->Wake();
}

void Connection::GiveWay() {
  gives_way_ = true;
  Abort();
}

void Connection::Abort() {
  error_code ignored;
  stream_.socket().shutdown(Socket::shutdown_both, ignored);
  stream_.socket().cancel(ignored);
}

Task Connection::Serve() {
  // If an operation finds no memory to begin, this coroutine is destroyed without a word. What then still
  // waits at the socket, WatchPeer above all, would hold a connection without a server.
  struct Ending {
    Connection& connection;
    ~Ending() { connection.Abort(); }
  } ending{*this};
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
  stream_.plain().expires_after(shared_.options.client_timeout);
  co_await stream_.tls()->async_handshake(asio::ssl::stream_base::server, AwaitInto(error));
  idle_ = false;
  if (error) LogInfo(fmt::format("http: {}: no TLS connection: {}", client_, error.message()));
  co_return !error;
}

// A reply should arrive before the connection is reset by bytes that the client may still be sending. So as
// much as a body may have is read, as long as it comes.
TaskOf<void> Connection::Part() {
  error_code ignored;
  stream_.plain().expires_after(std::chrono::seconds(1));
  // Proof that nothing was cut off.
  if (stream_.tls() != nullptr) co_await stream_.tls()->async_shutdown(AwaitInto(ignored));
  stream_.socket().shutdown(Socket::shutdown_send, ignored);
  std::array<char, 4096> rest;
  const auto end = std::chrono::steady_clock::now() + shared_.options.client_timeout;
  for (size_t drained = 0;
       drained < shared_.options.max_body_bytes && std::chrono::steady_clock::now() < end;) {
    error_code error;
    stream_.plain().expires_after(std::chrono::seconds(1));
    const size_t count = co_await stream_.plain().async_read_some(asio::buffer(rest), AwaitInto(error));
    if (error) break;
    drained += count;
  }
  stream_.socket().close(ignored);
}

Refusal Connection::WhyRefused(const error_code& error) const {
  if (error == http::error::header_limit) {
    return {431, fmt::format("header: more than {}", Counted(shared_.options.max_header_bytes, "byte"))};
  }
  if (error == http::error::body_limit) {
    return {413, fmt::format("body: more than {}", Counted(shared_.options.max_body_bytes, "byte"))};
  }
  const bool is_http = error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message) return {};
  return {400, fmt::format("request: not HTTP/1.1 ({})", error.message())};
}

TaskOf<void> Connection::Refuse(const Refusal& refusal) {
  const std::string body = shared_.error_body(refusal.status, refusal.message);
  const std::string id = NewRequestId();
  LogInfo(fmt::format("http: {} {} {}: {}", id, client_, refusal.status, refusal.message));
  HttpHead head = {.status = refusal.status};
  if (refusal.status == 503) head.headers.emplace_back("Retry-After", "1");
  const std::string bytes = HeadText(head, Framing::kLength, body.size(), false, id) + body;
  co_await Write(bytes);
}

TaskOf<Connection::BodyRead> Connection::ReadBody(Parser& parser, BodyShare& share, std::string& body) {
  BodyRead read;
  Result<std::unique_ptr<BodyDecoder>> made = BodyDecoder::Make(parser.get()[http::field::content_encoding]);
  if (!made) {
    read.refusal = {415, made.error().message()};
    read.ended = true;
    co_return read;
  }
  const std::unique_ptr<BodyDecoder> decoder = std::move(*made);
  const auto stated = parser.content_length();
  const uint64_t most = decoder == nullptr && stated ? *stated : shared_.options.max_body_bytes;
  std::string piece(size_t{16} << 10, '\0');
  Pace pace(shared_.options.client_timeout);
  uint64_t received = 0;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    error_code error;
    const auto begin = std::chrono::steady_clock::now();
    stream_.plain().expires_at(begin + pace.left());
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
    received += count;
    ReserveWhole(body, std::min(most, shared_.options.max_body_bytes));
    pace.Moved(count, std::chrono::steady_clock::now() - begin);
    read.refusal = decoder == nullptr ? TakePiece({piece.data(), count}, share, body) : Refusal();
    if (decoder != nullptr) {
      for (std::string_view rest(piece.data(), count); read.refusal.status == 0;) {
        const size_t before = body.size();
        read.refusal = DecodePiece(*decoder, rest, received, share, body);
        if (rest.empty() && body.size() - before < BodyDecoder::kMostAtOnce) break;
        co_await asio::post(stream_.get_executor(),
                            kAwait);  // A little may stand for very much: others have their turn.
      }
    }
    if (read.refusal.status == 0 && parser.is_done() && decoder != nullptr && !decoder->whole())
      read.refusal = {400, "body: its Content-Encoding ends too early"};
    read.ended = read.refusal.status != 0;
    if (read.ended) break;
  }
  co_return read;
}

Refusal Connection::TakePiece(std::string_view bytes, BodyShare& share, std::string& body) {
  if (!share.Take(bytes.size())) return {503, std::string(kNoRoom)};
  body.append(bytes);
  return {};
}

Refusal Connection::DecodePiece(BodyDecoder& decoder, std::string_view& bytes, uint64_t received,
                                BodyShare& share, std::string& body) {
  const size_t before = body.size();
  const Status status = decoder.Decode(bytes, body);
  if (!status.ok()) return {400, fmt::format("body: not of its Content-Encoding ({})", status.message())};
  if (body.size() > shared_.options.max_body_bytes)
    return {413,
            fmt::format("body: more than {} when decoded", Counted(shared_.options.max_body_bytes, "byte"))};
  if (body.size() > kFreeGrowth + kMostGrowth * received) {
    return {413, fmt::format("body: got more than {}-fold of what was sent when decoded, wanted at most that",
                             kMostGrowth)};
  }
  if (!share.Take(body.size() - before)) return {503, std::string(kNoRoom)};
  return {};
}

// False when the connection should end.
TaskOf<bool> Connection::ServeOne() {
  Parser parser;
  parser.header_limit(shared_.options.max_header_bytes);
  parser.body_limit(shared_.options.max_body_bytes);
  error_code error;
  idle_ = buffer_.size() == 0;
  if (idle_ && shared_.draining) co_return false;
  waiting_since_ = std::chrono::steady_clock::now();
  stream_.plain().expires_after(shared_.options.client_timeout);
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
  const std::string_view given_id = request.Header("x-request-id");
  request.id = IsRequestId(given_id) ? std::string(given_id) : NewRequestId();
  request.client = shared_.trusted.ClientOf(client_, request.Header(kForwardedFor));
  const std::string id = request.id;
  const bool head_only = parser.get().method() == http::verb::head;
  const bool keep_alive = parser.get().keep_alive();
  const unsigned version = parser.get().version();
  request.owner = OwnerOfAddress(request.client);
  std::unique_ptr<Reply> reply = shared_.gate(request);
  BodyShare share(shared_, request.owner);
  if (reply != nullptr) {
    // A client that may not ask is not read any further.
    co_return co_await Send(reply, share, keep_alive && parser.is_done(), version, id, head_only);
  }
  if (!parser.is_done()) {
    if (version >= 11 && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      if (!co_await Write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
    }
    const BodyRead read = co_await ReadBody(parser, share, request.body);
    if (read.ended) {
      if (read.refusal.status != 0) co_await Refuse(read.refusal);
      co_return false;
    }
  }
  reply = co_await Handle(request);
  co_return co_await Send(reply, share, keep_alive, version, id, head_only);
}

TaskOf<std::unique_ptr<Reply>> Connection::Handle(HttpRequest& request) {
  // Reading JSON and counting tokens can take long; the connections' thread has others to serve. Where it finds no memory to wait, this
  // coroutine ends before the handler does; so the handler's things are shared.
  struct Work {
    HttpRequest request;
    std::unique_ptr<Reply> reply;
    bool failed = false;
  };
  auto work = std::make_shared<Work>();
  work->request = std::move(request);
  auto done = std::make_shared<Wakeable>(shared_.wakes);
  WakeTimer timer(done, stream_.get_executor());
  const uint64_t size = work->request.body.size();
  const uint64_t owner = work->request.owner;
  FairPool& pool = size > shared_.options.large_body_bytes ? shared_.large_pool : shared_.pool;
  std::function<void()> run = [&shared = shared_, work, done] {
    try {
      work->reply = shared.handler(std::move(work->request));
    } catch (const std::bad_alloc&) {
      WarnNoThrow("http: no memory for a request");
    } catch (const std::exception& error) {
      WarnNoThrow("http: a handler failed: {}", error.what());
      work->failed = true;
    }
    done->Wake();
  };
  pool.Post(owner, size, std::move(run));
  while (!done->woken && !done->missed) {
    error_code ignored;
    timer->expires_after(kTick);
    co_await timer->async_wait(AwaitInto(ignored));
  }
  std::unique_ptr<Reply> reply = std::move(work->reply);
  if (reply == nullptr) {
    const int status = work->failed ? 500 : 503;
    HttpHead head = {.status = status};
    if (!work->failed) head.headers.emplace_back("Retry-After", "1");
    reply = MakeReply(
        std::move(head),
        shared_.error_body(status, work->failed ? "internal error" : "memory ran out; try again later"));
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

std::string Connection::HeadText(const HttpHead& head, Framing framing, size_t length, bool keep_alive,
                                 const std::string& id) const {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(head.status)));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nx-request-id: {}\r\n", head.status,
                                 std::string_view(reason.data(), reason.size()), head.content_type, id);
  for (const auto& [name, value] : head.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (head.status == 304) {
    // The length would be that of what the client has.
  } else if (framing == Framing::kLength) {
    text += fmt::format("Content-Length: {}\r\n", length);
  } else {
    if (framing == Framing::kChunks) text += "Transfer-Encoding: chunked\r\n";
    text += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  }
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

// Writes what the socket takes without waiting, and moves `bytes` on. A token of a stream is a few bytes.
// Nearly always all are taken, which costs neither a timer nor a turn of the event loop. False when the
// connection is broken.
bool Connection::WriteAtOnce(std::string_view* bytes) {
  if (stream_.tls() != nullptr || bytes->empty()) return true;
  error_code error;
  bytes->remove_prefix(stream_.socket().write_some(asio::buffer(*bytes), error));
  if (!error || error == asio::error::would_block) return true;
  LogInfo(fmt::format("http: {}: writing failed: {}", client_, error.message()));
  return false;
}

// False when the connection is broken or the client took too long, in this call and those before it for the same reply.
TaskOf<bool> Connection::Write(std::string_view bytes) {
  if (!WriteAtOnce(&bytes)) co_return false;
  if (bytes.empty()) co_return true;
  error_code error;
  while (!error && !bytes.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    stream_.plain().expires_at(begin + write_pace_.left());
    const size_t written = co_await stream_.async_write_some(asio::buffer(bytes), AwaitInto(error));
    bytes.remove_prefix(written);
    write_pace_.Moved(written, std::chrono::steady_clock::now() - begin);
  }
  stream_.plain().expires_never();
  if (error) LogInfo(fmt::format("http: {}: writing failed: {}", client_, error.message()));
  co_return !error;
}

// Sends the reply as it comes. False when the connection should end: also when the client has left, which ends the reply.
TaskOf<bool> Connection::Send(std::unique_ptr<Reply>& reply, BodyShare& share, bool keep_alive,
                              unsigned version, const std::string& id, bool head_only) {
  using Clock = std::chrono::steady_clock;
  write_pace_ = Pace(shared_.options.client_timeout);
  const auto wakeable = std::make_shared<Wakeable>(shared_.wakes);
  WakeTimer timer(wakeable, stream_.get_executor());
  sending_ = wakeable;
  reply->OnProgress([weak = std::weak_ptr<Wakeable>(wakeable)] {
    if (const std::shared_ptr<Wakeable> alive = weak.lock()) alive->Wake();
  });
  WatchPeer(wakeable);
  stream_.plain().expires_never();
  std::optional<HttpHead> head;
  std::string body;  // Body of a reply that is sent as a whole.
  bool head_sent = false;
  bool holds = true;
  bool alive = true;
  Clock::time_point silent_since = Clock::now();
  timer->expires_after(kTick);
  while (alive) {
    wakeable->woken = false;
    ReplyOutput out;
    reply->Advance(out);
    if (holds && !reply->HoldsRequest()) {
      holds = false;
      share.Return();
    }
    if (shared_.ending && !out.done) {
      reply->Cut(out);
      out.done = true;
    }
    if (out.head) head = std::move(out.head);
    const bool streamed = head && head->streamed && !head_only;
    // HTTP/1.0 knows no chunks: there the stream ends with the connection.
    const bool chunked = version >= 11;
    std::string bytes;
    if (!streamed && body.empty()) {
      body = std::move(out.body);
    } else if (!streamed) {
      body += out.body;
    } else {
      if (!std::exchange(head_sent, true)) {
        keep_alive = keep_alive && !shared_.stopping && chunked;
        bytes = HeadText(*head, chunked ? Framing::kChunks : Framing::kClose, 0, keep_alive, id);
      }
      if (!out.body.empty()) bytes += Piece(out.body, chunked);
      if (out.done && chunked) bytes += "0\r\n\r\n";
    }
    if (out.done && !streamed) {
      // A long reply may stay for as long as its client likes to take it.
      if (!share.Take(body.size())) {
        body = shared_.error_body(503, kNoRoom);
        head = HttpHead{.status = 503, .headers = {{"Retry-After", "1"}}};
      }
      keep_alive = keep_alive && !shared_.stopping && chunked;
      bytes = HeadText(head.value_or(HttpHead{.status = shared_.ending ? 503 : 500}), Framing::kLength,
                       body.size(), keep_alive, id);
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
                 Clock::now() - silent_since >= shared_.options.keep_alive_interval) {
        const std::string piece = Piece(reply->KeepAlive(), chunked);
        alive = co_await Write(piece);
        silent_since = Clock::now();
      }
    }
  }
  reply.reset();
  error_code ignored;
  stream_.socket().cancel(ignored);  // The watch.
  co_return alive&& keep_alive;
}

}  // namespace dsv4::server
