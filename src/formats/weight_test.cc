// Tests of stored weights: all formats with the same values, scales, alignment, and each violation named.
#include "formats/weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "formats/number_formats.h"
#include "formats/quantize.h"

namespace dsv4 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> Row(const Weight& weight, int64_t row) {
  std::vector<float> values(static_cast<size_t>(weight.cols));
  DequantizeRow(weight, row, values.data());
  return values;
}

TEST(Weight, PlainDtypes) {
  const float f32[] = {1.5F, -2.0F, 0.25F, 8.0F};
  Weight weight;
  weight.rows = 2;
  weight.cols = 2;
  weight.data = TensorView::Contiguous(f32, DType::kF32, {2, 2});
  ASSERT_TRUE(ValidateWeight(weight, "w").ok());
  EXPECT_THAT(Row(weight, 1), ElementsAre(0.25F, 8.0F));

  std::vector<uint16_t> bf16;
  std::vector<uint16_t> f16;
  for (const float value : f32) {
    bf16.push_back(Bf16FromFloat(value));
    f16.push_back(F16FromFloat(value));
  }
  weight.data = TensorView::Contiguous(bf16.data(), DType::kBF16, {2, 2});
  EXPECT_THAT(Row(weight, 0), ElementsAre(1.5F, -2.0F));
  weight.data = TensorView::Contiguous(f16.data(), DType::kF16, {2, 2});
  EXPECT_THAT(Row(weight, 1), ElementsAre(0.25F, 8.0F));
}

// A mapped file puts tensors at any byte.
TEST(Weight, DataNeedNotBeAligned) {
  const float values[] = {1.5F, -2.0F};
  std::vector<uint8_t> bytes(9);
  std::memcpy(bytes.data() + 1, values, sizeof(values));
  Weight weight;
  weight.rows = 1;
  weight.cols = 2;
  weight.data = TensorView::Contiguous(static_cast<const void*>(bytes.data() + 1), DType::kF32, {1, 2});
  EXPECT_THAT(Row(weight, 0), ElementsAre(1.5F, -2.0F));
}

TEST(Weight, Fp8WithF32AndBf16Scales) {
  const std::vector<uint8_t> codes(6, 0x38);  // 1.0
  const float f32[] = {3.0F, 0.1F, -0.0F, 7.0F};
  Weight weight;
  weight.format = WeightFormat::kFp8Block;
  weight.rows = 2;
  weight.cols = 3;
  weight.block_rows = 1;
  weight.block_cols = 2;
  weight.data = TensorView::Contiguous(static_cast<const void*>(codes.data()), DType::kF8E4M3, {2, 3});
  weight.scale = TensorView::Contiguous(f32, DType::kF32, {2, 2});
  ASSERT_TRUE(ValidateWeight(weight, "w").ok());
  EXPECT_THAT(Row(weight, 0), ElementsAre(3.0F, 3.0F, 0.1F));
  const uint16_t bf16[] = {0x4040, 0x3F80, 0x3F80, 0x4000};  // 3, 1, 1, 2
  weight.scale = TensorView::Contiguous(bf16, DType::kBF16, {2, 2});
  EXPECT_THAT(Row(weight, 0), ElementsAre(3.0F, 3.0F, 1.0F));
  EXPECT_THAT(Row(weight, 1), ElementsAre(1.0F, 1.0F, 2.0F));
}

TEST(Weight, NvFp4GlobalScaleMultipliesOrDivides) {
  const std::vector<float> values(32, 3.0F);
  const QuantizedMatrix matrix = QuantizeNvFp4(values, 2, 16, 1.0F);
  Weight weight = matrix.View();
  weight.global_scale = 4.0F;
  EXPECT_EQ(Row(weight, 1)[0], 12.0F);
  weight.global_scale_divides = true;
  EXPECT_EQ(Row(weight, 1)[0], 0.75F);
}

TEST(Weight, NvFp4ScaleProductIsRoundedOnceToFp32) {
  const uint8_t data[8] = {0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22};  // 1.0
  const uint8_t scale[1] = {0x0F};                                           // 2^-6 * 1.875
  Weight weight;
  weight.format = WeightFormat::kNvFp4;
  weight.rows = 1;
  weight.cols = 16;
  weight.data = TensorView::Contiguous(data, DType::kU8, {1, 8});
  weight.scale = TensorView::Contiguous(scale, DType::kF8E4M3, {1, 1});
  weight.global_scale = 0.1F;
  EXPECT_EQ(Row(weight, 0)[0], static_cast<float>(0x1p-6 * 1.875 * static_cast<double>(0.1F)));
}

TEST(Weight, RowsOfEveryFormatAreTheSameValues) {
  std::vector<float> values;
  for (int row = 0; row < 10; ++row) {
    for (int col = 0; col < 64; ++col) {
      values.push_back(std::sin(static_cast<float>(64 * row + col)) * static_cast<float>(1 + row));
    }
  }
  for (const QuantizedMatrix& matrix : {QuantizeNvFp4(values, 10, 64), QuantizeMxFp4(values, 10, 64),
                                        QuantizeFp8Block(values, 10, 64, 4, 48)}) {
    const Weight whole = matrix.View();
    const Weight part = whole.Rows(4, 9);
    ASSERT_TRUE(ValidateWeight(part, "part").ok()) << ValidateWeight(part, "part").ToString();
    for (int64_t row = 0; row < 5; ++row) EXPECT_EQ(Row(part, row), Row(whole, 4 + row));
  }
}

class ValidateWeightTest : public ::testing::Test {
 protected:
  void ExpectError(const Weight& weight, const std::string& text) {
    const Status status = ValidateWeight(weight, "layers.0.attn.wkv");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::StartsWith("layers.0.attn.wkv: "));
    EXPECT_THAT(status.message(), HasSubstr(text));
  }

  std::vector<float> values_ = std::vector<float>(64 * 64, 1.0F);
  QuantizedMatrix nvfp4_ = QuantizeNvFp4(values_, 64, 64);
  QuantizedMatrix mxfp4_ = QuantizeMxFp4(values_, 64, 64);
  QuantizedMatrix fp8_ = QuantizeFp8Block(values_, 64, 64, 16, 16);
};

TEST_F(ValidateWeightTest, NamesEveryViolation) {
  Weight weight = nvfp4_.View();
  weight.data.shape = {64, 64};
  ExpectError(weight, "data: shape [64, 64], want [64, 32]");

  weight = nvfp4_.View();
  weight.scale.shape = {64, 2};
  ExpectError(weight, "scale: shape [64, 2], want [64, 4]");

  weight = mxfp4_.View();  // The NVFP4 scale layout on an MXFP4 weight.
  weight.scale = nvfp4_.View().scale;
  ExpectError(weight, "scale: shape [64, 4], want [64, 2]");

  weight = nvfp4_.View();
  weight.scale.dtype = DType::kF8E8M0;
  ExpectError(weight, "scale: dtype F8_E8M0, want F8_E4M3");

  weight = fp8_.View();
  weight.data.dtype = DType::kU8;
  ExpectError(weight, "data: dtype U8, want F8_E4M3");

  weight = fp8_.View();
  weight.scale.strides = {1, 4, 0, 0};  // Transposed.
  ExpectError(weight, "scale: not contiguous");

  weight = fp8_.View();
  weight.data.strides[0] = 128;  // A column slice.
  ExpectError(weight, "data: not contiguous");

  weight = fp8_.View();
  weight.scale.data = nullptr;
  ExpectError(weight, "scale: absent");

  weight = fp8_.View();
  weight.block_rows = 0;
  ExpectError(weight, "blocks of [0, 16]");

  weight = mxfp4_.View();
  weight.block_cols = 32;
  ExpectError(weight, "blocks of [1, 32], want [1, 1]");

  weight = mxfp4_.View();
  weight.cols = 48;
  ExpectError(weight, "48 columns, want a multiple of 32");

  weight = mxfp4_.View();
  weight.rows = 0;
  ExpectError(weight, "[0, 64], want positive rows");

  weight = fp8_.View();
  weight.scale.device = {DeviceType::kCuda, 0};
  ExpectError(weight, "another device");

  weight = Weight();
  weight.rows = 64;
  weight.cols = 64;
  weight.data = TensorView::Contiguous(values_.data(), DType::kF32, {64, 64});
  weight.scale = fp8_.View().scale;
  ExpectError(weight, "scale: shape [4, 4], want none for F32");
  weight.scale = {};
  weight.data.dtype = DType::kI64;
  ExpectError(weight, "data: dtype I64, want F32 or F16 or BF16");
}

TEST_F(ValidateWeightTest, ScaleValues) {
  const auto expect_error = [](const Weight& weight, const std::string& text) {
    const Status status = ValidateScaleValues(weight, "w");
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  EXPECT_TRUE(ValidateScaleValues(nvfp4_.View(), "w").ok());
  nvfp4_.scale[5] = 0x7F;
  expect_error(nvfp4_.View(), "scale [1, 1]: nan");
  nvfp4_.scale[5] = 0x81;
  expect_error(nvfp4_.View(), "scale [1, 1]: -");
  mxfp4_.scale[127] = 0xFF;
  expect_error(mxfp4_.View(), "scale [63, 1]: nan");
  mxfp4_.scale[127] = 0;  // 2^-127 is a number.
  EXPECT_TRUE(ValidateScaleValues(mxfp4_.View(), "w").ok());
  nvfp4_.scale[5] = 0x38;
  for (const float global : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    nvfp4_.global_scale = global;
    expect_error(nvfp4_.View(), "global scale");
  }
}

}  // namespace
}  // namespace dsv4
