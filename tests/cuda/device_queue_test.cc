// What the queue hands to the device, and when. Needs no device (null_runtime.cc).
#include "backend/cuda/runtime/device_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
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

// Steps that end with a copy which is waited for when the next step has been queued: neither writes over the other's arrays, and every
// other step finds its own where the one before the last did.
TEST(DeviceQueue, StepsInFlightStageInTurns) {
  const auto queue = DeviceQueue::Create({});
  ASSERT_TRUE(queue.has_value()) << queue.error().ToString();
  const auto device = (*queue)->Allocate(64);
  const auto host = (*queue)->AllocateOnHost(64);
  ASSERT_TRUE(device.has_value() && host.has_value());
  std::vector<const void*> places;
  std::unique_ptr<PendingCopy> before;
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE((*queue)->BeginOp({"test", {}}).ok());
    for (int i = 0; i < 3; ++i) {
      const auto place = (*queue)->Stage(&step, sizeof(step));
      ASSERT_TRUE(place.has_value()) << place.error().ToString();
      places.push_back(*place);
    }
    ASSERT_TRUE((*queue)->EndOp().ok());
    auto copy = (*queue)->StartCopyToHost(host->data(), *device, 64);
    ASSERT_TRUE(copy.has_value()) << copy.error().ToString();
    if (before != nullptr) {
      EXPECT_TRUE(before->Wait().ok());
    }
    before = std::move(*copy);
  }
  for (size_t i = 0; i + 6 < places.size(); ++i) {
    EXPECT_NE(places[i], places[i + 3]) << i;
    EXPECT_EQ(places[i], places[i + 6]) << i;
  }
  before.reset();
  (*queue)->Free(*device);
}

}  // namespace
}  // namespace dsv4::backend::cuda
