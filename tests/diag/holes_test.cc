// Runs of zero bytes: none that is long enough is missed, short ones are nobody's business.
#include "diag/checks/tensors/holes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace dsv4::testing {
namespace {

TEST(HolesTest, EveryRunOfTheLengthAskedForIsFoundWholeWhereverItLies) {
  for (int64_t begin = 0; begin < 70; ++begin) {
    for (const int64_t length : {31, 32, 33, 100}) {
      std::vector<std::byte> bytes(300, std::byte{1});
      std::fill_n(bytes.begin() + begin, length, std::byte{0});
      const diag::ZeroRuns runs = diag::FindZeroRuns(bytes, 32, 0);
      EXPECT_EQ(runs.num_bytes, length >= 32 ? length : 0) << begin << " " << length;
      if (length >= 32) {
        EXPECT_EQ(runs.begin, begin) << length;
        EXPECT_EQ(runs.longest, length) << begin;
      }
    }
  }
  EXPECT_EQ(diag::FindZeroRuns({}, 32, 0).longest, 0);
}

TEST(HolesTest, RunsAreCountedOnce) {
  std::vector<std::byte> bytes(1000, std::byte{0});
  EXPECT_EQ(diag::FindZeroRuns(bytes, 64, 0).num_bytes, 1000);
  bytes[400] = std::byte{1};
  const diag::ZeroRuns runs = diag::FindZeroRuns(bytes, 64, 0);
  EXPECT_EQ(runs.num_bytes, 999);
  EXPECT_EQ(runs.longest, 599);
  EXPECT_EQ(diag::FindZeroRuns(bytes, 64, 256).num_bytes, 999);
}

}  // namespace
}  // namespace dsv4::testing
