// What the queue hands to the device, and when. Needs no device (imagined_runtime.cc).
#include "backend/cuda/device_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace dsv4::backend::cuda {
namespace {

// An op may stage several arrays before it makes the launch that reads them. Those that are already there travel when the next one does
// not fit any more, also where no launch waits.
TEST(DeviceQueue, ArraysInFrontOfOneThatDoesNotFitAreBrought) {
  const auto queue = DeviceQueue::Create({});
  ASSERT_TRUE(queue.has_value()) << queue.error().ToString();
  ASSERT_TRUE((*queue)->BeginOp({"test", {}}).ok());
  const std::vector<std::byte> array(Staging::kMaxArrayBytes);
  constexpr size_t kFill = Staging::kHalfBytes / Staging::kMaxArrayBytes;
  for (size_t i = 0; i < kFill; ++i) ASSERT_TRUE((*queue)->Stage(array.data(), array.size()).has_value());
  EXPECT_EQ((*queue)->counters().lists, 0);
  const auto next = (*queue)->Stage(array.data(), array.size());
  ASSERT_TRUE(next.has_value()) << next.error().ToString();
  EXPECT_EQ((*queue)->counters().lists, 1) << "what was staged before";
  EXPECT_EQ((*queue)->counters().launches, 0) << "bringing is no launch of an op";
  ASSERT_TRUE((*queue)->EndOp().ok());
}

}  // namespace
}  // namespace dsv4::backend::cuda
