#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/checkpoint.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

Result<ModelWeights> Load(const std::string& directory, const LoadOptions& options = {}) {
  DSV4_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  DSV4_ASSIGN_OR_RETURN(auto checkpoint, io::Checkpoint::Open(directory));
  return LoadWeights(std::move(checkpoint), config, options);
}

// Written by tools that know nothing of this code: every format, both config dialects, three name dialects.
class GoldenCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenCheckpoint, Loads) {
  const auto weights = Load(std::string("tests/golden/models/") + GetParam());
  ASSERT_TRUE(weights.has_value()) << weights.error().message();
  EXPECT_FALSE(weights->layers.empty());
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoint,
                         ::testing::Values("bf16", "fp8_base", "fp8_mxfp4", "nvfp4_all", "nvfp4_ct", "nvfp4_experts",
                                           "ordinary", "tf_narrow", "tf_wide"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace dsv4::model
