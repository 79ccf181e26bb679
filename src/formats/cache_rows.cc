// Packing and unpacking of one cache row by format, with groups, scales and values off the grid refused.
#include "formats/cache_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "formats/number_formats.h"

namespace dsv4 {
namespace {

constexpr uint32_t kSignBit = 0x80000000U;

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & ~kSignBit; }

float ScaleOf(const CacheFormat& format, std::byte code) {
  const auto bits = static_cast<uint8_t>(code);
  return format.scale == CacheScale::kE8m0 ? FloatFromE8m0(bits) : FloatFromE4m3(bits);
}

// The e8m0 code of the smallest power of two of which `largest` times it is at least `max` > 0. Subnormal
// numbers included.
uint8_t SmallestE8m0(float max, float largest) {
  int exponent = 0;
  const float mantissa = std::frexp(max, &exponent);  // In [1/2, 1).
  int largest_exponent = 0;
  const float largest_mantissa = std::frexp(largest, &largest_exponent);
  const int power = exponent - largest_exponent + (mantissa > largest_mantissa ? 1 : 0);
  return static_cast<uint8_t>(std::clamp(power + kE8m0Bias, 0, kE8m0NaN - 1));
}

// 1 / scale, exact for a power of two.
float Inverse(uint8_t e8m0) { return FloatFromE8m0(static_cast<uint8_t>(2 * kE8m0Bias - e8m0)); }

// Codes of one group, `values` times `inverse` being what they stand for; the number of the first value that
// has none, or the group's size.
size_t EncodeE4m3(std::span<const float> values, float inverse, std::byte* codes) {
  constexpr float kSmallestNormal = 0x1p-6F;
  constexpr float kSubnormalsPerUnit = 512.0F;
  uint32_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const float magnitude = std::bit_cast<float>(bits & ~kSignBit) * inverse;
    const bool is_nan = (bits & ~kSignBit) > 0x7F800000U;
    const uint32_t scaled = std::bit_cast<uint32_t>(magnitude);
    const bool is_normal = scaled >= std::bit_cast<uint32_t>(kSmallestNormal);
    // 0 for what is no subnormal, so that the conversion is defined.
    const float in_steps = is_normal ? 0.0F : magnitude * kSubnormalsPerUnit;
    const auto steps = static_cast<int32_t>(in_steps);
    const uint32_t normal = (scaled >> 20) - (120U << 3);
    const bool fits = is_normal ? (scaled & 0xFFFFFU) == 0 && scaled <= std::bit_cast<uint32_t>(kE4m3Max)
                                : static_cast<float>(steps) == in_steps;
    wrong |= fits || is_nan ? 0U : 1U;
    const uint32_t code = is_nan ? kE4m3NaN : is_normal ? normal : static_cast<uint32_t>(steps);
    codes[i] = static_cast<std::byte>((code & 0x7FU) | bits >> 31 << 7);
  }
  if (wrong == 0) return values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = std::fabs(values[i]) * inverse;
    if (!std::isnan(values[i]) && FloatFromE4m3(E4m3FromFloat(value)) != value) return i;
  }
  return values.size();
}

// The same for two codes a byte; a value that is NaN has none.
size_t EncodeE2m1(std::span<const float> values, float scale, std::byte* codes) {
  for (size_t i = 0; i < values.size(); ++i) {
    // The quotient of a value on the grid is exact, and rounding leaves it.
    const double quotient = static_cast<double>(values[i]) / static_cast<double>(scale);
    const uint8_t code = E2m1FromFloat(static_cast<float>(quotient));
    if (static_cast<double>(FloatFromE2m1(code)) != quotient) return i;
    const auto nibble = static_cast<std::byte>(code);
    codes[i / 2] = i % 2 == 0 ? nibble : codes[i / 2] | nibble << 4;
  }
  return values.size();
}

// One group; the number of the first value that the format cannot hold, or the group's size.
size_t PackGroup(const CacheFormat& format, std::span<const float> values, std::byte* codes,
                 std::byte* scale) {
  const bool e4m3 = format.code == CacheCode::kE4m3;
  uint32_t max_bits = 0;  // Largest finite magnitude; magnitudes compare as integers.
  size_t num_nan = 0;
  for (const float value : values) {
    const uint32_t bits = MagnitudeBits(value);
    max_bits = std::max(max_bits, bits < 0x7F800000U ? bits : 0U);
    num_nan += bits > 0x7F800000U ? 1 : 0;
  }
  const float max = std::bit_cast<float>(max_bits);
  if (!e4m3 && num_nan > 0) {
    if (num_nan < values.size()) {
      return static_cast<size_t>(
          std::find_if(values.begin(), values.end(), [](float value) { return !std::isnan(value); }) -
          values.begin());
    }
    *scale = static_cast<std::byte>(format.scale == CacheScale::kE8m0 ? kE8m0NaN : kE4m3NaN);
    std::fill_n(codes, values.size() / 2, std::byte{0});
    return values.size();
  }
  if (format.scale == CacheScale::kE8m0) {
    const uint8_t code = max == 0.0F ? kE8m0Bias : SmallestE8m0(max, e4m3 ? kE4m3Max : kE2m1Max);
    *scale = static_cast<std::byte>(code);
    return e4m3 ? EncodeE4m3(values, Inverse(code), codes) : EncodeE2m1(values, FloatFromE8m0(code), codes);
  }
  // The largest value is some code times the scale, which tells the scale if the code is known.
  if (max == 0.0F) {
    *scale = static_cast<std::byte>(E4m3FromFloat(1.0F));
    return EncodeE2m1(values, 1.0F, codes);
  }
  size_t best = 0;
  for (uint8_t code = 7; code >= 1; --code) {
    const float quotient = max / FloatFromE2m1(code);
    const uint8_t of_code = E4m3FromFloat(quotient, Overflow::kNaN);
    const float value = FloatFromE4m3(of_code);
    if (value == 0.0F ||
        static_cast<double>(value) * static_cast<double>(FloatFromE2m1(code)) != static_cast<double>(max))
      continue;
    *scale = static_cast<std::byte>(of_code);
    const size_t packed = EncodeE2m1(values, value, codes);
    if (packed == values.size()) return packed;
    best = std::max(best, packed);
  }
  return best;
}

std::string_view NameOf(CacheCode code) { return code == CacheCode::kE4m3 ? "E4M3" : "E2M1"; }
std::string_view NameOf(CacheScale scale) { return scale == CacheScale::kE8m0 ? "E8M0" : "E4M3"; }

Status NotOnGrid(const CacheFormat& format, size_t column, float value) {
  return InvalidArgument(fmt::format("cached row, column {}: {} is no number of the format {}", column, value,
                                     ToString(format)));
}

}  // namespace

std::string ToString(const CacheFormat& format) {
  if (!format.packed()) return std::string(DTypeName(format.dtype));
  return fmt::format("{} x {} / {} {} + {}", format.num_coded, NameOf(format.code), format.group,
                     NameOf(format.scale), DTypeName(format.dtype));
}

Status Validate(const CacheFormat& format, int64_t width) {
  const auto fail = [&](std::string_view what, int64_t got, std::string_view want) {
    return InvalidArgument(
        fmt::format("cache format {}, {}: got {}, want {}", ToString(format), what, got, want));
  };
  if (format.dtype != DType::kBF16 && format.dtype != DType::kF32) {
    return InvalidArgument(
        fmt::format("cache format, dtype: got {}, want BF16 or F32", DTypeName(format.dtype)));
  }
  if (width < 1) return fail("width", width, "at least 1");
  if (format.alignment < 1 || format.alignment > 256) return fail("alignment", format.alignment, "1 to 256");
  if (!format.packed()) {
    if (format.num_coded != 0) return fail("coded columns", format.num_coded, "0 without codes");
    if (format.group != 0) return fail("group", format.group, "0 without codes");
    return {};
  }
  if (format.code == CacheCode::kE4m3 && format.scale == CacheScale::kE4m3)
    return fail("scales of E4M3 codes", static_cast<int64_t>(format.scale), "E8M0");
  if (format.num_coded < 1 || format.num_coded > width)
    return fail("coded columns", format.num_coded, fmt::format("1 to the width {}", width));
  if (format.group < 2 || format.group % 2 != 0 || format.num_coded % format.group != 0)
    return fail("group", format.group,
                fmt::format("an even part of {}", Counted(format.num_coded, "column")));
  if (format.num_coded < width && (format.CodeBytes() % ElementBytes(format.dtype) != 0 ||
                                   format.alignment % ElementBytes(format.dtype) != 0)) {
    return fail("bytes of codes", format.CodeBytes(), "whole elements of the columns behind them");
  }
  return {};
}

Status PackRow(const CacheFormat& format, std::span<const float> values, std::byte* row) {
  const auto width = static_cast<int64_t>(values.size());
  const auto num_coded = static_cast<size_t>(format.num_coded);
  const auto group = static_cast<size_t>(format.group);
  std::byte* const scales = row + format.ScaleBegin(width);
  for (size_t begin = 0; begin < num_coded; begin += group) {
    const std::span<const float> of_group = values.subspan(begin, group);
    std::byte* const codes = row + (format.code == CacheCode::kE2m1 ? begin / 2 : begin);
    const size_t packed = PackGroup(format, of_group, codes, scales + begin / group);
    if (packed < group) return NotOnGrid(format, begin + packed, of_group[packed]);
  }
  std::byte* const rest = row + format.CodeBytes();
  for (size_t i = num_coded; i < values.size(); ++i) {
    if (format.dtype == DType::kF32) {
      std::memcpy(rest + (i - num_coded) * sizeof(float), &values[i], sizeof(float));
      continue;
    }
    const uint16_t code = Bf16FromFloat(values[i]);
    if (FloatFromBf16(code) != values[i] && !std::isnan(values[i])) return NotOnGrid(format, i, values[i]);
    std::memcpy(rest + (i - num_coded) * sizeof(code), &code, sizeof(code));
  }
  const int64_t used = format.ScaleBegin(width) + format.NumScales();
  std::memset(row + used, 0, static_cast<size_t>(format.RowBytes(width) - used));
  return {};
}

void UnpackRow(const CacheFormat& format, const std::byte* row, std::span<float> values) {
  const auto width = static_cast<int64_t>(values.size());
  const auto num_coded = static_cast<size_t>(format.num_coded);
  const auto group = static_cast<size_t>(format.group);
  const std::byte* const scales = row + format.ScaleBegin(width);
  for (size_t begin = 0; begin < num_coded; begin += group) {
    const float scale = ScaleOf(format, scales[begin / group]);
    if (format.code == CacheCode::kE4m3) {
      for (size_t i = begin; i < begin + group; ++i)
        values[i] = FloatFromE4m3(static_cast<uint8_t>(row[i])) * scale;
    } else {
      for (size_t i = begin; i < begin + group; i += 2) {
        const auto pair = static_cast<uint8_t>(row[i / 2]);
        values[i] = FloatFromE2m1(EvenE2m1(pair)) * scale;
        values[i + 1] = FloatFromE2m1(OddE2m1(pair)) * scale;
      }
    }
  }
  const std::byte* const rest = row + format.CodeBytes();
  for (size_t i = num_coded; i < values.size(); ++i) {
    if (format.dtype == DType::kF32) {
      std::memcpy(&values[i], rest + (i - num_coded) * sizeof(float), sizeof(float));
    } else {
      uint16_t code = 0;
      std::memcpy(&code, rest + (i - num_coded) * sizeof(code), sizeof(code));
      values[i] = FloatFromBf16(code);
    }
  }
}

}  // namespace dsv4
