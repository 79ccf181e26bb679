// Slices of columns and tiles of tokens of gemm_splitk_wgmma.
#include "backend/cuda/lowering/splitk_shape.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "backend/cuda/lowering/select_testing.h"

namespace dsv4::backend::cuda {
namespace {

TEST(SplitKShape, AsFewTokenTilesAsCanBeThenTheNarrowest) {
  const auto tokens = [](int64_t cols, int64_t num_tokens) {
    return SlicesOf(ShapeOf(Fp8(4096, cols)), num_tokens).tokens;
  };
  const std::vector<std::pair<int64_t, int>> of_512 = {{9, 32},    {33, 48},  {49, 64},  {65, 80},
                                                       {81, 96},   {97, 128}, {129, 80}, {161, 96},
                                                       {193, 128}, {257, 96}};
  for (const auto& [num_tokens, wanted] : of_512) EXPECT_EQ(tokens(4096, num_tokens), wanted) << num_tokens;
  EXPECT_EQ(tokens(8192, 65), 48) << "slices of 1024 columns leave room for 64 tokens";
  EXPECT_EQ(tokens(8192, 97), 64);
  EXPECT_EQ(tokens(1024, 72), 48) << "all columns: a second sum of each is not kept";
}

}  // namespace
}  // namespace dsv4::backend::cuda
