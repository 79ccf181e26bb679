// Tensors between guards of poison, so that a write or read outside is seen.
#include "tests/parity/test_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/number_formats.h"

namespace dsv4::test {

namespace {

constexpr size_t kGuardBytes = 64;
constexpr std::byte kPoison{0xFF};

double Decode(DType dtype, const std::byte* from) {
  const auto load = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(load(float{}));
    case DType::kBF16:
      return static_cast<double>(FloatFromBf16(load(uint16_t{})));
    case DType::kF16:
      return static_cast<double>(FloatFromF16(load(uint16_t{})));
    case DType::kU8:
      return static_cast<double>(load(uint8_t{}));
    case DType::kI32:
      return static_cast<double>(load(int32_t{}));
    case DType::kI64:
      return static_cast<double>(load(int64_t{}));
    default:
      DSV4_CHECK(false) << DTypeName(dtype);
  }
  return 0.0;
}

void Encode(DType dtype, double value, std::byte* to) {
  const auto store = [to](auto encoded) { std::memcpy(to, &encoded, sizeof(encoded)); };
  switch (dtype) {
    case DType::kF32:
      return store(static_cast<float>(value));
    case DType::kBF16:
      return store(Bf16FromFloat(static_cast<float>(value)));
    case DType::kF16:
      return store(F16FromFloat(static_cast<float>(value)));
    case DType::kU8:
      return store(static_cast<uint8_t>(value));
    case DType::kI32:
      return store(static_cast<int32_t>(value));
    case DType::kI64:
      return store(static_cast<int64_t>(value));
    default:
      DSV4_CHECK(false) << DTypeName(dtype);
  }
}

}  // namespace

TestTensor::TestTensor(DType dtype, const Shape& shape, int64_t row_gap) {
  int64_t row_size = 1;
  for (int i = 1; i < shape.rank(); ++i) row_size *= shape[i];
  row_stride_ = row_size + row_gap;
  const int64_t num_rows = shape.rank() == 0 ? 1 : shape[0];
  const size_t bytes = static_cast<size_t>(num_rows * row_stride_ * ElementBytes(dtype));
  memory_.assign(bytes + 2 * kGuardBytes, kPoison);
  view_ = TensorView::Contiguous(static_cast<void*>(memory_.data() + kGuardBytes), dtype, shape);
  if (shape.rank() > 0) view_.strides[0] = row_stride_;
}

TestTensor::TestTensor(DType dtype, const Shape& shape, std::span<const double> values, int64_t row_gap)
    : TestTensor(dtype, shape, row_gap) {
  Set(values);
}

int64_t TestTensor::row_elements() const {
  int64_t size = 1;
  for (int i = 1; i < view_.shape.rank(); ++i) size *= view_.shape[i];
  return size;
}

std::byte* TestTensor::RowBegin(int64_t row) const {
  return static_cast<std::byte*>(view_.data) + row * row_stride_ * ElementBytes(view_.dtype);
}

void TestTensor::Set(std::span<const double> values) {
  DSV4_CHECK(static_cast<int64_t>(values.size()) == view_.num_elements())
      << values.size() << " values for " << view_.shape.ToString();
  const int64_t per_row = row_elements();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    Encode(view_.dtype, values[i], RowBegin(index / per_row) + index % per_row * ElementBytes(view_.dtype));
  }
}

std::vector<double> TestTensor::Values() const {
  std::vector<double> values(static_cast<size_t>(view_.num_elements()));
  const int64_t per_row = row_elements();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    values[i] = Decode(view_.dtype, RowBegin(index / per_row) + index % per_row * ElementBytes(view_.dtype));
  }
  return values;
}

std::vector<std::byte> TestTensor::Bytes() const {
  std::vector<std::byte> bytes;
  if (view_.num_elements() == 0) return bytes;
  const int64_t row_bytes = row_elements() * ElementBytes(view_.dtype);
  for (int64_t row = 0; row < (view_.shape.rank() == 0 ? 1 : view_.shape[0]); ++row) {
    bytes.insert(bytes.end(), RowBegin(row), RowBegin(row) + row_bytes);
  }
  return bytes;
}

bool TestTensor::GuardsIntact() const {
  std::vector<bool> is_element(memory_.size(), false);
  const int64_t row_bytes = row_elements() * ElementBytes(view_.dtype);
  for (int64_t row = 0; row < (view_.shape.rank() == 0 ? 1 : view_.shape[0]); ++row) {
    const auto begin = RowBegin(row) - memory_.data();
    std::fill_n(is_element.begin() + begin, row_bytes, true);
  }
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (!is_element[i] && memory_[i] != kPoison) return false;
  }
  return true;
}

std::vector<double> Rounded(DType dtype, std::span<const double> values) {
  return TestTensor(dtype, {static_cast<int64_t>(values.size())}, values).Values();
}

std::vector<double> Random::Normals(int64_t count, double sigma) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = sigma * Normal();
  return values;
}

std::vector<double> Random::Spread(int64_t count) {
  std::vector<double> values = Normals(count);
  for (double& value : values) {
    switch (Below(16)) {
      case 0:
        value = 0.0;
        break;
      case 1:
        value = std::copysign(0x1p-133, value);
        break;  // The smallest bf16 subnormal.
      default:
        value *= std::ldexp(1.0, static_cast<int>(Below(61)) - 30);
    }
  }
  return values;
}

double RoundingBound(DType dtype, double exact, double magnitude) {
  const double half_step = dtype == DType::kBF16 ? 0x1p-8 + 0x1p-24 : 0x1p-24;
  const double half_smallest_subnormal = dtype == DType::kBF16 ? 0x1p-134 : 0x1p-150;
  constexpr double kSumSlack = 0x1p-40;  // 2^12 additions in double.
  return std::max(half_step * std::fabs(exact), half_smallest_subnormal) + kSumSlack * magnitude;
}

void ExpectRounded(DType dtype, std::span<const double> got, std::span<const double> want,
                   std::span<const double> magnitudes, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t worst = 0;
  double worst_excess = -1.0;
  size_t num_bad = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound =
        RoundingBound(dtype, want[i], magnitudes.empty() ? std::fabs(want[i]) : magnitudes[i]);
    const double error = std::fabs(got[i] - want[i]);
    if (error <= bound) continue;  // False for NaN.
    ++num_bad;
    const double excess = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / bound;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  EXPECT_EQ(num_bad, 0U) << what << ": " << num_bad << " of " << got.size() << " out of bounds, worst at "
                         << worst << ": got " << got[worst] << ", want " << want[worst] << ", "
                         << worst_excess << " times the bound";
}

}  // namespace dsv4::test
