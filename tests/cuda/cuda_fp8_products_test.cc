// Products in FP8 on Hopper's tensor cores (wgmma) (Fp8Products): exact where the unit is, near the reference
// elsewhere, and the same in any company.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "tests/cuda/fp8_products.h"

namespace dsv4::testing {
namespace {

using backend::cuda::Fp8Products;

std::vector<float> Floats(Device& device, const TensorView& view) {
  const std::vector<std::byte> bytes = device.Bytes(view);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> WidenedBf16s(Device& device, const TensorView& view) {
  const std::vector<std::byte> bytes = device.Bytes(view);
  std::vector<uint16_t> bits(bytes.size() / sizeof(uint16_t));
  std::memcpy(bits.data(), bytes.data(), bytes.size());
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), FloatFromBf16);
  return values;
}

Status RunLinear(Device& device, const Weight& weight, const TensorView& x, const TensorView& y) {
  return device.table().linear(device.context(), {.x = x, .weight = &weight, .y = y});
}

// --- Exact -----------------------------------------------------------------------------------------------------------

void ExpectEqual(const std::vector<float>& got, const std::vector<float>& want, int64_t cols,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int64_t different = 0;
  std::string first;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    if (different++ == 0) {
      const auto at = static_cast<int64_t>(i);
      first = "; first token " + std::to_string(at / cols) + ", row " + std::to_string(at % cols) + ": " +
              std::to_string(got[i]) + ", want " + std::to_string(want[i]);
    }
  }
  EXPECT_EQ(different, 0) << what << ": of " << want.size() << first;
}

void ExpectExactLinear(int64_t rows, int64_t cols, int64_t num_tokens, DType scale_dtype, DType x_dtype) {
  const std::string what = "[" + std::to_string(rows) + ", " + std::to_string(cols) + "], " +
                           std::to_string(num_tokens) + " tokens, scales " +
                           std::string(DTypeName(scale_dtype)) + ", x " + std::string(DTypeName(x_dtype));
  Device device({.fp8_products = Fp8Products::kAll});
  IntegerWeight host;
  MakeIntegerWeight(rows, cols, scale_dtype, 3, host);
  const Weight weight = device.Prepare(host.weight);
  const std::vector<float> x = IntegerRows(num_tokens, cols, 4);
  const DeviceTensor device_x = x_dtype == DType::kBF16
                                    ? device.Copy(DType::kBF16, {num_tokens, cols}, Bf16s(x))
                                    : device.Copy(DType::kF32, {num_tokens, cols}, x);
  std::vector<float> want = ExactFp8Product(x, cols, 0, host, 0, rows);
  const DeviceTensor y = device.New(DType::kF32, {num_tokens, rows});
  Status status = RunLinear(device, weight, device_x.view, y.view);
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  ExpectEqual(Floats(device, y.view), want, rows, what);

  const DeviceTensor narrow = device.New(DType::kBF16, {num_tokens, rows});
  status = RunLinear(device, weight, device_x.view, narrow.view);
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  std::transform(want.begin(), want.end(), want.begin(), RoundToBf16);
  ExpectEqual(WidenedBf16s(device, narrow.view), want, rows, what + ", y in bf16");
}

TEST(CudaFp8Products, LinearIsExactWhereTheUnitIs) {
  // One column block and many. Rows that leave a tile in part empty, or are stored one by one. A few tokens
  // and more than a tile.
  for (const DType scale_dtype : {DType::kF8E8M0, DType::kF32}) {
    ExpectExactLinear(128, 128, 64, scale_dtype, DType::kBF16);
    ExpectExactLinear(384, 1152, 331, scale_dtype, DType::kBF16);
    ExpectExactLinear(200, 640, 130, scale_dtype, DType::kF32);
    ExpectExactLinear(65, 4096, 5, scale_dtype, DType::kBF16);
  }
}

// So many tiles that they are large ones, by clusters of two blocks.
TEST(CudaFp8Products, LinearOfManyTilesIsExactWhereTheUnitIs) {
  ExpectExactLinear(4480, 256, 1100, DType::kF8E8M0, DType::kBF16);
  ExpectExactLinear(8200, 128, 600, DType::kF32, DType::kBF16);
}

// --- Near ------------------------------------------------------------------------------------------------------------

// Promise of the mode for random numbers (docs/cuda/numerics.md): products are cut off 13 bits below the
// largest of a step. Of normal numbers that is 1.3e-4 of the result; where all products have one sign, the
// cuts have too, 6.2e-4. Sums of 4096 such products without totals in fp32 would be off by 7e-2, of normal
// numbers by 1.3e-3.
constexpr double kNormal = 5e-4;
constexpr double kOneSign = 2e-3;

void ExpectNearReference(int64_t rows, int64_t cols, bool one_sign) {
  constexpr int64_t kTokens = 300;
  const std::string what = "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]" +
                           (one_sign ? ", products of one sign" : "");
  Device device({.fp8_products = Fp8Products::kAll});
  const ops::Backend judge = backend::MakeReferenceBackend(8);
  std::vector<float> values = Normals(rows * cols, 3, 0.5F);
  std::vector<float> x = Normals(kTokens * cols, 4);
  if (one_sign) {
    for (float& value : values) value = std::abs(value);
    for (float& value : x) value = std::abs(value);
  }
  std::transform(x.begin(), x.end(), x.begin(), RoundToBf16);
  QuantizedMatrix matrix = QuantizeFp8Block(values, rows, cols, 128, 128);
  const auto reference = [&] {
    Weight weight = matrix.View();
    weight.activation = ActivationQuant::kFp8Block;
    std::vector<float> y(static_cast<size_t>(kTokens * rows));
    const Status status = judge.table.linear(
        *judge.context, {.x = TensorView::Contiguous(x.data(), DType::kF32, {kTokens, cols}),
                         .weight = &weight,
                         .y = TensorView::Contiguous(y.data(), DType::kF32, {kTokens, rows})});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return y;
  };
  Weight host = matrix.View();
  host.activation = ActivationQuant::kFp8Block;
  const Weight weight = device.Prepare(host);
  const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, cols}, Bf16s(x));
  const DeviceTensor y = device.New(DType::kF32, {kTokens, rows});
  const Status status = RunLinear(device, weight, device_x.view, y.view);
  ASSERT_TRUE(status.ok()) << what << ": " << status.ToString();
  const std::vector<float> got = Floats(device, y.view);
  const double bound = one_sign ? kOneSign : kNormal;
  const double error = RelativeError(got, reference());
  EXPECT_LT(error, bound) << what;
  std::cout << "  " << what << ": off by " << error << "\n";

  // Differences that the bound tells: the scale of one block of weights, and one group's.
  matrix.scale.back() += 1;
  EXPECT_GT(RelativeError(got, reference()), 4 * bound) << what << ": one block's scale is twice what it is";
  matrix.scale.back() -= 1;
  for (int64_t c = 0; c < 128; ++c) x[static_cast<size_t>(c)] *= 2.0F;
  const std::vector<float> other = reference();
  EXPECT_GT(RelativeError({got.begin(), got.begin() + rows}, {other.begin(), other.begin() + rows}),
            4 * bound)
      << what << ": one group's scale is twice what it is";
}

TEST(CudaFp8Products, LinearIsNearTheReference) {
  for (const bool one_sign : {false, true}) {
    ExpectNearReference(256, 128, one_sign);
    ExpectNearReference(384, 1536, one_sign);
    ExpectNearReference(256, 4096, one_sign);
  }
}

// --- In company ------------------------------------------------------------------------------------------------------

TEST(CudaFp8Products, ATokensResultIsItsOwn) {
  constexpr int64_t kTokens = 1060;
  constexpr int64_t kRows = 4096;
  constexpr int64_t kCols = 512;
  // Below 256 tokens products of many tokens are in bf16.
  const std::vector<Cut> many = {{0, 256}, {256, 600}, {600, kTokens}};
  const std::vector<Cut> all = CutsOfAllSizes(kTokens);
  for (const Fp8Products mode : {Fp8Products::kMany, Fp8Products::kAll}) {
    Device device({.fp8_products = mode});
    const Weight weight = RandomWeight(device, Format::kFp8, kRows, kCols, 3);
    const DeviceTensor x = device.Copy(DType::kBF16, {kTokens, kCols}, Bf16s(Normals(kTokens * kCols, 4)));
    const DeviceTensor y = device.New(DType::kBF16, {kTokens, kRows});
    ExpectTheSameInCuts(
        device, y.view, mode == Fp8Products::kAll ? all : many, mode == Fp8Products::kAll ? "all" : "many",
        [&](const Cut& cut) { return RunLinear(device, weight, Rows(x.view, cut), Rows(y.view, cut)); });
  }
}

TEST(CudaFp8Products, WhatTheModeDoesNotTakeHasItsOwnBits) {
  constexpr int64_t kTokens = 300;
  constexpr int64_t kRows = 256;
  constexpr int64_t kCols = 1024;
  Device plain;
  struct Case {
    Fp8Products mode;
    Format format;
    int64_t num_tokens;
    bool same;
  };
  for (const auto& [mode, format, num_tokens, same] :
       {Case{Fp8Products::kMany, Format::kFp8, 200, true},
        Case{Fp8Products::kAll, Format::kBf16, kTokens, true},
        // Activations that are not rounded; scales that are no powers of two; MXFP4 outside routed experts.
        Case{Fp8Products::kAll, Format::kFp8NaN, kTokens, true},
        Case{Fp8Products::kAll, Format::kNvFp4, kTokens, true},
        Case{Fp8Products::kAll, Format::kMxFp4, kTokens, true},
        Case{Fp8Products::kAll, Format::kFp8, 200, false},
        Case{Fp8Products::kMany, Format::kFp8, kTokens, false}}) {
    Device device({.fp8_products = mode});
    const std::vector<uint16_t> x = Bf16s(Normals(num_tokens * kCols, 4));
    std::vector<std::byte> results[2];
    Device* const devices[] = {&plain, &device};
    for (int i = 0; i < 2; ++i) {
      Device& on = *devices[i];
      const Weight weight = RandomWeight(on, format, kRows, kCols, 3);
      const DeviceTensor device_x = on.Copy(DType::kBF16, {num_tokens, kCols}, x);
      const DeviceTensor y = on.New(DType::kF32, {num_tokens, kRows});
      const Status status = RunLinear(on, weight, device_x.view, y.view);
      ASSERT_TRUE(status.ok()) << status.ToString();
      results[i] = on.Bytes(y.view);
    }
    EXPECT_EQ(results[0] == results[1], same) << FormatText(format) << ", " << num_tokens << " tokens";
  }
}

TEST(CudaFp8Products, ARowWithANaNOrAnInfinityIsNaNAndNoOther) {
  constexpr int64_t kTokens = 140;
  constexpr int64_t kRows = 256;
  constexpr int64_t kCols = 512;
  Device device({.fp8_products = Fp8Products::kAll});
  HostWeight host = RandomHostWeight(Format::kFp8, kRows, kCols, 2);
  host.matrix.data[7 * kCols + 300] = kE4m3NaN;  // Row 7 of the weight is NaN for every token.
  host.weight = host.matrix.View();
  host.weight.activation = ActivationQuant::kFp8Block;
  const Weight weight = device.Prepare(host.weight);
  std::vector<uint16_t> x = Bf16s(Normals(kTokens * kCols, 3));
  x[1 * kCols + 70] = 0x7FC0;
  x[133 * kCols + 300] = 0x7F80;
  const DeviceTensor device_x = device.Copy(DType::kBF16, {kTokens, kCols}, x);
  const DeviceTensor y = device.New(DType::kF32, {kTokens, kRows});
  const Status status = RunLinear(device, weight, device_x.view, y.view);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<float> got = Floats(device, y.view);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t row = 0; row < kRows; ++row) {
      ASSERT_EQ(std::isnan(got[static_cast<size_t>(t * kRows + row)]), t == 1 || t == 133 || row == 7)
          << "token " << t << ", row " << row;
    }
  }
}

}  // namespace
}  // namespace dsv4::testing
