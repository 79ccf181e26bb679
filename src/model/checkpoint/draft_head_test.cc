// Tests of the draft head: equal to the quantisers' whole matrix, bad numbers, names.
#include "model/checkpoint/draft_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "formats/quantize.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

// A plain head that owns its numbers.
struct Head {
  std::vector<float> values;
  Weight weight;

  Head(int64_t rows, int64_t cols) : values(static_cast<size_t>(rows * cols)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    for (float& value : values) value = normal(random);
    weight.rows = rows;
    weight.cols = cols;
    weight.data = TensorView::Contiguous(static_cast<const void*>(values.data()), DType::kF32, {rows, cols});
  }
};

double RelativeError(const Weight& head, const Weight& copy) {
  double error = 0.0;
  double sum = 0.0;
  std::vector<float> want(static_cast<size_t>(head.cols));
  std::vector<float> got(want.size());
  for (int64_t row = 0; row < head.rows; ++row) {
    DequantizeRow(head, row, want.data());
    DequantizeRow(copy, row, got.data());
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(static_cast<double>(got[i] - want[i]), 2);
      sum += std::pow(static_cast<double>(want[i]), 2);
    }
  }
  return std::sqrt(error / sum);
}

// 300 rows: neither a whole number of blocks nor one thread's.
TEST(DraftHead, IsWhatTheQuantisersMakeOfTheWholeMatrix) {
  const Head head(300, 256);
  std::vector<Buffer> copies;
  const Weight fp8 = *MakeDraftHead(head.weight, DraftHead::kFp8, false, copies);
  const Weight nvfp4 = *MakeDraftHead(head.weight, DraftHead::kNvFp4, false, copies);
  ASSERT_TRUE(ValidateWeight(fp8, "fp8").ok());
  ASSERT_TRUE(ValidateWeight(nvfp4, "nvfp4").ok());
  ASSERT_TRUE(ValidateScaleValues(fp8, "fp8").ok());
  ASSERT_TRUE(ValidateScaleValues(nvfp4, "nvfp4").ok());
  const QuantizedMatrix want_fp8 = QuantizeFp8Block(head.values, 300, 256, 128, 128);
  const QuantizedMatrix want_nvfp4 = QuantizeNvFp4(head.values, 300, 256);
  EXPECT_EQ(RelativeError(want_fp8.View(), fp8), 0.0);
  EXPECT_EQ(RelativeError(want_nvfp4.View(), nvfp4), 0.0);
  EXPECT_LT(RelativeError(head.weight, fp8), 0.04);
  EXPECT_LT(RelativeError(head.weight, nvfp4), 0.12);
  EXPECT_GT(RelativeError(head.weight, nvfp4), RelativeError(head.weight, fp8));
}

TEST(DraftHead, IsNoneWhereThereIsNothingToWin) {
  const Head head(32, 256);
  std::vector<Buffer> copies;
  EXPECT_EQ(MakeDraftHead(head.weight, DraftHead::kStored, false, copies)->rows, 0);
  EXPECT_EQ(MakeDraftHead(Head(32, 200).weight, DraftHead::kFp8, false, copies)->rows, 0);
  EXPECT_EQ(MakeDraftHead(Head(32, 200).weight, DraftHead::kNvFp4, false, copies)->rows, 0);
  const QuantizedMatrix stored = QuantizeFp8Block(head.values, 32, 256, 128, 128);
  EXPECT_EQ(MakeDraftHead(stored.View(), DraftHead::kNvFp4, false, copies)->rows, 0);
  EXPECT_TRUE(copies.empty());
}

TEST(DraftHead, NumbersThatAreNoneAreAnError) {
  for (const DraftHead format : {DraftHead::kFp8, DraftHead::kNvFp4}) {
    Head head(200, 256);
    head.values[150 * 256] = std::numeric_limits<float>::quiet_NaN();
    std::vector<Buffer> copies;
    const auto made = MakeDraftHead(head.weight, format, false, copies);
    ASSERT_FALSE(made.has_value());
    EXPECT_THAT(made.error().message(), HasSubstr("not finite"));
    // Without a look at its numbers only its size counts.
    EXPECT_EQ(MakeDraftHead(head.weight, format, true, copies)->rows, 200);
  }
}

TEST(DraftHead, NamesAreParsed) {
  EXPECT_EQ(*ParseDraftHead("stored"), DraftHead::kStored);
  EXPECT_EQ(*ParseDraftHead("fp8"), DraftHead::kFp8);
  EXPECT_EQ(*ParseDraftHead("nvfp4"), DraftHead::kNvFp4);
  EXPECT_THAT(ParseDraftHead("fp4").error().message(), HasSubstr("got 'fp4'"));
}

}  // namespace
}  // namespace dsv4::model
