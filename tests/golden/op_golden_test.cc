// Every op of every backend on the inputs of tests/golden/ops. A hundredth of the elements may be one bf16
// step off, and the rest is bit-equal. Results in fp32 keep to the bound of their sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/golden/golden_data.h"
#include "tests/golden/model_runs.h"
#include "tests/golden/op_checks.h"

namespace dsv4::testing {
namespace {

class OpGolden : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(OpGolden, BackendAgrees) {
  const auto& [file, backend] = GetParam();
  const std::vector<OpResult> results = RunOpGolden(file, MakeOpGoldenBackend(backend));
  ASSERT_FALSE(results.empty());
  for (const OpResult& result : results) {
    EXPECT_TRUE(result.comparison.passed) << result.what << ": " << result.comparison.message;
    RecordProperty(result.what, result.comparison.message);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, OpGolden,
                         ::testing::Combine(::testing::ValuesIn(OpGoldenFiles()),
                                            ::testing::ValuesIn(GoldenBackends())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_on_" + std::get<1>(test.param);
                         });

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
