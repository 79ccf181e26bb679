// Whether the host has memory for what stays there, which needs no GPU.
#include "apps/shared/expert_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::apps {
namespace {

using ::testing::HasSubstr;

TEST(CheckHostMemory, ExpertsOfTheHostThatAreInNoFileMustFit) {
  ModelFlags flags;
  flags.host_memory = 1e-3;
  const model::MemoryPlan plan{.num_layers = 1, .on_host = int64_t{2} << 20};
  EXPECT_TRUE(CheckHostMemory(flags, plan, /*numbers=*/0, /*synthetic=*/false).ok());
  const Status made = CheckHostMemory(flags, plan, /*numbers=*/0, /*synthetic=*/true);
  EXPECT_EQ(made.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(made.message(), HasSubstr("synthetic weights are in no file"));
  EXPECT_THAT(made.message(), HasSubstr("--host-memory 0.001"));
  flags.host_memory = 1e-2;
  EXPECT_TRUE(CheckHostMemory(flags, plan, /*numbers=*/0, /*synthetic=*/true).ok());
}

}  // namespace
}  // namespace dsv4::apps
