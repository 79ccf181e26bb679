// Shares: which part of a room one owner may take, and at which pace a client must move. Parts of the HTTP
// server.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace dsv4::server {

// The owner that a client without a key is: its address. A client of IPv6 often has a whole /56 of them, so
// that is one owner. 0 on a unix socket.
uint64_t OwnerOfAddress(const std::string& address);

// A room for bytes, not for several threads. An owner may have twice what it leaves to others: alone two
// thirds of the room. However many owners take all they can, there is as much left for the next as the last
// one got.
class SharedRoom {
 public:
  explicit SharedRoom(uint64_t size) : size_(size) {}
  // False when the owner's share, or the room, has not so much left.
  bool Take(uint64_t owner, uint64_t num_bytes);
  void Return(uint64_t owner, uint64_t num_bytes);
  uint64_t taken() const { return taken_; }

 private:
  const uint64_t size_;
  uint64_t taken_ = 0;
  std::unordered_map<uint64_t, uint64_t> by_owner_;
};

// The time that a client may still let pass in all. Each KiB that moves gives a second back, never more than
// there was at the beginning. A slow client is served. One that stands still is not, however much it sent
// before.
class Pace {
 public:
  using Duration = std::chrono::steady_clock::duration;
  explicit Pace(Duration patience) : patience_(patience), left_(patience) {}
  Duration left() const { return std::max(left_, Duration::zero()); }
  // So many bytes moved, for which the client was waited for so long.
  void Moved(size_t num_bytes, Duration waited) {
    const Duration earned = static_cast<int64_t>(num_bytes) * Duration(std::chrono::seconds(1)) / 1024;
    left_ = std::min(patience_, left_ - waited + earned);
  }

 private:
  Duration patience_;
  Duration left_;
};

}  // namespace dsv4::server
