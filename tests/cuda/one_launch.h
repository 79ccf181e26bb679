// For tests of ops that run as one launch when they follow each other.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/device_tensors.h"

namespace dsv4::testing {

// Whether two ops are one launch. Elsewhere they are as many as they are one by one, or fewer.
enum class OneLaunch : uint8_t { kEverywhere, kOnHopper, kWhereItPays };

// `first` and `second`, one launch if nothing comes between, must write what they write one by one.
inline void ExpectOneLaunch(Device& device, const std::string& what, const std::function<Status()>& first,
                            const std::function<Status()>& second,
                            const std::vector<const DeviceTensor*>& written,
                            OneLaunch where = OneLaunch::kEverywhere) {
  const auto all = [&] {
    std::vector<std::vector<std::byte>> bytes;
    for (const DeviceTensor* tensor : written) bytes.push_back(device.Bytes(tensor->view));
    return bytes;
  };
  const auto before = all();
  const auto restore = [&] {
    for (size_t i = 0; i < written.size(); ++i) {
      const Status status =
          device.memory().CopyFromHost(written[i]->view.data, before[i].data(), before[i].size(), nullptr);
      ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
    }
    all();  // Hands what is queued to the device.
  };
  int64_t launches = device.launches();
  Status status = first();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  all();
  status = second();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const auto alone = all();
  const int64_t apart = device.launches() - launches;
  EXPECT_NE(alone, before) << what;
  restore();
  launches = device.launches();
  status = first();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  status = second();
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const auto together = all();
  if (where == OneLaunch::kEverywhere || device.runs_hopper_code()) {
    EXPECT_EQ(device.launches() - launches, 1) << what;
  } else {
    EXPECT_LE(device.launches() - launches, apart) << what;
  }
  for (size_t i = 0; i < written.size(); ++i)
    EXPECT_EQ(together[i] == alone[i], true) << what << ", output " << i;
}

}  // namespace dsv4::testing
