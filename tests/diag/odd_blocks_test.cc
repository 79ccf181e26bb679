// Blocks of FP8 weights: a doubled row, column or block is named with its place, blocks that vary anyway are not.
#include "diag/checks/tensors/odd_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace dsv4::testing {
namespace {

using diag::BlockSquares;
using diag::OddBlocks;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kSize = 64;
constexpr int64_t kBlock = 16;
using Change = std::function<float(int layer, size_t row, size_t column)>;

// Layers of one matrix, numbers times what `change` says.
std::vector<diag::StrayLayer> Look(int num_layers, const Change& change) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  OddBlocks blocks;
  for (int layer = 0; layer < num_layers; ++layer) {
    Weight weight;
    weight.rows = weight.cols = kSize;
    weight.block_rows = weight.block_cols = kBlock;
    BlockSquares squares(weight);
    std::vector<double> rows(kSize);
    std::vector<double> columns(kSize);
    for (size_t i = 0; i < kSize; ++i) {
      std::vector<float> row(kSize);
      for (size_t j = 0; j < kSize; ++j) {
        row[j] = normal(random) * change(layer, i / kBlock, j / kBlock);
        rows[i] += double{row[j]} * double{row[j]};
        columns[j] += double{row[j]} * double{row[j]};
      }
      squares.AddRow(row);
    }
    for (double& row : rows) row = std::log(row);
    for (double& column : columns) column = std::log(column);
    blocks.Add(layer, "w", rows, columns, squares);
  }
  return blocks.Find();
}

void ExpectOne(const Change& change, const char* place, const char* size) {
  const std::vector<diag::StrayLayer> found = Look(6, change);
  ASSERT_EQ(found.size(), 1U) << place;
  EXPECT_EQ(found[0].layer, 3);
  EXPECT_EQ(found[0].module, "w");
  EXPECT_THAT(found[0].text, HasSubstr(place));
  EXPECT_THAT(found[0].text, HasSubstr(size));
}

TEST(OddBlocksTest, BlocksOfOneSizeAndBlocksThatVaryPass) {
  EXPECT_THAT(Look(6, [](int, size_t, size_t) { return 1.0F; }), IsEmpty());
  EXPECT_THAT(Look(6, [](int layer, size_t row, size_t) { return (row + layer) % 4 == 0 ? 1.5F : 1.0F; }),
              IsEmpty());
  EXPECT_THAT(Look(6, [](int layer, size_t row, size_t) { return layer == 3 && row == 1 ? 1.4F : 1.0F; }),
              IsEmpty());
  // Three layers are too few to say what is usual.
  EXPECT_THAT(Look(3, [](int layer, size_t row, size_t) { return layer == 1 && row == 1 ? 2.0F : 1.0F; }),
              IsEmpty());
}

TEST(OddBlocksTest, AnOddRowColumnOrBlockIsNamed) {
  ExpectOne([](int layer, size_t row, size_t) { return layer == 3 && row == 2 ? 2.0F : 1.0F; },
            "has rows 32..47 that are", "as large");
  ExpectOne([](int layer, size_t, size_t column) { return layer == 3 && column == 0 ? 0.5F : 1.0F; },
            "has columns 0..15 that are", "as small");
  ExpectOne([](int layer, size_t row,
               size_t column) { return layer == 3 && row == 1 && column == 2 ? 2.0F : 1.0F; },
            "has a block (scale 6) that is", "as large");
}

}  // namespace
}  // namespace dsv4::testing
