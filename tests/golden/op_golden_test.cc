// Every op of the reference backend on the inputs of tests/golden/ops: within one bf16 step for a hundredth of the elements
// and bit-equal for the rest, fp32 results to the bound of their sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "backend/reference/reference_backend.h"
#include "tests/golden/golden_data.h"
#include "tests/golden/op_checks.h"

namespace dsv4::testing {
namespace {

class OpGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(OpGolden, ReferenceAgrees) {
  const std::vector<OpResult> results = RunOpGolden(GetParam(), backend::MakeReferenceBackend(2));
  ASSERT_FALSE(results.empty());
  for (const OpResult& result : results) {
    EXPECT_TRUE(result.comparison.passed) << result.what << ": " << result.comparison.message;
    RecordProperty(result.what, result.comparison.message);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, OpGolden, ::testing::ValuesIn(OpGoldenFiles()),
                         [](const auto& file) { return file.param; });

TEST(OpGoldenFiles, AreAllRun) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDirectory() / "ops")) {
    found.push_back(entry.path().stem().string());
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, OpGoldenFiles());
}

}  // namespace
}  // namespace dsv4::testing
