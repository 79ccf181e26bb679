// UnwindReserve: memory for destructors that need some while an exception unwinds, and would end the process
// without. A part of the HTTP server: Asio's awaitable_thread posts an operation in its destructor, and is
// destroyed where beginning an operation finds no memory.
#pragma once

#include <new>

namespace dsv4::server {

// While it lives, operator new that finds no memory on a thread with an exception in flight takes a part of
// the reserve. When that is used up, it waits until other threads give memory back, for ten seconds at most.
// Everywhere else it throws std::bad_alloc at once, as without. One at a time in a process: it is the
// process's new_handler.
class UnwindReserve {
 public:
  UnwindReserve();
  ~UnwindReserve();
  UnwindReserve(const UnwindReserve&) = delete;
  UnwindReserve& operator=(const UnwindReserve&) = delete;
  // Takes back what was used, as far as there is memory.
  void Refill() noexcept;

 private:
  std::new_handler before_;
};

}  // namespace dsv4::server
