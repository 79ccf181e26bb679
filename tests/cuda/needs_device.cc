// Skips every test of the binary when there is no device to run them on. Skips tests of products in FP8 when
// it does not run Hopper's machine code. CMakeLists.txt makes CTest report that as skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "backend/cuda/cuda_backend.h"

namespace dsv4::testing {
namespace {

class NeedsDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto devices = backend::CudaDevices();
    if (std::none_of(devices.begin(), devices.end(), backend::HasCodeFor))
      GTEST_SKIP() << "no CUDA device that this build has code for";
#ifdef DSV4_TESTS_FP8_PRODUCTS
    constexpr bool kFp8Products = true;
#else
    const bool kFp8Products = std::getenv("DSV4_CUDA_FP8_PRODUCTS") != nullptr;
#endif
    if (!kFp8Products) return;
    const auto made = backend::MakeCudaBackend({.fp8_products = backend::cuda::Fp8Products::kAll});
    if (!made.has_value() && made.error().code() == StatusCode::kFailedPrecondition)
      GTEST_SKIP() << "no CUDA device that runs Hopper's machine code";
  }
};

const ::testing::Environment* const kNeedsDevice = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace dsv4::testing
