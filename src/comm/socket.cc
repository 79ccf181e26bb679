// TCP sockets with deadlines: listening, connecting, addresses and numeric errors as Status.
#include "comm/socket.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dsv4::comm {
namespace {

struct SystemAddress {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SystemAddress ToSystem(const Endpoint& endpoint) {
  SystemAddress address;
  address.storage.ss_family = endpoint.family;
  if (endpoint.family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_port = ::htons(endpoint.port);
    std::memcpy(&v6.sin6_addr, endpoint.address.data(), sizeof(v6.sin6_addr));
    address.length = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_port = ::htons(endpoint.port);
    std::memcpy(&v4.sin_addr, endpoint.address.data(), sizeof(v4.sin_addr));
    address.length = sizeof(v4);
  }
  return address;
}

std::optional<Endpoint> FromSystem(const SystemAddress& address) {
  Endpoint endpoint{.family = address.storage.ss_family};
  if (endpoint.family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    endpoint.port = ::ntohs(v6.sin6_port);
    std::memcpy(endpoint.address.data(), &v6.sin6_addr, sizeof(v6.sin6_addr));
    return endpoint;
  }
  if (endpoint.family != AF_INET) return std::nullopt;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  endpoint.port = ::ntohs(v4.sin_port);
  std::memcpy(endpoint.address.data(), &v4.sin_addr, sizeof(v4.sin_addr));
  return endpoint;
}

Status Unavailable(const Endpoint& endpoint) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}", endpoint.ToString(), std::strerror(errno))};
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::SetTimeout(std::chrono::milliseconds timeout) const {
  const timeval time{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  (void)::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

std::string Endpoint::ToString() const {
  SystemAddress system = ToSystem(*this);
  std::array<char, NI_MAXHOST> text = {};
  const int error =
      ::getnameinfo(system.get(), system.length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return fmt::format("{} port {}", error == 0 ? text.data() : "no address", port);
}

bool Endpoint::IsLoopback() const {
  if (family == AF_INET) return address[0] == 127;
  in6_addr v6;
  std::memcpy(&v6, address.data(), sizeof(v6));
  return family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<Endpoint> LocalEnd(const Socket& socket) {
  SystemAddress address;
  if (::getsockname(socket.fd(), address.get(), &address.length) != 0) return std::nullopt;
  return FromSystem(address);
}

std::optional<Endpoint> FarEnd(const Socket& socket) {
  SystemAddress address;
  if (::getpeername(socket.fd(), address.get(), &address.length) != 0) return std::nullopt;
  return FromSystem(address);
}

Result<Socket> ForAddress(const std::string& name, int port, bool passive,
                          const std::function<bool(const Socket&, const addrinfo&)>& use) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Error(InvalidArgument(fmt::format("MASTER_ADDR: got '{}': {}", name, ::gai_strerror(error))));
  }
  int reason = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    if (socket.fd() >= 0 && use(socket, *one)) {
      ::freeaddrinfo(found);
      return socket;
    }
    reason = errno;
  }
  ::freeaddrinfo(found);
  return Error(StatusCode::kUnavailable, fmt::format("{} port {}: {}", name, port, std::strerror(reason)));
}

Result<Socket> ListenAt(const Endpoint& address) {
  SystemAddress system = ToSystem(address);
  Socket socket(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0 || ::bind(socket.fd(), system.get(), system.length) != 0 ||
      ::listen(socket.fd(), kBacklog) != 0) {
    return Error(Unavailable(address).WithContext("listening"));
  }
  return socket;
}

Result<Socket> ConnectTo(const Endpoint& address, std::chrono::milliseconds timeout) {
  SystemAddress system = ToSystem(address);
  Socket socket(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() >= 0) socket.SetTimeout(timeout);
  if (socket.fd() < 0 || ::connect(socket.fd(), system.get(), system.length) != 0) {
    if (errno == EINPROGRESS) errno = ETIMEDOUT;  // How a connect that has taken its time says so.
    return Error(Unavailable(address));
  }
  return socket;
}

}  // namespace dsv4::comm
