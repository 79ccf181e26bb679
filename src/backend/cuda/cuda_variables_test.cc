// Environment variables of the CUDA backend: what they set, and that no value is taken for another.
#include "backend/cuda/cuda_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace dsv4::backend {
namespace {

using ::testing::StartsWith;

Result<CudaVariables> With(const char* name, const char* value) {
  ::setenv(name, value, 1);
  Result<CudaVariables> variables = ReadCudaVariables();
  ::unsetenv(name);
  return variables;
}

TEST(CudaVariables, EachSetsItsOwn) {
  const CudaVariables none = *ReadCudaVariables();
  EXPECT_FALSE(none.synchronous || none.explain || none.check_replays || none.share_devices);
  EXPECT_TRUE(none.graphs && none.overlap && none.replay && none.packed_exchange);
  EXPECT_TRUE(With("DSV4_CUDA_SYNC", "1")->synchronous);
  EXPECT_FALSE(With("DSV4_CUDA_SYNC", "0")->synchronous);
  EXPECT_TRUE(With("DSV4_CUDA_EXPLAIN", "1")->explain);
  EXPECT_FALSE(With("DSV4_CUDA_GRAPHS", "0")->graphs);
  EXPECT_TRUE(With("DSV4_CUDA_GRAPHS", "")->graphs);
  EXPECT_FALSE(With("DSV4_CUDA_OVERLAP", "0")->overlap);
  EXPECT_FALSE(With("DSV4_CUDA_REPLAY", "0")->replay);
  EXPECT_TRUE(With("DSV4_CUDA_REPLAY", "check")->check_replays);
  EXPECT_FALSE(With("DSV4_CUDA_PACKED_EXCHANGE", "0")->packed_exchange);
  EXPECT_TRUE(With("DSV4_CUDA_SHARE_DEVICES", "1")->share_devices);
  EXPECT_EQ(With("DSV4_CUDA_BLOCK_SCALED", "fp4")->block_scaled, cuda::BlockScaledMode::kFp4);
  EXPECT_EQ(With("DSV4_CUDA_FP8_PRODUCTS", "many")->fp8_products, cuda::Fp8Products::kMany);
  EXPECT_EQ(With("DSV4_CUDA_SHARED_KB", "99")->most_shared_bytes, size_t{99} * 1024);
}

TEST(CudaVariables, NoValueIsTakenForAnother) {
  for (const auto& [name, value] :
       {std::pair{"DSV4_CUDA_SYNC", "yes"}, std::pair{"DSV4_CUDA_EXPLAIN", "2"},
        std::pair{"DSV4_CUDA_GRAPHS", "off"}, std::pair{"DSV4_CUDA_OVERLAP", "false"},
        std::pair{"DSV4_CUDA_REPLAY", "Check"}, std::pair{"DSV4_CUDA_PACKED_EXCHANGE", " 0"},
        std::pair{"DSV4_CUDA_SHARE_DEVICES", "on"}, std::pair{"DSV4_CUDA_BLOCK_SCALED", "fp16"},
        std::pair{"DSV4_CUDA_FP8_PRODUCTS", "1"}, std::pair{"DSV4_CUDA_SHARED_KB", "47"},
        std::pair{"DSV4_CUDA_SHARED_KB", "99k"}}) {
    const auto variables = With(name, value);
    ASSERT_FALSE(variables) << name;
    EXPECT_EQ(variables.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(variables.error().message(),
                StartsWith(std::string(name) + ": got \"" + value + "\", wanted "));
  }
}

}  // namespace
}  // namespace dsv4::backend
