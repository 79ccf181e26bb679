// Devices with less than Hopper's features, on the null runtime. It checks which kernels whole steps take,
// that no launch wants more shared memory than a block has there, and refusals.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/flash_sizes.h"
#include "tests/cuda/null_runtime.h"

namespace dsv4::testing {
namespace {

using null_runtime::DeviceSaid;

constexpr DeviceSaid kHopper;
// Capabilities that tests run on Hopper through PTX.
constexpr DeviceSaid kAmpereCode = {.capability = 90, .code = 80};
constexpr DeviceSaid kA100 = {.capability = 80, .code = 80, .num_sms = 108, .shared_bytes = 163 * 1024};
constexpr DeviceSaid kRtx3090 = {.capability = 86, .code = 86, .num_sms = 82, .shared_bytes = 99 * 1024};
constexpr DeviceSaid kRtx4090 = {.capability = 89, .code = 89, .num_sms = 128, .shared_bytes = 99 * 1024};
constexpr DeviceSaid kRtx5090 = {.capability = 120, .code = 120, .num_sms = 170, .shared_bytes = 99 * 1024};

// The environment as it was, and the H200.
class CudaPortable : public ::testing::Test {
 protected:
  void TearDown() override {
    null_runtime::device = {};
    unsetenv("DSV4_CUDA_SHARED_KB");
    unsetenv("CUDA_FORCE_PTX_JIT");
  }
  // A build of the preset `cuda` has machine code for Hopper alone.
  static void Become(const DeviceSaid& device) {
    null_runtime::device = device;
    setenv("CUDA_FORCE_PTX_JIT", "1", 1);
  }
};

std::set<std::string> KernelsOf(const ops::Backend& backend) {
  std::set<std::string> kernels;
  for (const backend::CudaChoice& choice : backend::ChoicesOf(backend)) kernels.insert(choice.kernel);
  return kernels;
}

bool IsForHopperAlone(const std::string& kernel) {
  for (const char* part : {"hopper_", "wgmma", "tma", "decode_cluster", "indexer_decode", "grouped_gemm"}) {
    if (kernel.find(part) != std::string::npos) return true;
  }
  return false;
}
bool NeedsClustersOrTma(const std::string& kernel) {
  return kernel.find("cluster") != std::string::npos || kernel.find("joint") != std::string::npos;
}

// Prefill, decode of one and of several sequences: every op of a model of the release's shape.
void RunSteps(const ops::Backend& backend) {
  // Passes of all tokens of a step: experts of many tokens and of a few have kernels of their own.
  const auto model = MakeFlash(backend, {.max_chunk_tokens = 2048});
  std::vector<kv::SequenceState> states;
  for (int i = 0; i < 8; ++i) states.push_back(Take(model->NewSequence()));
  for (const int64_t num_tokens :
       {int64_t{2048}, int64_t{512}, int64_t{300}, int64_t{64}, int64_t{9}, int64_t{5}}) {
    std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
    std::iota(tokens.begin(), tokens.end(), 1);
    const model::SequenceChunk chunk = {.state = states.data(), .tokens = tokens};
    const auto stepped = model->Step({&chunk, 1});
    ASSERT_TRUE(stepped.has_value()) << num_tokens << " tokens: " << stepped.error().ToString();
  }
  for (size_t batch = 1; batch <= states.size(); ++batch) {
    const int32_t token = 7;
    std::vector<model::SequenceChunk> chunks;
    for (size_t i = 0; i < batch; ++i) chunks.push_back({.state = &states[i], .tokens = {&token, 1}});
    const auto stepped = model->Step(chunks);
    ASSERT_TRUE(stepped.has_value()) << "batch " << batch << ": " << stepped.error().ToString();
  }
}

TEST_F(CudaPortable, StepsOfAmperesCodeTakeNothingThatCameLater) {
  for (const DeviceSaid& device : {kAmpereCode, kA100, kRtx3090, kRtx4090}) {
    Become(device);
    const int64_t overlapped = null_runtime::overlapped_launches;
    const ops::Backend backend = Take(backend::MakeCudaBackend({.explain = true}));
    RunSteps(backend);
    for (const std::string& kernel : KernelsOf(backend)) {
      EXPECT_FALSE(IsForHopperAlone(kernel) || NeedsClustersOrTma(kernel))
          << kernel << " on " << device.capability;
    }
    EXPECT_EQ(null_runtime::overlapped_launches, overlapped)
        << "no kernel of this code waits for the one in front";
    EXPECT_FALSE(backend::RunsHopperCode(backend));
  }
}

TEST_F(CudaPortable, StepsOfConsumerBlackwellTakeClustersAndTmaAsFarAsTheyFit) {
  Become(kRtx5090);
  const int64_t overlapped = null_runtime::overlapped_launches;
  const ops::Backend backend = Take(backend::MakeCudaBackend({.explain = true}));
  RunSteps(backend);
  const std::set<std::string> kernels = KernelsOf(backend);
  for (const std::string& kernel : kernels) EXPECT_FALSE(IsForHopperAlone(kernel)) << kernel;
  EXPECT_TRUE(kernels.contains("moe/gemv_joint"));
  EXPECT_TRUE(kernels.contains("attention/attention_mma")) << "a cluster's tiles do not fit 99 KB";
  EXPECT_GT(null_runtime::overlapped_launches, overlapped);
}

TEST_F(CudaPortable, HopperTakesWhatItHas) {
  const int64_t overlapped = null_runtime::overlapped_launches;
  const ops::Backend backend = Take(backend::MakeCudaBackend({.explain = true}));
  RunSteps(backend);
  const std::set<std::string> kernels = KernelsOf(backend);
  for (const char* kernel : {"attention/decode_cluster", "moe/gemv_joint", "hyper_connection/hc_cluster",
                             "gemm/gemm_wgmma", "moe/grouped_gemm_wide", "moe/grouped_gemm_narrow"})
    EXPECT_TRUE(kernels.contains(kernel)) << kernel;
  EXPECT_GT(null_runtime::overlapped_launches, overlapped);
  EXPECT_TRUE(backend::RunsHopperCode(backend));
  EXPECT_EQ(backend.name, "cuda (null)");
}

TEST_F(CudaPortable, TheNameSaysWhoseCodeRuns) {
  Become(kAmpereCode);
  EXPECT_EQ(Take(backend::MakeCudaBackend({})).name, "cuda (null with code for 8.0)");
  Become(kRtx3090);
  EXPECT_EQ(Take(backend::MakeCudaBackend({})).name, "cuda (null)");
}

TEST_F(CudaPortable, ADeviceWithoutMachineCodeIsRefused) {
  null_runtime::device = {.capability = 75, .code = 75};
  const auto made = backend::MakeCudaBackend({});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(made.error().message().find("capability 7.5, this build has machine code for "),
            std::string::npos)
      << made.error().message();
  // PTX alone is no machine code: the driver would compile it for minutes.
  null_runtime::device = kRtx3090;
  const backend::CudaDeviceInfo device = backend::CudaDevices().front();
  if (backend::HasCodeFor(device)) GTEST_SKIP() << "this build has machine code for 8.6";
  EXPECT_FALSE(backend::MakeCudaBackend({}).has_value());
  setenv("CUDA_FORCE_PTX_JIT", "1", 1);
  EXPECT_TRUE(backend::HasCodeFor(device));
  EXPECT_TRUE(backend::MakeCudaBackend({}).has_value());
}

TEST_F(CudaPortable, ProductsInFp8WantHoppersMachineCode) {
  EXPECT_TRUE(backend::MakeCudaBackend({.fp8_products = backend::cuda::Fp8Products::kAll}).has_value());
  Become(kAmpereCode);
  const auto made = backend::MakeCudaBackend({.fp8_products = backend::cuda::Fp8Products::kAll});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(made.error().message().find("null has 9.0 and runs code for 8.0"), std::string::npos)
      << made.error().message();
}

TEST_F(CudaPortable, SharedMemoryCanBeTakenAway) {
  setenv("DSV4_CUDA_SHARED_KB", "99", 1);
  const auto hopper = backend::MakeCudaBackend({});
  ASSERT_FALSE(hopper.has_value());
  EXPECT_EQ(hopper.error().code(), StatusCode::kFailedPrecondition) << "its kernels take all of it";
  Become(kAmpereCode);
  const ops::Backend backend = Take(backend::MakeCudaBackend({.explain = true}));
  null_runtime::device.shared_bytes = 99 * 1024;  // More is refused.
  RunSteps(backend);
  EXPECT_TRUE(KernelsOf(backend).contains("attention/attention_mma"));
  for (const char* const wrong : {"47", "1025", "99k", "-1", "all"}) {
    setenv("DSV4_CUDA_SHARED_KB", wrong, 1);
    const auto made = backend::MakeCudaBackend({});
    ASSERT_FALSE(made.has_value()) << wrong;
    EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_NE(made.error().message().find(wrong), std::string::npos) << made.error().message();
  }
}

}  // namespace
}  // namespace dsv4::testing
