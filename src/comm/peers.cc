// Check by pidfd whether a process of the group has ended.
#include "comm/peers.h"

#include <sys/poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace dsv4::comm {

Peers::Peers(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    Peer peer{.process = process};
    if (process != ::getpid()) {
      peer.fd = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
      // Without pidfds (before Linux 5.3) only the deadline tells.
      peer.ended = peer.fd < 0 && errno == ESRCH;
    }
    peers_.push_back(peer);
  }
}

Peers::~Peers() {
  for (const Peer& peer : peers_) {
    if (peer.fd >= 0) ::close(peer.fd);
  }
}

std::optional<int> Peers::Ended() const {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].ended) return static_cast<int>(rank);
    if (peers_[rank].fd < 0) continue;
    pollfd wanted{.fd = peers_[rank].fd, .events = POLLIN, .revents = 0};
    if (::poll(&wanted, 1, 0) == 1) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace dsv4::comm
