// Tests of huge pages: alignment, zeroed memory, nothing left behind, the name in the kernel's map.
#include "base/huge_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace dsv4 {
namespace {

using ::testing::HasSubstr;

// Kilobytes of address space that this process has mapped.
int64_t MappedKilobytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kilobytes = 0;
    if (word == "VmSize:" && status >> kilobytes) return kilobytes;
  }
  return -1;
}

TEST(HugePages, BeginOnAHugePageAndAreZero) {
  for (const size_t num_bytes : {size_t{1}, size_t{4096}, HugePages::kBytes, 3 * HugePages::kBytes + 5}) {
    Result<HugePages> pages = HugePages::Map("a test", num_bytes);
    ASSERT_TRUE(pages.has_value()) << pages.error().message();
    EXPECT_EQ(pages->bytes().size(), num_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages->bytes().data()) % HugePages::kBytes, 0U);
    EXPECT_TRUE(std::ranges::all_of(pages->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(pages->bytes(), std::byte{7});
  }
}

TEST(HugePages, LeaveNothingBehind) {
  constexpr size_t kBytes = (size_t{1} << 30) + 4097;
  const int64_t before = MappedKilobytes();
  {
    Result<HugePages> pages = HugePages::Map("a test", kBytes);
    ASSERT_TRUE(pages.has_value());
    // Memory mapped to find a huge page's beginning is gone already.
    EXPECT_NEAR(static_cast<double>(MappedKilobytes() - before), kBytes / 1024.0, 1024);
    const HugePages moved = std::move(*pages);
    EXPECT_TRUE(pages->bytes().empty());
    EXPECT_EQ(moved.bytes().size(), kBytes);
  }
  EXPECT_NEAR(static_cast<double>(MappedKilobytes() - before), 0, 1024);
}

TEST(HugePages, SayWhatTheyWereFor) {
  for (const size_t num_bytes : {size_t{0}, std::numeric_limits<size_t>::max(), size_t{1} << 60}) {
    const Result<HugePages> pages = HugePages::Map("weights of a test", num_bytes);
    ASSERT_FALSE(pages.has_value());
    EXPECT_EQ(pages.error().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(pages.error().message(), HasSubstr("weights of a test: cannot get "));
  }
}

}  // namespace
}  // namespace dsv4
