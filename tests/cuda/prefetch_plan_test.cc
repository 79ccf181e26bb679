// Which weights a graph asks for ahead, and when. Needs no device.
#include "backend/cuda/runtime/prefetch_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace dsv4::backend::cuda {

inline void PrintTo(const Prefetch& prefetch, std::ostream* out) {
  *out << "before " << prefetch.before << ":";
  for (const ReadRange& range : prefetch.ranges)
    *out << " [" << static_cast<const void*>(range.data) << ", " << range.num_bytes << "]";
}

namespace {

constexpr size_t kMega = size_t{1} << 20;

// The address of megabyte `m`.
const std::byte* At(size_t m) {
  return reinterpret_cast<const std::byte*>(m *
                                            kMega);  // NOLINT(performance-no-int-to-ptr): nobody reads there.
}
ReadRange Megabytes(size_t first, size_t count) { return {At(first), count * kMega}; }

TEST(PrefetchPlan, AGapBringsWhatTheNextLaunchReads) {
  const std::vector<WeightReader> readers = {{0, {Megabytes(100, 30)}},
                                             {2, {Megabytes(200, 5), Megabytes(300, 1)}}};
  EXPECT_EQ(PlanPrefetches(readers), (std::vector<Prefetch>{{1, {Megabytes(200, 5), Megabytes(300, 1)}}}));
}

TEST(PrefetchPlan, LaunchesWithoutAGapAreLeftAlone) {
  const std::vector<WeightReader> readers = {{0, {Megabytes(100, 30)}}, {1, {Megabytes(200, 5)}}};
  EXPECT_TRUE(PlanPrefetches(readers).empty());
  EXPECT_TRUE(PlanPrefetches({}).empty());
}

TEST(PrefetchPlan, AGapBringsAsMuchAsItsLaunchesGiveTimeFor) {
  static_assert(kPrefetchBytesOfLaunch == 12 * kMega && kMaxPrefetchBytes == 24 * kMega);
  // One launch in front, then two, then five.
  const std::vector<WeightReader> readers = {
      {1, {Megabytes(100, 30)}}, {4, {Megabytes(200, 30)}}, {10, {Megabytes(300, 30)}}};
  EXPECT_EQ(PlanPrefetches(readers),
            (std::vector<Prefetch>{
                {0, {Megabytes(100, 12)}}, {2, {Megabytes(200, 24)}}, {5, {Megabytes(300, 24)}}}));
}

TEST(PrefetchPlan, WhatIsLeftOfAGapGoesToLaunchesBehindTheNextAndIsNotAskedForAgain) {
  const std::vector<WeightReader> readers = {{2, {Megabytes(100, 10)}},
                                             {3, {Megabytes(200, 20)}},
                                             {5, {Megabytes(300, 8)}},
                                             {6, {Megabytes(400, 8)}}};
  // 24 in front of the first: all of its own and 14 of the second's. The second reads the rest itself, so the
  // gap behind it is the third's.
  EXPECT_EQ(PlanPrefetches(readers), (std::vector<Prefetch>{{0, {Megabytes(100, 10), Megabytes(200, 14)}},
                                                            {4, {Megabytes(300, 8), Megabytes(400, 4)}}}));
}

TEST(PrefetchPlan, AGapGoesOnWhereTheOneBeforeStopped) {
  const std::vector<WeightReader> readers = {{1, {Megabytes(100, 4)}}, {3, {Megabytes(200, 20)}}};
  EXPECT_EQ(PlanPrefetches(readers),
            (std::vector<Prefetch>{{0, {Megabytes(100, 4), Megabytes(200, 8)}}, {2, {Megabytes(208, 12)}}}));
}

TEST(PrefetchPlan, NothingIsAskedForBehindWeightsThatOnlyTheDeviceKnows) {
  const std::vector<WeightReader> readers = {{2, {Megabytes(100, 1)}}, {4, {}}, {6, {Megabytes(300, 1)}}};
  EXPECT_EQ(PlanPrefetches(readers),
            (std::vector<Prefetch>{{0, {Megabytes(100, 1)}}, {5, {Megabytes(300, 1)}}}));
}

TEST(PrefetchPlan, PiecesAreWholeKilobytes) {
  const std::vector<WeightReader> readers = {{1, {{At(100), 1040}, {At(200), 40 * kMega}}}};
  const std::vector<Prefetch> plan = PlanPrefetches(readers);
  ASSERT_EQ(plan.size(), 1U);
  ASSERT_EQ(plan[0].ranges.size(), 2U);
  EXPECT_EQ(plan[0].ranges[0], (ReadRange{At(100), 1040}));
  EXPECT_EQ(plan[0].ranges[1], (ReadRange{At(200), 12 * kMega - 2048}));
}

}  // namespace
}  // namespace dsv4::backend::cuda
