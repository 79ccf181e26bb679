// Work that the queue hands to the device, and when. Needs no device (null_runtime.cc).
#include "backend/cuda/runtime/device_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda/null_runtime.h"

namespace dsv4::backend::cuda {
namespace {

// An op may stage several arrays before it makes the launch that reads them. Those that are already there
// travel when the next one does not fit any more, also where no launch waits.
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

// Memory that an arena gave back before it grew lies in pieces in which the larger one has no room.
TEST(DeviceQueue, ALargeAllocationGivesBackWhatLiesIdle) {
  auto queue = DeviceQueue::Create({});
  ASSERT_TRUE(queue.has_value()) << queue.error().message();
  const auto left_idle = [&](uint64_t idle, size_t wanted) {
    null_runtime::idle_pool_bytes = idle;
    const auto device = (*queue)->Allocate(wanted);
    EXPECT_TRUE(device.has_value());
    if (device.has_value()) (*queue)->Free(*device);
    return null_runtime::idle_pool_bytes.load();
  };
  constexpr uint64_t kIdle = uint64_t{100} << 20;
  constexpr size_t kLarge = size_t{256} << 20;
  EXPECT_EQ(left_idle(kIdle, kLarge), 0U);
  EXPECT_EQ(left_idle(kIdle, kLarge / 2), kIdle);
  EXPECT_EQ(left_idle(kIdle / 2, kLarge), kIdle / 2);
}

void NoKernel(int) {}

// Little that is behind a copy in flight goes to the device with a copy of no bytes. Who waits for the one in
// front then hands over soon, as if nothing were behind it.
TEST(DeviceQueue, ACopyOfNoBytesHandsOverWhatIsBehindACopy) {
  const auto queue = DeviceQueue::Create({});
  ASSERT_TRUE(queue.has_value()) << queue.error().ToString();
  const auto device = (*queue)->Allocate(64);
  const auto host = (*queue)->AllocateOnHost(64);
  ASSERT_TRUE(device.has_value() && host.has_value());
  const auto launch = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE((*queue)->BeginOp({"test", {}}).ok());
      (*queue)->Launch(NoKernel, dim3(1), dim3(32), 0, 0);
      ASSERT_TRUE((*queue)->EndOp().ok());
    }
  };
  const auto start = [&](size_t num_bytes) {
    auto copy = (*queue)->StartCopyToHost(host->data(), *device, num_bytes);
    EXPECT_TRUE(copy.has_value()) << copy.error().ToString();
    return std::move(*copy);
  };
  std::unique_ptr<PendingCopy> before;
  std::unique_ptr<PendingCopy> last;
  for (int step = 0; step < 6; ++step) {  // None is waited for until the next is there.
    launch(40);
    before = std::exchange(last, start(64));
  }
  const auto num_lists = [&] { return (*queue)->counters().lists; };
  const int64_t at_copy = num_lists();
  launch(5);
  EXPECT_EQ(num_lists(), at_copy);
  EXPECT_TRUE(start(0)->Wait().ok());
  EXPECT_EQ(num_lists(), at_copy + 1);
  EXPECT_TRUE(before->Wait().ok());
  launch(20);
  EXPECT_EQ(num_lists(), at_copy + 1) << "there is more behind that copy";
  EXPECT_TRUE(last->Wait().ok());
  launch(1);
  EXPECT_EQ(num_lists(), at_copy + 2) << "the device has nothing to do";
  (*queue)->Free(*device);
}

// Steps that end with a copy which is waited for when the next step has been queued. Neither writes over the
// other's arrays, and every other step finds its own where the one before the last did.
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

// The limit of a kernel's shared memory is the device's, not the queue's. A queue that asks for less leaves
// it as it is. Ranks on one device are two queues, and so are a model and what is measured beside it.
TEST(DeviceQueue, AKernelKeepsTheSharedMemoryThatOthersGotForIt) {
  const auto first = DeviceQueue::Create({});
  const auto second = DeviceQueue::Create({});
  ASSERT_TRUE(first.has_value() && second.has_value());
  constexpr size_t kMuch = size_t{150} << 10;
  constexpr size_t kLess = size_t{60} << 10;
  const auto run = [](DeviceQueue& queue, size_t shared_bytes) {
    const auto device = queue.Allocate(64);
    std::byte host[64];
    if (!device.has_value() || !queue.BeginOp({"test", {}}).ok()) return Status(Internal("no op begins"));
    queue.Launch(NoKernel, dim3(1), dim3(32), shared_bytes, 0);
    Status status = queue.EndOp();
    if (status.ok()) status = queue.CopyToHost(host, *device, sizeof(host));
    queue.Free(*device);
    return status;
  };
  EXPECT_TRUE(run(**first, kMuch).ok());
  EXPECT_TRUE(run(**second, kLess).ok());
  EXPECT_TRUE(run(**first, kMuch).ok()) << "after another queue's launch";
  EXPECT_GE((*first)->MostClusters(reinterpret_cast<const void*>(NoKernel), 2, 32, kLess), 0);
  EXPECT_TRUE(run(**first, kMuch).ok()) << "after a question";
}

}  // namespace
}  // namespace dsv4::backend::cuda
