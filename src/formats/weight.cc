// Checks of a stored weight's layout and scales, and exact dequantisation of its rows.
#include "formats/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/text.h"
#include "formats/number_formats.h"

namespace dsv4 {

namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Demands of the table in weight.h of one operand.
struct Expected {
  Shape data;
  std::array<DType, 3> data_dtypes;
  Shape scale;
  std::array<DType, 3> scale_dtypes;
};

Expected ExpectedLayout(const Weight& weight) {
  const auto same = [](DType dtype) { return std::array<DType, 3>{dtype, dtype, dtype}; };
  switch (weight.format) {
    case WeightFormat::kPlain:
      return {{weight.rows, weight.cols}, {DType::kF32, DType::kF16, DType::kBF16}, {}, same(DType::kF32)};
    case WeightFormat::kFp8Block:
      return {{weight.rows, weight.cols},
              same(DType::kF8E4M3),
              {CeilDiv(weight.rows, weight.block_rows), CeilDiv(weight.cols, weight.block_cols)},
              {DType::kF8E8M0, DType::kF32, DType::kBF16}};
    case WeightFormat::kMxFp4:
      return {{weight.rows, weight.cols / 2},
              {DType::kI8, DType::kU8, DType::kU8},
              {weight.rows, weight.cols / kMxFp4Block},
              same(DType::kF8E8M0)};
    case WeightFormat::kNvFp4:
      return {{weight.rows, weight.cols / 2},
              {DType::kU8, DType::kI8, DType::kI8},
              {weight.rows, weight.cols / kNvFp4Block},
              same(DType::kF8E4M3)};
  }
  return {};
}

Status CheckOperand(std::string_view name, std::string_view operand, const TensorView& view,
                    const Shape& shape, const std::array<DType, 3>& dtypes) {
  if (view.is_null()) return InvalidArgument(fmt::format("{}: {}: absent", name, operand));
  if (view.shape != shape) {
    return InvalidArgument(
        fmt::format("{}: {}: shape {}, want {}", name, operand, view.shape.ToString(), shape.ToString()));
  }
  if (view.dtype != dtypes[0] && view.dtype != dtypes[1] && view.dtype != dtypes[2]) {
    std::string wanted(DTypeName(dtypes[0]));
    for (size_t i = 1; i < dtypes.size(); ++i) {
      if (dtypes[i] != dtypes[i - 1]) wanted += fmt::format(" or {}", DTypeName(dtypes[i]));
    }
    return InvalidArgument(
        fmt::format("{}: {}: dtype {}, want {}", name, operand, DTypeName(view.dtype), wanted));
  }
  if (!view.is_contiguous()) {
    return InvalidArgument(fmt::format("{}: {}: not contiguous, want row-major without gaps", name, operand));
  }
  return {};
}

// Tensors of a mapped file may start at any byte, so elements are read with memcpy.
template <typename T>
T Load(const TensorView& view, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(view.data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

float LoadFloat(const TensorView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kF32:
      return Load<float>(view, index);
    case DType::kF16:
      return FloatFromF16(Load<uint16_t>(view, index));
    case DType::kBF16:
      return FloatFromBf16(Load<uint16_t>(view, index));
    case DType::kF8E4M3:
      return FloatFromE4m3(Load<uint8_t>(view, index));
    case DType::kF8E8M0:
      return FloatFromE8m0(Load<uint8_t>(view, index));
    default:
      DSV4_CHECK(false) << "no number is stored as " << DTypeName(view.dtype);
  }
  return 0.0F;
}

void DequantizePlainRow(const Weight& weight, int64_t row, float* out) {
  const int64_t begin = row * weight.cols;
  switch (weight.data.dtype) {
    case DType::kF32:
      std::memcpy(out, static_cast<const std::byte*>(weight.data.data) + begin * 4,
                  static_cast<size_t>(weight.cols) * 4);
      return;
    case DType::kBF16:
      for (int64_t k = 0; k < weight.cols; ++k)
        out[k] = FloatFromBf16(Load<uint16_t>(weight.data, begin + k));
      return;
    default:
      for (int64_t k = 0; k < weight.cols; ++k) out[k] = LoadFloat(weight.data, begin + k);
  }
}

void DequantizeFp8Row(const Weight& weight, int64_t row, float* out) {
  const uint8_t* codes = weight.data.as<const uint8_t>() + row * weight.cols;
  const int64_t scale_begin = row / weight.block_rows * weight.scale.shape[1];
  for (int64_t begin = 0; begin < weight.cols; begin += weight.block_cols) {
    const float scale = LoadFloat(weight.scale, scale_begin + begin / weight.block_cols);
    const int64_t end = std::min(weight.cols, begin + weight.block_cols);
    for (int64_t k = begin; k < end; ++k) out[k] = FloatFromE4m3(codes[k]) * scale;
  }
}

// scale_of(index into the scale tensor) is the factor of one block.
template <typename ScaleOf>
void DequantizeFp4Row(const Weight& weight, int64_t row, int64_t block, ScaleOf scale_of, float* out) {
  const uint8_t* packed = weight.data.as<const uint8_t>() + row * (weight.cols / 2);
  const int64_t scale_begin = row * (weight.cols / block);
  for (int64_t begin = 0; begin < weight.cols; begin += block) {
    const float scale = scale_of(scale_begin + begin / block);
    std::array<float, 16> values = kE2m1Values;
    for (float& value : values) value *= scale;
    for (int64_t k = begin; k < begin + block; k += 2) {
      const uint8_t byte = packed[k / 2];
      out[k] = values[EvenE2m1(byte)];
      out[k + 1] = values[OddE2m1(byte)];
    }
  }
}

}  // namespace

std::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kPlain:
      return "plain";
    case WeightFormat::kFp8Block:
      return "fp8-block";
    case WeightFormat::kMxFp4:
      return "mxfp4";
    case WeightFormat::kNvFp4:
      return "nvfp4";
  }
  return "unknown";
}

Weight Weight::Rows(int64_t begin, int64_t end) const {
  DSV4_CHECK(0 <= begin && begin <= end && end <= rows && begin % block_rows == 0)
      << "rows [" << begin << ", " << end << ") of " << rows << " in blocks of " << block_rows;
  Weight part = *this;
  part.rows = end - begin;
  part.data = data.Rows(begin, end);
  if (!scale.is_null()) part.scale = scale.Rows(begin / block_rows, CeilDiv(end, block_rows));
  return part;
}

Status ValidateWeight(const Weight& weight, std::string_view name) {
  if (weight.rows <= 0 || weight.cols <= 0) {
    return InvalidArgument(
        fmt::format("{}: [{}, {}], want positive rows and columns", name, weight.rows, weight.cols));
  }
  const bool fp8 = weight.format == WeightFormat::kFp8Block;
  if (weight.block_rows < 1 || weight.block_cols < 1 ||
      (!fp8 && (weight.block_rows != 1 || weight.block_cols != 1))) {
    return InvalidArgument(fmt::format("{}: blocks of [{}, {}], want {}", name, weight.block_rows,
                                       weight.block_cols, fp8 ? "positive ones" : "[1, 1] for this format"));
  }
  const int64_t block = weight.format == WeightFormat::kMxFp4   ? kMxFp4Block
                        : weight.format == WeightFormat::kNvFp4 ? kNvFp4Block
                                                                : 1;
  if (weight.cols % block != 0) {
    return InvalidArgument(fmt::format("{}: {}, want a multiple of {} for {}", name,
                                       Counted(weight.cols, "column"), block,
                                       WeightFormatName(weight.format)));
  }
  if (weight.activation > ActivationQuant::kFp8Columns32) {
    return InvalidArgument(
        fmt::format("{}: unknown activation quantiser {}", name, static_cast<int>(weight.activation)));
  }
  const Expected expected = ExpectedLayout(weight);
  DSV4_RETURN_IF_ERROR(CheckOperand(name, "data", weight.data, expected.data, expected.data_dtypes));
  if (weight.format == WeightFormat::kPlain) {
    if (!weight.scale.is_null()) {
      return InvalidArgument(fmt::format("{}: scale: shape {}, want none for {}", name,
                                         weight.scale.shape.ToString(), DTypeName(weight.data.dtype)));
    }
    return {};
  }
  DSV4_RETURN_IF_ERROR(CheckOperand(name, "scale", weight.scale, expected.scale, expected.scale_dtypes));
  if (weight.data.device != weight.scale.device) {
    return InvalidArgument(fmt::format("{}: scale: on another device than the data", name));
  }
  return {};
}

Status ValidateScaleValues(const Weight& weight, std::string_view name) {
  if (weight.format == WeightFormat::kPlain) return {};
  if (weight.format == WeightFormat::kNvFp4 &&
      !(std::isfinite(weight.global_scale) && weight.global_scale > 0.0F)) {
    return DataLoss(
        fmt::format("{}: global scale {}, want a finite positive number", name, weight.global_scale));
  }
  const int64_t count = weight.scale.num_elements();
  if (ElementBytes(weight.scale.dtype) == 1) {
    // The common case in one pass over the bytes: e8m0 has one bad code, 255; an e4m3 scale may be 0x00 to
    // 0x7E.
    const uint8_t first_bad = weight.scale.dtype == DType::kF8E8M0 ? kE8m0NaN : kE4m3NaN;
    const uint8_t* codes = weight.scale.as<const uint8_t>();
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; ++i) bad |= static_cast<uint32_t>(codes[i] >= first_bad);
    if (bad == 0) return {};
  }
  for (int64_t i = 0; i < count; ++i) {
    const float scale = LoadFloat(weight.scale, i);
    // signbit: an NVFP4 block scale of -0 is not a scale either.
    if (!std::isfinite(scale) || std::signbit(scale)) {
      return DataLoss(fmt::format("{}: scale [{}, {}]: {}, want a finite number that is not negative", name,
                                  i / weight.scale.shape[1], i % weight.scale.shape[1], scale));
    }
  }
  return {};
}

void DequantizeRow(const Weight& weight, int64_t row, float* out) {
  DSV4_CHECK(0 <= row && row < weight.rows) << row << " of " << weight.rows;
  DSV4_CHECK(!weight.repacked) << "in an order that only a backend knows";
  switch (weight.format) {
    case WeightFormat::kPlain:
      return DequantizePlainRow(weight, row, out);
    case WeightFormat::kFp8Block:
      return DequantizeFp8Row(weight, row, out);
    case WeightFormat::kMxFp4:
      return DequantizeFp4Row(
          weight, row, kMxFp4Block, [&](int64_t i) { return LoadFloat(weight.scale, i); }, out);
    case WeightFormat::kNvFp4: {
      // In double the product of an e4m3 scale is exact. The division by a divisor is rounded once more
      // there, far below the one rounding to fp32.
      const double global = static_cast<double>(weight.global_scale);
      const auto scale_of = [&](int64_t i) {
        const double scale = static_cast<double>(LoadFloat(weight.scale, i));
        return static_cast<float>(weight.global_scale_divides ? scale / global : scale * global);
      };
      return DequantizeFp4Row(weight, row, kNvFp4Block, scale_of, out);
    }
  }
}

}  // namespace dsv4
