// How a rank waits for others: how long it spins before it sleeps, and what counts as having waited.
#pragma once

#include <algorithm>
#include <chrono>

namespace dsv4::comm {

// Whether this process may use two cores for each of `num_ranks` ranks: a rank that spins then keeps no other
// from working.
bool HasTwoCoresEach(int num_ranks);

// How often a sleeper looks around.
inline constexpr std::chrono::milliseconds kLook(20);

// Time in which this rank looked: one that was itself stopped (a frozen container, a suspended machine)
// blames no other.
class WaitingTime {
 public:
  // To be called every kLook; returns what has been waited since the beginning or the last Restart.
  std::chrono::nanoseconds Look() {
    const Clock::time_point now = Clock::now();
    waited_ += std::min<std::chrono::nanoseconds>(now - last_look_, kLongestLook);
    last_look_ = now;
    return waited_;
  }
  void Restart() {
    waited_ = {};
    last_look_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongestLook{500};  // Time between two looks, at most.

  std::chrono::nanoseconds waited_{0};
  Clock::time_point last_look_ = Clock::now();
};

}  // namespace dsv4::comm
