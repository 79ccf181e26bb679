// GPUs that a machine shows, and the words for why none can be used.
#include "backend/cuda/gpu_survey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace dsv4::backend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GpuSurvey::Gpu Gpu(int index, const char* name, int major, bool has_code) {
  return {.info = {.index = index, .name = name, .major = major, .minor = 0, .total_bytes = 0},
          .has_code = has_code};
}

class DriverFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
    if (value != nullptr) before_ = value;
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    root_ = std::filesystem::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(root_ / "dev");
  }
  void TearDown() override {
    std::filesystem::remove_all(root_);
    if (before_) ::setenv("CUDA_VISIBLE_DEVICES", before_->c_str(), 1);
  }
  void AddGpu(int minor, const std::string& name, bool device = true) {
    const std::filesystem::path folder =
        root_ / "proc/driver/nvidia/gpus" / ("0000:0" + std::to_string(minor));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "information")
        << "Model: \t\t " << name << "\nIRQ:   \t\t 42\nDevice Minor: \t " << minor << "\n";
    if (device) std::ofstream(root_ / ("dev/nvidia" + std::to_string(minor))) << "";
  }

  std::filesystem::path root_;
  std::optional<std::string> before_;
};

TEST_F(DriverFolder, ShowsGpusWhoseDevicesMayBeOpened) {
  EXPECT_THAT(SeenGpus(root_), IsEmpty());
  AddGpu(1, "NVIDIA H200");
  AddGpu(0, "NVIDIA A10");
  AddGpu(2, "NVIDIA L4", /*device=*/false);  // As in a container without it.
  EXPECT_THAT(SeenGpus(root_), ElementsAre("NVIDIA A10", "NVIDIA H200"));
}

TEST_F(DriverFolder, HiddenGpusAreNotSeen) {
  AddGpu(0, "NVIDIA H200");
  for (const char* const hides : {"", "-1", "none", "NoDevFiles"}) {
    ::setenv("CUDA_VISIBLE_DEVICES", hides, 1);
    EXPECT_THAT(SeenGpus(root_), IsEmpty()) << hides;
  }
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_THAT(SeenGpus(root_), ElementsAre("NVIDIA H200"));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(GpuSurvey, TheFirstDeviceWithCodeIsTaken) {
  const GpuSurvey mixed{
      .code = "9.0", .gpus = {Gpu(0, "old", 6, false), Gpu(1, "new", 9, true)}, .seen = {}, .fault = {}};
  EXPECT_EQ(FirstUsable(mixed), 1);
  EXPECT_FALSE(UsableByRanks(mixed, 2, false));
  EXPECT_THAT(WhyNoGpu(mixed, 2),
              HasSubstr("old has compute capability 6.0, this build has machine code for 9.0"));
  EXPECT_EQ(FirstUsable({}), std::nullopt);
}

TEST(GpuSurvey, RanksWantADeviceEachUnlessTheyShare) {
  const GpuSurvey one{.code = "9.0", .gpus = {Gpu(0, "new", 9, true)}, .seen = {}, .fault = {}};
  EXPECT_TRUE(UsableByRanks(one, 1, false));
  EXPECT_FALSE(UsableByRanks(one, 2, false));
  EXPECT_TRUE(UsableByRanks(one, 2, true));
  EXPECT_EQ(WhyNoGpu(one, 2), "2 ranks want as many GPUs, 1 is here");
}

TEST(GpuSurvey, EveryReasonHasItsWords) {
  EXPECT_THAT(WhyNoGpu({}), HasSubstr("this build has no CUDA backend"));
  EXPECT_EQ(WhyNoGpu({.code = "9.0", .gpus = {}, .seen = {}, .fault = {}}), "no NVIDIA GPU is seen here");
  EXPECT_EQ(WhyNoGpu({.code = "9.0", .gpus = {}, .seen = {"NVIDIA A10"}, .fault = "the driver is too old"}),
            "CUDA shows none of NVIDIA A10: the driver is too old");
  EXPECT_EQ(WhyNoGpu({.code = "9.0", .gpus = {Gpu(0, "old", 6, false)}, .seen = {}, .fault = {}}),
            "old has compute capability 6.0, this build has machine code for 9.0");
  EXPECT_EQ(NameGpus({.code = "", .gpus = {}, .seen = {"A", "B"}, .fault = {}}), "2 GPUs (A, B)");
  EXPECT_EQ(NameGpus({}), "");
}

}  // namespace
}  // namespace dsv4::backend
