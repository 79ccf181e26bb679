// Tests of the unwind reserve: given only while an exception unwinds, earlier handlers kept.
#include "server/http/unwind_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>

namespace dsv4::server {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnAllocator =
    true;  // A sanitizer takes its addresses at the start and ends where none is left.
#else
constexpr bool kOwnAllocator = false;
#endif

// Everything that the process may have, down to 16 bytes.
void UseUpMemory() {
  long num_pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &num_pages) != 1) std::exit(2);
  std::fclose(file);
  const rlim_t limit = static_cast<rlim_t>(num_pages) * 4096;
  const rlimit limits{limit, limit};
  if (setrlimit(RLIMIT_AS, &limits) != 0) std::exit(2);
  for (size_t size : {size_t{1} << 20, size_t{1} << 12, size_t{300}, size_t{16}}) {
    void* volatile memory =
        nullptr;  // The process's end gives it back; volatile, else the compiler leaves malloc out.
    do memory = std::malloc(size);
    while (memory != nullptr);
  }
}

struct NeedsMemoryToEnd {
  ~NeedsMemoryToEnd() {
    [[maybe_unused]] void* volatile memory =
        ::operator new(300);  // And keeps it, so that the next one finds none.
  }
};

// Exits with 7 where `times` objects of that kind are destroyed as an exception unwinds.
void UnwindWithoutMemory(bool has_reserve, int times) {
  std::optional<UnwindReserve> reserve;
  if (has_reserve) reserve.emplace();
  UseUpMemory();
  bool is_refused = false;
  try {
    [[maybe_unused]] void* volatile memory = ::operator new(300);
  } catch (const std::bad_alloc&) {
    is_refused = true;
  }
  for (int i = 0; i < times; ++i) {
    try {
      const NeedsMemoryToEnd object;
      throw std::bad_alloc();
    } catch (const std::bad_alloc&) {
    }
  }
  std::_Exit(is_refused ? 7 : 3);
}

TEST(UnwindReserve, GivesMemoryOnlyWhereAnExceptionUnwinds) {
  if (kOwnAllocator) GTEST_SKIP() << "no memory limit under a sanitizer";
  EXPECT_EXIT(UnwindWithoutMemory(true, 100), testing::ExitedWithCode(7), "");
  EXPECT_EXIT(UnwindWithoutMemory(false, 1), testing::KilledBySignal(SIGABRT), "");
}

TEST(UnwindReserve, LeavesTheHandlerThatWasThere) {
  const std::new_handler before = std::get_new_handler();
  {
    UnwindReserve reserve;
    reserve.Refill();
    EXPECT_NE(std::get_new_handler(), before);
  }
  EXPECT_EQ(std::get_new_handler(), before);
}

}  // namespace
}  // namespace dsv4::server
