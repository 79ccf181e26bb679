// TCP as ranks use it: sockets that close themselves, addresses that one rank can tell another, callers that
// introduce themselves.
#pragma once

#include <netdb.h>
#include <sys/poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::comm {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

  // Time limit of every later call that blocks, connecting too.
  void SetTimeout(std::chrono::milliseconds timeout) const;
  // All of a record; false when the other side is gone or the time is over.
  template <typename Record>
  bool Write(const Record& record) const {
    static_assert(std::is_trivially_copyable_v<Record>);
    return ::send(fd_, &record, sizeof(record), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(record));
  }

 private:
  int fd_ = -1;
};

// Address at which a socket listens or is connected, in a form that may be sent to another machine.
struct Endpoint {
  uint16_t family = AF_UNSPEC;  // AF_INET or AF_INET6.
  uint16_t port = 0;
  std::array<uint8_t, 16> address = {};

  // "10.0.0.1 port 29500".
  std::string ToString() const;
  // Address of this machine only.
  bool IsLoopback() const;
};
// Addresses of the near and the far end; nullopt where the socket has none.
std::optional<Endpoint> LocalEnd(const Socket& socket);
std::optional<Endpoint> FarEnd(const Socket& socket);

// Calls use(socket, address) for every address that `name` stands for, until one works. InvalidArgument for a
// name that stands for nothing, Unavailable with the last error otherwise.
Result<Socket> ForAddress(const std::string& name, int port, bool passive,
                          const std::function<bool(const Socket&, const addrinfo&)>& use);
// Connections of a listener: two connections of every rank, and some more.
inline constexpr int kBacklog = 256;
// A socket that listens at `address`, at a free port where its port is 0.
Result<Socket> ListenAt(const Endpoint& address);
Result<Socket> ConnectTo(const Endpoint& address, std::chrono::milliseconds timeout);

// Texts in records: ends with a 0, and is cut where it is longer.
template <size_t kSize>
void Put(std::array<char, kSize>& field, std::string_view text) {
  field = {};
  text.copy(field.data(), kSize - 1);
}
template <size_t kSize>
std::string_view Get(const std::array<char, kSize>& field) {
  return std::string_view(field.data(), kSize).substr(0, std::string_view(field.data(), kSize).find('\0'));
}

// A record that arrives on a socket, in as many pieces as it likes. No call waits for it.
template <typename Record>
class PartialRead {
 public:
  enum class State : uint8_t { kPending, kComplete, kEnded };

  // Takes what there is.
  State Look(const Socket& socket) {
    static_assert(std::is_trivially_copyable_v<Record>);
    while (num_read_ < sizeof(Record)) {
      const ssize_t count = ::recv(socket.fd(), reinterpret_cast<char*>(&record_) + num_read_,
                                   sizeof(Record) - num_read_, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::kPending;
      if (count <= 0) {
        error_ = count == 0 ? 0 : errno;
        return State::kEnded;
      }
      num_read_ += static_cast<size_t>(count);
    }
    return State::kComplete;
  }
  const Record& record() const { return record_; }
  // Why it ended: an error number, 0 where the other side closed the connection.
  int error() const { return error_; }

 private:
  Record record_;
  size_t num_read_ = 0;
  int error_ = 0;
};

// All of a record, which is waited for until `end`. `still_wanted` is asked meanwhile. DeadlineExceeded,
// Unavailable when the other side is gone, or what `still_wanted` says.
template <typename Record>
Result<Record> Await(const Socket& socket, std::chrono::steady_clock::time_point end,
                     const std::function<Status()>& still_wanted) {
  PartialRead<Record> read;
  for (;;) {
    const auto state = read.Look(socket);
    if (state == PartialRead<Record>::State::kComplete) return read.record();
    if (state == PartialRead<Record>::State::kEnded) return Error(StatusCode::kUnavailable, "ended");
    if (still_wanted) DSV4_TRY(still_wanted());
    if (std::chrono::steady_clock::now() > end) return Error(StatusCode::kDeadlineExceeded, "not there");
    pollfd wanted{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&wanted, 1, 50);
  }
}

// Takes in callers at a listening socket that send a record. A silent or slow one holds up no other and is
// sent away only when very many come after.
template <typename Record>
class AcceptQueue {
 public:
  static constexpr size_t kMaxCallers = 256;

  explicit AcceptQueue(int listener) : listener_(listener) {}

  // The next caller that has sent a whole record; nullopt where there is none within `wait`, or a caller came
  // or left meanwhile.
  std::optional<std::pair<Socket, Record>> Next(std::chrono::milliseconds wait) {
    std::vector<pollfd> wanted = {{.fd = listener_, .events = POLLIN, .revents = 0}};
    for (const Caller& caller : callers_)
      wanted.push_back({.fd = caller.socket.fd(), .events = POLLIN, .revents = 0});
    if (::poll(wanted.data(), wanted.size(), static_cast<int>(wait.count())) < 1) return std::nullopt;
    for (size_t i = 0; i < callers_.size(); ++i) {
      if (wanted[i + 1].revents == 0) continue;
      const auto state = callers_[i].read.Look(callers_[i].socket);
      if (state == PartialRead<Record>::State::kPending) continue;
      Caller caller = std::move(callers_[i]);
      callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
      if (state == PartialRead<Record>::State::kEnded) return std::nullopt;
      return std::pair(std::move(caller.socket), caller.read.record());
    }
    if (wanted[0].revents == 0) return std::nullopt;
    Socket caller(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (caller.fd() < 0) return std::nullopt;
    if (callers_.size() == kMaxCallers) callers_.erase(callers_.begin());
    callers_.push_back({std::move(caller), {}});
    return std::nullopt;
  }

 private:
  struct Caller {
    Socket socket;
    PartialRead<Record> read;
  };
  int listener_;
  std::vector<Caller> callers_;  // Have not introduced themselves.
};

}  // namespace dsv4::comm
