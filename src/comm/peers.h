// Peers: the processes of a group, watched through pidfds, which unlike a number cannot come to mean another
// process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

namespace dsv4::comm {

class Peers {
 public:
  // In rank order. A process that is gone already counts as ended. Our own is never looked at.
  explicit Peers(const std::vector<pid_t>& processes);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  ~Peers();

  // The lowest rank whose process has ended (a zombie counts).
  std::optional<int> Ended() const;
  pid_t process(int rank) const { return peers_[static_cast<size_t>(rank)].process; }

 private:
  struct Peer {
    pid_t process = 0;
    int fd = -1;
    bool ended = false;
  };
  std::vector<Peer> peers_;
};

}  // namespace dsv4::comm
