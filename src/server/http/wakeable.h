// Wakeable: how other threads wake a connection. A part of the HTTP server, which alone includes it, and
// Asio.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <memory>
#include <mutex>

namespace dsv4::server {

using Timer = boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                                boost::asio::wait_traits<std::chrono::steady_clock>,
                                                boost::asio::io_context::executor_type>;

// Gate for wakes while the server lives. An engine's thread may hold a Wakeable longer than that.
struct WakeGate {
  std::mutex mutex;
  boost::asio::io_context* context = nullptr;  // Null: the server is gone.
};

// Wakes a connection that waits. Owns nothing of the server's, so its last holder may be any thread at any
// time.
struct Wakeable : std::enable_shared_from_this<Wakeable> {
  explicit Wakeable(std::shared_ptr<WakeGate> of_server) : gate(std::move(of_server)) {}
  // May be called from any thread, the engine's among them, which a connection's lack of memory must not end.
  // Without memory it is `missed`, and the connection sees that when it looks next.
  void Wake() noexcept {
    try {
      const std::lock_guard lock(gate->mutex);
      if (gate->context == nullptr) return;
      boost::asio::post(*gate->context, [self = shared_from_this()] {
        self->woken = true;
        if (self->timer != nullptr) self->timer->cancel();
      });
    } catch (const std::exception&) {
      missed = true;
    }
  }
  const std::shared_ptr<WakeGate> gate;
  std::atomic<bool> missed = false;
  // The connection's thread only.
  Timer* timer = nullptr;  // Timer that it waits for, while it waits.
  bool woken = false;
  bool peer_left = false;
};

// The timer of a Wakeable, in the frame of the coroutine that waits.
class WakeTimer {
 public:
  WakeTimer(std::shared_ptr<Wakeable> wakeable, const boost::asio::io_context::executor_type& executor)
      : wakeable_(std::move(wakeable)), timer_(executor) {
    wakeable_->timer = &timer_;
  }
  ~WakeTimer() { wakeable_->timer = nullptr; }
  WakeTimer(const WakeTimer&) = delete;
  WakeTimer& operator=(const WakeTimer&) = delete;
  Timer& operator*() { return timer_; }
  Timer* operator->() { return &timer_; }

 private:
  std::shared_ptr<Wakeable> wakeable_;
  Timer timer_;
};

}  // namespace dsv4::server
