// Tests of code targets: CMake's spellings, major versions that machine code runs on, PTX for later devices.
#include "backend/cuda/lowering/code_targets.h"

#include <gtest/gtest.h>

namespace dsv4::backend::cuda {
namespace {

TEST(CodeTargets, AreCMakesArchitectures) {
  const std::vector<CodeTarget> targets = ParseCodeTargets("80-virtual,86,90a-real,100f-real");
  ASSERT_EQ(targets.size(), 4U);
  EXPECT_EQ(targets[0].capability, 80);
  EXPECT_FALSE(targets[0].machine_code);
  EXPECT_TRUE(targets[0].ptx);
  EXPECT_TRUE(targets[1].machine_code && targets[1].ptx);
  EXPECT_EQ(targets[2].capability, 90);
  EXPECT_TRUE(targets[2].this_one_only && targets[2].machine_code);
  EXPECT_FALSE(targets[2].ptx);
  EXPECT_EQ(targets[3].capability, 100);
  EXPECT_FALSE(targets[3].this_one_only);
  EXPECT_TRUE(ParseCodeTargets("").empty());
  EXPECT_TRUE(ParseCodeTargets("native,90b-real,80-some").empty());
}

TEST(CodeTargets, MachineCodeRunsOnItsMajorNumber) {
  const std::vector<CodeTarget> all = ParseCodeTargets("80-real,86-real,89-real,90a-real,100a-real,120-real");
  for (const int capability : {80, 86, 87, 89, 90, 100, 120, 121})
    EXPECT_EQ(FindCode(all, capability), CodeFor::kMachineCode) << capability;
  EXPECT_EQ(FindCode(all, 75), CodeFor::kNone);
  EXPECT_EQ(FindCode(all, 103), CodeFor::kNone) << "100a is of 10.0 alone";
  EXPECT_EQ(FindCode(all, 110), CodeFor::kNone);
  EXPECT_EQ(NameMachineCode(all), "8.0, 8.6, 8.9, 9.0, 10.0 and 12.0");
}

TEST(CodeTargets, PtxIsCompiledForLaterDevices) {
  const std::vector<CodeTarget> tests = ParseCodeTargets("80-virtual,90a-real");
  EXPECT_EQ(FindCode(tests, 90), CodeFor::kMachineCode);
  EXPECT_EQ(FindCode(tests, 86), CodeFor::kPtx);
  EXPECT_EQ(FindCode(tests, 120), CodeFor::kPtx);
  EXPECT_EQ(FindCode(tests, 75), CodeFor::kNone);
  EXPECT_EQ(NameMachineCode(tests), "9.0");
  EXPECT_EQ(NameMachineCode(ParseCodeTargets("80-virtual")), "none");
}

}  // namespace
}  // namespace dsv4::backend::cuda
