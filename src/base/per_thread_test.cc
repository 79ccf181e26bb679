// Tests of values that end with their thread.
#include "base/per_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>

namespace dsv4 {
namespace {

std::string ended;  // Names, in order; one thread at a time.

struct First {
  ~First() { ended += "first "; }
  int value = 0;
};
struct Second {
  ~Second() { ended += "second "; }
  int value = 0;
};

TEST(PerThread, EachThreadHasItsOwnUntilItEnds) {
  ended.clear();
  PerThread<First>().value = 1;
  First* other = nullptr;
  std::thread([&] {
    other = &PerThread<First>();
    EXPECT_EQ(PerThread<First>().value++, 0);
    EXPECT_EQ(PerThread<First>().value, 1);
    EXPECT_EQ(PerThread<Second>().value, 0);
    EXPECT_EQ(ended, "");
  }).join();
  EXPECT_EQ(ended, "second first ");
  EXPECT_NE(other, &PerThread<First>());
  EXPECT_EQ(PerThread<First>().value, 1);
}

struct Hungry {
  Hungry() {
    if (!fed) throw std::bad_alloc();
  }
  static inline std::atomic<bool> fed = false;
};

TEST(PerThread, WithoutMemoryTheNextCallTriesAgain) {
  std::thread([] {
    EXPECT_THROW(PerThread<Hungry>(), std::bad_alloc);
    EXPECT_THROW(PerThread<Hungry>(), std::bad_alloc);
    Hungry::fed = true;
    Hungry* const made = &PerThread<Hungry>();
    EXPECT_EQ(made, &PerThread<Hungry>());
  }).join();
}

}  // namespace
}  // namespace dsv4
