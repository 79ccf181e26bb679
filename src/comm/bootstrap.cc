#include "comm/bootstrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/read_file.h"
#include "comm/shared_memory.h"
#include "comm/shared_memory_layout.h"

namespace dsv4::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxCallers = size_t{4} * kMaxSharedMemoryRanks;
constexpr uint64_t kHello = 0x334F4C4C45485634;  // "4VHELLO3"

template <size_t kSize>
void Put(std::array<char, kSize>& field, std::string_view text) {
  field = {};
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), field.begin());
}
template <size_t kSize>
std::string_view Get(const std::array<char, kSize>& field) {
  return {field.data(), ::strnlen(field.data(), kSize)};
}

// What a rank says to rank 0, and what it hears. Both on machines of one byte order: they will share memory.
struct Hello {
  uint64_t magic = kHello;
  int32_t size = 0;
  int32_t rank = 0;
  int32_t process = 0;
  std::array<char, 64> machine = {};
  std::array<char, 512> agreement = {};
};
struct Reply {
  uint64_t magic = kHello;
  int32_t creator = 0;
  int32_t fd = 0;
  uint32_t code = 0;
  std::array<char, 512> message = {};
};

// Says which boot of which machine this is.
std::string Machine() {
  const Result<std::string> boot = ReadFile("/proc/sys/kernel/random/boot_id", FileKind::kAny);
  std::array<char, 64> name = {};
  (void)::gethostname(name.data(), name.size() - 1);
  return boot ? boot->substr(0, 36) : std::string(name.data());
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

  void SetTimeout(std::chrono::milliseconds timeout) const {
    const timeval time{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
    (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    (void)::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
  }
  template <typename T>
  bool Write(const T& record) const {
    return ::send(fd_, &record, sizeof(record), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(record));
  }
  template <typename T>
  bool Read(T& record) const {
    return ::recv(fd_, &record, sizeof(record), MSG_WAITALL) == static_cast<ssize_t>(sizeof(record));
  }

 private:
  int fd_;
};

// Calls use(socket, address) for every address the name stands for, until one works.
template <typename Use>
Result<Socket> ForAddress(const std::string& address, int port, bool passive, const Use& use) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Error(InvalidArgument(fmt::format("MASTER_ADDR: got '{}': {}", address, ::gai_strerror(error))));
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
  return Error(StatusCode::kUnavailable, fmt::format("{} port {}: {}", address, port, std::strerror(reason)));
}

Result<int> Number(const char* name, int min, int max) {
  const std::string_view text = std::getenv(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return Error(InvalidArgument(fmt::format("{}: got '{}', want {} to {}", name, text, min, max)));
  }
  return value;
}

struct Guest {
  int rank = 0;
  pid_t process = 0;
  Socket socket;
};

// Everybody else, once each; or why not.
Status TakeIn(const RankEnvironment& environment, const Door& door, const JoinOptions& options,
              const Hello& mine, std::vector<Guest>& guests) {
  const Clock::time_point begin = Clock::now();
  std::vector<bool> here(static_cast<size_t>(environment.size), false);
  here[0] = true;
  std::vector<Socket> callers;  // Have not said who they are.
  while (guests.size() + 1 < here.size()) {
    if (options.still_wanted) DSV4_RETURN_IF_ERROR(options.still_wanted());
    if (Clock::now() - begin > options.timeout) {
      std::vector<size_t> missing;
      for (size_t r = 0; r < here.size(); ++r) {
        if (!here[r]) missing.push_back(r);
      }
      return {StatusCode::kDeadlineExceeded,
              fmt::format("ranks {} of {} did not come to {} port {} within {} s", fmt::join(missing, ", "),
                          here.size(), environment.address, door.port(),
                          static_cast<double>(options.timeout.count()) / 1000.0)};
    }
    // All at once: who is silent keeps nobody waiting, and has as long as the others.
    std::vector<pollfd> wanted = {{.fd = door.socket(), .events = POLLIN, .revents = 0}};
    for (const Socket& caller : callers)
      wanted.push_back({.fd = caller.fd(), .events = POLLIN, .revents = 0});
    if (::poll(wanted.data(), wanted.size(), 50) < 1) continue;
    const auto speaks =
        std::find_if(wanted.begin() + 1, wanted.end(), [](const pollfd& p) { return p.revents != 0; });
    if (speaks == wanted.end()) {
      Socket caller(::accept4(door.socket(), nullptr, nullptr, SOCK_CLOEXEC));
      if (callers.size() == kMaxCallers) callers.erase(callers.begin());
      if (caller.fd() >= 0) callers.push_back(std::move(caller));
      continue;
    }
    const auto place = callers.begin() + (speaks - wanted.begin() - 1);
    Socket socket = std::move(*place);
    callers.erase(place);
    socket.SetTimeout(std::chrono::seconds(2));
    Hello hello;
    if (!socket.Read(hello) || hello.magic != kHello) continue;  // A stranger.
    const int rank = hello.rank;
    guests.push_back({rank, hello.process, std::move(socket)});
    if (hello.size != environment.size || rank < 1 || rank >= environment.size) {
      return InvalidArgument(fmt::format("rank {} of {} came to rank 0 of {}: WORLD_SIZE differs", rank,
                                         hello.size, environment.size));
    }
    if (here[static_cast<size_t>(rank)]) {
      return InvalidArgument(fmt::format("two processes say they are rank {}", rank));
    }
    if (Get(hello.machine) != Get(mine.machine)) {
      return Unimplemented(fmt::format(
          "rank {} runs on another machine than rank 0; this build joins ranks of one machine", rank));
    }
    if (Get(hello.agreement) != Get(mine.agreement)) {
      return InvalidArgument(
          fmt::format("rank {} runs '{}', rank 0 '{}'", rank, Get(hello.agreement), Get(mine.agreement)));
    }
    here[static_cast<size_t>(rank)] = true;
  }
  return {};
}

Result<std::shared_ptr<SharedMemory>> Receive(const RankEnvironment& environment, std::optional<Door> door,
                                              const JoinOptions& options, const Hello& mine,
                                              std::vector<Guest>& guests) {
  if (!door) {
    DSV4_ASSIGN_OR_RETURN(door, Door::Open(environment.address, environment.port));
  }
  DSV4_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(environment.size));
  const Status status = TakeIn(environment, *door, options, mine, guests);
  if (status.ok()) {
    // From here on all know all: who ends before it opens the memory is missed at once, and not when the deadline has passed.
    const Layout layout(memory->data(), environment.size);
    for (const Guest& guest : guests) layout.control(guest.rank).process.store(guest.process);
  }
  Reply reply{.creator = ::getpid(), .fd = memory->fd(), .code = static_cast<uint32_t>(status.code())};
  Put(reply.message, status.message());
  for (const Guest& guest : guests) (void)guest.socket.Write(reply);
  if (!status.ok()) return Error(status);
  return memory;
}

Result<std::shared_ptr<SharedMemory>> Visit(const RankEnvironment& environment, const JoinOptions& options,
                                            const Hello& mine) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const Result<Socket> socket = ForAddress(
        environment.address, environment.port, false,
        [](const Socket& s, const addrinfo& a) { return ::connect(s.fd(), a.ai_addr, a.ai_addrlen) == 0; });
    if (!socket && socket.error().code() != StatusCode::kUnavailable) return Error(socket.error());
    if (socket) {
      socket->SetTimeout(options.timeout);
      Reply reply;
      if (!socket->Write(mine) || !socket->Read(reply) || reply.magic != kHello) {
        return Error(StatusCode::kUnavailable, fmt::format("rank {}: rank 0 at {} port {} gave no answer",
                                                           mine.rank, environment.address, environment.port));
      }
      if (reply.code != 0) {
        return Error(Status(static_cast<StatusCode>(reply.code), std::string(Get(reply.message))));
      }
      return SharedMemory::Open(reply.creator, reply.fd, environment.size);
    }
    if (Clock::now() - begin > options.timeout) {
      return Error(Status(StatusCode::kDeadlineExceeded, socket.error().message())
                       .WithContext(fmt::format("rank {}: no rank 0", mine.rank)));
    }
    ::usleep(20000);
  }
}

}  // namespace

Result<std::optional<RankEnvironment>> ReadRankEnvironment() {
  const bool has_rank = std::getenv("RANK") != nullptr;
  const bool has_size = std::getenv("WORLD_SIZE") != nullptr;
  if (!has_rank && !has_size) return std::nullopt;
  if (has_rank != has_size) {
    return Error(
        InvalidArgument(fmt::format("{} is set and {} is not: want both or neither",
                                    has_rank ? "RANK" : "WORLD_SIZE", has_rank ? "WORLD_SIZE" : "RANK")));
  }
  RankEnvironment environment;
  DSV4_ASSIGN_OR_RETURN(environment.size, Number("WORLD_SIZE", 1, kMaxSharedMemoryRanks));
  DSV4_ASSIGN_OR_RETURN(environment.rank, Number("RANK", 0, environment.size - 1));
  if (environment.size == 1) return std::nullopt;
  environment.local_rank = environment.rank;
  if (std::getenv("LOCAL_RANK") != nullptr) {
    DSV4_ASSIGN_OR_RETURN(environment.local_rank, Number("LOCAL_RANK", 0, environment.size - 1));
  }
  if (const char* address = std::getenv("MASTER_ADDR")) environment.address = address;
  if (std::getenv("MASTER_PORT") == nullptr) {
    return Error(InvalidArgument("MASTER_PORT: not set, want the port on which rank 0 listens"));
  }
  DSV4_ASSIGN_OR_RETURN(environment.port, Number("MASTER_PORT", 1, 65535));
  return environment;
}

Result<Door> Door::Open(const std::string& address, int port) {
  DSV4_ASSIGN_OR_RETURN(
      Socket socket, ForAddress(address, port, true, [](const Socket& s, const addrinfo& a) {
        const int on = 1;
        (void)::setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        return ::bind(s.fd(), a.ai_addr, a.ai_addrlen) == 0 && ::listen(s.fd(), kMaxSharedMemoryRanks) == 0;
      }));
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  std::array<char, 16> service = {};
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, service.data(), service.size(),
                    NI_NUMERICSERV) != 0) {
    return Error(StatusCode::kUnavailable, fmt::format("{} port {}: no local address", address, port));
  }
  return Door(socket.Release(), std::atoi(service.data()));
}

Door::Door(Door&& other) noexcept : socket_(std::exchange(other.socket_, -1)), port_(other.port_) {}
Door& Door::operator=(Door&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(port_, other.port_);
  return *this;
}
Door::~Door() {
  if (socket_ >= 0) ::close(socket_);
}

Result<std::unique_ptr<Communicator>> JoinRanks(const RankEnvironment& environment, std::optional<Door> door,
                                                const JoinOptions& options) {
  Hello mine{.size = environment.size, .rank = environment.rank, .process = ::getpid()};
  Put(mine.machine, Machine());
  Put(mine.agreement, options.agreement);
  std::vector<Guest> guests;  // Until all have joined: what they heard is then of use.
  Result<std::shared_ptr<SharedMemory>> memory =
      environment.rank == 0 ? Receive(environment, std::move(door), options, mine, guests)
                            : Visit(environment, options, mine);
  if (!memory) return Error(memory.error());
  return JoinSharedMemory(std::move(*memory), environment.rank, environment.size, options.timeout);
}

}  // namespace dsv4::comm
