// Reserve that operator new gives out while an exception unwinds without memory.
#include "server/http/unwind_reserve.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <thread>

namespace dsv4::server {
namespace {

// Below the size for which malloc makes a mapping of its own: what is given back serves small requests.
constexpr size_t kPartBytes = size_t{16} << 10;
constexpr std::chrono::seconds kPatience(10);

// A new_handler has no argument, so the parts are the process's.
std::array<std::atomic<void*>, 16> parts;

bool GiveAPart() noexcept {
  for (std::atomic<void*>& part : parts) {
    void* const memory = part.exchange(nullptr);
    if (memory == nullptr) continue;
    std::free(memory);
    return true;
  }
  return false;
}

// Returns where operator new shall try again.
void FindMemory() {
  if (std::uncaught_exceptions() == 0) throw std::bad_alloc();
  if (GiveAPart()) return;
  using Clock = std::chrono::steady_clock;
  thread_local Clock::time_point begin, last;
  const Clock::time_point now = Clock::now();
  if (now - last > std::chrono::milliseconds(100)) begin = now;  // Another request than the last time.
  last = now;
  if (now - begin > kPatience) throw std::bad_alloc();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

UnwindReserve::UnwindReserve() : before_(std::get_new_handler()) {
  Refill();
  std::set_new_handler(FindMemory);
}

UnwindReserve::~UnwindReserve() {
  std::set_new_handler(before_);
  while (GiveAPart()) {
  }
}

void UnwindReserve::Refill() noexcept {
  for (std::atomic<void*>& part : parts) {
    if (part.load() != nullptr) continue;
    void* const memory = std::malloc(kPartBytes);
    void* none = nullptr;
    if (memory == nullptr) return;
    if (!part.compare_exchange_strong(none, memory)) std::free(memory);
  }
}

}  // namespace dsv4::server
