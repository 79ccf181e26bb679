// Skips every test of the binary when there is no device to run them on. CMakeLists.txt makes CTest report that as skipped.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/cuda_backend.h"

namespace dsv4::testing {
namespace {

class NeedsDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto devices = backend::CudaDevices();
    if (std::none_of(devices.begin(), devices.end(), backend::HasCodeFor))
      GTEST_SKIP() << "no CUDA device that this build has code for";
  }
};

const ::testing::Environment* const kNeedsDevice = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace dsv4::testing
