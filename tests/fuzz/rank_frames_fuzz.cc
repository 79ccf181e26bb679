// Bytes that ranks send each other: each input ends at once, with what was wanted or with an error that has a text.
// The first byte chooses the place. Frames and notices of a group; the greeting at rank 0; that at a rank which waits for connections.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/bootstrap.h"
#include "comm/socket_links.h"
#include "comm/socket_mesh.h"

namespace dsv4::comm {
namespace {

constexpr std::chrono::milliseconds kTimeout(2000);
constexpr std::string_view kAgreement = "fuzz";

void Send(const Socket& socket, std::string_view bytes) {
  (void)::send(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)::shutdown(socket.fd(), SHUT_WR);
}

std::pair<Socket, Socket> MakePair() {
  std::array<int, 2> fds = {};
  DSV4_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

// Whether the error, if there is one, has a text.
bool Check(const Status& status) {
  DSV4_CHECK(status.ok() || !status.message().empty());
  return status.ok();
}

// The second byte is the part that is frames; every frame is to bring eight bytes.
bool Exchange(std::string_view input) {
  if (input.empty()) return false;
  const size_t cut = std::min(static_cast<size_t>(static_cast<uint8_t>(input[0])), input.size() - 1);
  input.remove_prefix(1);
  auto [data, far_data] = MakePair();
  auto [notices, far_notices] = MakePair();
  Send(far_data, input.substr(0, cut));
  Send(far_notices, input.substr(cut));
  std::vector<Link> links(2);
  links[1].data = std::move(data);
  links[1].notices = std::move(notices);
  SocketMesh mesh(std::move(links), 0, kTimeout);
  int num_done = 0;
  for (int i = 0; i < 4; ++i) {
    std::array<std::byte, 8> got = {};
    std::array<std::byte, 8> given = {};
    const SocketMesh::Piece in{1, {.data = got.data(), .num_rows = 2, .row_bytes = 4, .stride = 4}};
    const SocketMesh::Piece out{1, {.data = given.data(), .row_bytes = 8}};
    if (!Check(mesh.Exchange(FrameKind::kBroadcast, 1, {&out, 1}, {&in, 1}, Wait::kDeadline))) break;
    ++num_done;
  }
  DSV4_CHECK(static_cast<size_t>(num_done) * 32 <= cut);
  (void)Check(mesh.Check());
  DSV4_CHECK(num_done == 4 || !mesh.Failure().ok());
  mesh.Leave();
  return num_done > 0;
}

// `Call` with a listener whose backlog has one caller that has said all that it says. Whether the caller was answered that all is well.
template <typename Call>
bool AtListener(std::string_view said, const Call& call) {
  Result<RankListener> listener = RankListener::Open("127.0.0.1", 0);
  if (!listener) return false;  // The system has no port left for a moment.
  const Result<Socket> caller = ConnectTo(listener->end(), kTimeout);
  if (!caller) return false;
  Send(*caller, said);
  int looks = 0;
  // One look takes the caller in, one reads it.
  call(std::move(*listener),
       [&]() -> Status { return ++looks > 2 ? Status(StatusCode::kUnavailable, "heard enough") : Status(); });
  struct Answer {
    uint64_t magic;
    uint32_t code;
  } answer = {};
  const ssize_t count = ::recv(caller->fd(), &answer, sizeof answer, MSG_DONTWAIT);
  return count == static_cast<ssize_t>(sizeof answer) && answer.code == 0;
}

bool Greet(std::string_view input) {
  return AtListener(input, [](RankListener listener, const std::function<Status()>& still_wanted) {
    const RankEnvironment environment{.rank = 0, .size = 2};
    const auto group = JoinRanks(environment, std::move(listener),
                                 {.timeout = kTimeout,
                                  .agreement = std::string(kAgreement),
                                  .always_tcp = true,
                                  .still_wanted = still_wanted});
    DSV4_CHECK(!group.has_value());  // Nobody is there to be connected to.
    (void)Check(group.error());
  });
}

bool Connect(std::string_view input) {
  (void)AtListener(input, [](const RankListener& listener, const std::function<Status()>& still_wanted) {
    RankMap map;
    map.token.fill(7);
    const auto links =
        ConnectRanks(map, 0, 2, listener.socket(), std::chrono::steady_clock::now() + kTimeout, still_wanted);
    DSV4_CHECK(!links.has_value());  // One caller is one of the two connections.
    (void)Check(links.error());
  });
  return true;  // Nothing is answered.
}

}  // namespace
}  // namespace dsv4::comm

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  if (size == 0) return false;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      return dsv4::comm::Exchange(input);
    case 1:
      return dsv4::comm::Greet(input);
    default:
      return dsv4::comm::Connect(input);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
