// Ranks as threads of this process whose data travels by libfake_nccl, on devices that are host memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "comm/nccl_group.h"
#include "comm/ranks_testing.h"
#include "tests/ranks/fake_device.h"

namespace dsv4::testing {

// The fake library, which CMake names.
inline Result<comm::NcclLibrary> OpenFakeNccl() { return comm::NcclLibrary::Open(DSV4_FAKE_NCCL); }

// Calls work(group, device) on every rank.
inline void RunNcclRanks(int size, const std::function<void(comm::Communicator&, FakeDevice&)>& work,
                         std::chrono::milliseconds timeout = std::chrono::seconds(60), bool waits = false,
                         comm::testing::Network network = comm::testing::Network::kSharedMemory) {
  comm::testing::RunRanks(
      size,
      [&](comm::Communicator& hosts) {
        FakeDevice device(waits);
        auto group = comm::JoinNccl(hosts, device, OpenFakeNccl(), {.timeout = timeout});
        ASSERT_TRUE(group.has_value()) << group.error().ToString();
        work(**group, device);
        device.stream().Wait();
      },
      std::chrono::seconds(60), network);
}

}  // namespace dsv4::testing
