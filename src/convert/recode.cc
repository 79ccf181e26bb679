// Rows recoded between BF16, FP8, MXFP4 and NVFP4, exactly where scales allow, and comparison with the
// source.
#include "convert/recode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/number_formats.h"

namespace dsv4::convert {
namespace {

// Powers of two among the e4m3 block scales: 2^-9 (the smallest subnormal) to 2^8.
constexpr int kLeastScaleExponent = -9;
constexpr int kGreatestScaleExponent = 8;

const uint8_t* Bytes(const TensorView& view) { return static_cast<const uint8_t*>(view.data); }

// The exponent e of a positive power of two 2^e, nullopt for any other number.
std::optional<int> PowerOfTwoExponent(double value) {
  int exponent = 0;
  if (!(value > 0) || !std::isfinite(value) || std::frexp(value, &exponent) != 0.5) return std::nullopt;
  return exponent - 1;
}

// The smallest e for which max_magnitude / 2^e is an e2m1 number or below one: at most 6.
int LeastExponent(float max_magnitude) {
  int exponent = 0;
  const float fraction = std::frexp(max_magnitude, &exponent);  // In [0.5, 1).
  return fraction * 8.0F <= kE2m1Max ? exponent - 3 : exponent - 2;
}

float MaxMagnitude(std::span<const float> values) {
  float max = 0.0F;
  for (const float value : values) max = std::max(max, std::fabs(value));
  return max;
}

// The e2m1 code of value / 2^exponent, nullopt when the quotient is none. Exact: double has room for both.
std::optional<uint8_t> ExactCode(float value, double reciprocal) {
  const double quotient = static_cast<double>(value) * reciprocal;
  if (std::fabs(quotient) > static_cast<double>(kE2m1Max)) return std::nullopt;
  const uint8_t code = E2m1FromFloat(static_cast<float>(quotient));
  if (static_cast<double>(FloatFromE2m1(code)) != quotient) return std::nullopt;
  return code;
}

bool IsExact(std::span<const float> block, int exponent) {
  const double reciprocal = std::ldexp(1.0, -exponent);
  return std::all_of(block.begin(), block.end(),
                     [&](float value) { return ExactCode(value, reciprocal).has_value(); });
}

// Whether all codes of packed bytes are 0 or -0.
bool AllZeroCodes(const uint8_t* packed, int64_t num_bytes) {
  return std::all_of(packed, packed + num_bytes, [](uint8_t byte) { return (byte & 0x77U) == 0; });
}

void SurveyMxFp4(const Weight& source, int64_t begin, int64_t end, ScaleSurvey& survey) {
  const int64_t blocks = source.cols / kMxFp4Block;
  for (int64_t block = begin * blocks; block < end * blocks; ++block) {
    const uint8_t scale = Bytes(source.scale)[block];
    const bool zero = AllZeroCodes(Bytes(source.data) + block * (kMxFp4Block / 2), kMxFp4Block / 2);
    if (!zero) survey.used.Add(scale - kE8m0Bias);
    if (!zero || scale != 0) survey.stored.Add(scale - kE8m0Bias);
  }
}

void SurveyValues(std::span<const float> values, ScaleSurvey& survey) {
  for (size_t begin = 0; begin < values.size() && survey.power_of_two; begin += kNvFp4Block) {
    const std::span<const float> block = values.subspan(begin, kNvFp4Block);
    const float max = MaxMagnitude(block);
    if (max == 0.0F) continue;
    const int exponent = LeastExponent(max);
    survey.power_of_two = IsExact(block, exponent);
    survey.used.Add(exponent);
  }
  survey.stored = survey.used;
}

std::optional<int> ExponentOfCommonScale(const ScaleSurvey::Exponents& exponents) {
  if (exponents.empty) return 0;
  // A global scale below the normal numbers would make other readers lose bits.
  const int global = exponents.greatest - kGreatestScaleExponent;
  if (exponents.greatest - exponents.least > kGreatestScaleExponent - kLeastScaleExponent || global < -126)
    return std::nullopt;
  return global;
}

// --- recoding ---------------------------------------------------------------------------------------------------------

RecodedRows ToBytes(const QuantizedMatrix& matrix) {
  const auto bytes = [](const std::vector<uint8_t>& from) {
    const std::span<const std::byte> span = std::as_bytes(std::span(from));
    return std::vector<std::byte>(span.begin(), span.end());
  };
  return {bytes(matrix.data), bytes(matrix.scale)};
}

// The block scale 2^exponent, or 0 when e4m3 has no such number (beside a block of zeros).
std::byte E4m3PowerOfTwo(int exponent) {
  if (exponent < kLeastScaleExponent || exponent > kGreatestScaleExponent) return std::byte{0};
  return static_cast<std::byte>(E4m3FromFloat(std::ldexp(1.0F, exponent)));
}

// Codes stay; each scale byte becomes two equal block scales.
RecodedRows TranscodeMxFp4(const Weight& source, int64_t begin, int64_t end, int global_exponent) {
  RecodedRows rows;
  const std::byte* data = static_cast<const std::byte*>(source.data.data);
  rows.data.assign(data + begin * source.cols / 2, data + end * source.cols / 2);
  const int64_t blocks = source.cols / kMxFp4Block;
  for (int64_t block = begin * blocks; block < end * blocks; ++block) {
    const uint8_t code = Bytes(source.scale)[block];
    const bool zero = AllZeroCodes(Bytes(source.data) + block * (kMxFp4Block / 2), kMxFp4Block / 2);
    // The byte 0 beside zeros is the marker of an empty block; the other way around 0 gives it back.
    const std::byte scale =
        code == 0 && zero ? std::byte{0} : E4m3PowerOfTwo(code - kE8m0Bias - global_exponent);
    rows.scale.push_back(scale);
    rows.scale.push_back(scale);
  }
  return rows;
}

RecodedRows TranscodeValues(std::span<const float> values, int global_exponent) {
  RecodedRows rows;
  for (size_t begin = 0; begin < values.size(); begin += kNvFp4Block) {
    const std::span<const float> block = values.subspan(begin, kNvFp4Block);
    const float max = MaxMagnitude(block);
    const int exponent = max == 0.0F ? global_exponent : LeastExponent(max);
    rows.scale.push_back(max == 0.0F ? std::byte{0} : E4m3PowerOfTwo(exponent - global_exponent));
    const double reciprocal = std::ldexp(1.0, -exponent);
    for (size_t i = 0; i < block.size(); i += 2) {
      // The survey has seen that every value has a code.
      rows.data.push_back(static_cast<std::byte>(
          PackE2m1(*ExactCode(block[i], reciprocal), *ExactCode(block[i + 1], reciprocal))));
    }
  }
  return rows;
}

// Whether an e4m3 block scale is 2^e, and which.
std::optional<int> BlockScaleExponent(uint8_t code) {
  return PowerOfTwoExponent(static_cast<double>(FloatFromE4m3(code)));
}

// Two NVFP4 blocks side by side as one MXFP4 block with the same codes; false when their scales do not allow
// it.
bool JoinNvFp4Blocks(const uint8_t* codes, const uint8_t* scales, std::optional<int> global_exponent,
                     std::byte* data, std::byte& scale) {
  constexpr int64_t kHalfBytes = kNvFp4Block / 2;
  if (!global_exponent) return false;
  std::optional<int> common;
  bool any_used = false;
  for (int64_t half = 0; half < 2; ++half) {
    const bool used = scales[half] != 0 && !AllZeroCodes(codes + half * kHalfBytes, kHalfBytes);
    if (!used) continue;
    const std::optional<int> exponent = BlockScaleExponent(scales[half]);
    if (!exponent || (common && *common != *exponent)) return false;
    common = exponent;
    any_used = true;
  }
  // A block of zeros keeps its scale where it can, so that a transcode comes back byte for byte.
  if (!any_used && scales[0] == scales[1]) common = BlockScaleExponent(scales[0]);
  const int code = common ? *common + *global_exponent + kE8m0Bias : 0;
  if (code < 0 || code >= kE8m0NaN) {
    if (any_used) return false;
    scale = std::byte{0};
  } else {
    scale = static_cast<std::byte>(code);
  }
  for (int64_t i = 0; i < 2 * kHalfBytes; ++i) {
    // Under a scale of 0 any code means 0; under the common scale it would not.
    const uint8_t kept = scales[i / kHalfBytes] == 0 ? codes[i] & 0x88U : codes[i];
    data[i] = static_cast<std::byte>(kept);
  }
  return true;
}

RecodedRows NvFp4ToMxFp4(const Weight& source, int64_t begin, int64_t end, std::span<const float> values,
                         BlockScaleRule rule) {
  const double global = static_cast<double>(source.global_scale);
  const std::optional<int> global_exponent =
      PowerOfTwoExponent(source.global_scale_divides ? 1 / global : global);
  constexpr int64_t kBlockBytes = kMxFp4Block / 2;
  const int64_t blocks = source.cols / kMxFp4Block;
  RecodedRows rows;
  rows.data.resize(static_cast<size_t>((end - begin) * blocks * kBlockBytes));
  rows.scale.resize(static_cast<size_t>((end - begin) * blocks));
  for (int64_t i = 0; i < (end - begin) * blocks; ++i) {
    const int64_t block = begin * blocks + i;
    std::byte* data = rows.data.data() + i * kBlockBytes;
    std::byte& scale = rows.scale[static_cast<size_t>(i)];
    if (JoinNvFp4Blocks(Bytes(source.data) + block * kBlockBytes, Bytes(source.scale) + block * 2,
                        global_exponent, data, scale))
      continue;
    const RecodedRows rounded = ToBytes(QuantizeMxFp4(
        values.subspan(static_cast<size_t>(i * kMxFp4Block), kMxFp4Block), 1, kMxFp4Block, rule));
    std::memcpy(data, rounded.data.data(), rounded.data.size());
    scale = rounded.scale[0];
  }
  return rows;
}

Result<RecodedRows> ToBf16(std::span<const float> values, int64_t begin, int64_t cols,
                           std::string_view name) {
  RecodedRows rows;
  rows.data.resize(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = Bf16FromFloat(values[i]);
    if (!std::isfinite(FloatFromBf16(bits))) {
      return Error(OutOfRange(fmt::format("tensor {}: row {}, column {}: {} is too large for bf16", name,
                                          begin + static_cast<int64_t>(i) / cols,
                                          static_cast<int64_t>(i) % cols, values[i])));
    }
    std::memcpy(rows.data.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return rows;
}

// --- comparing --------------------------------------------------------------------------------------------------------

// Columns that vanish together when their scale is too small for them.
int64_t BlockColumns(const RecodeTarget& target) {
  switch (target.format) {
    case WeightFormat::kPlain:
      return 1;
    case WeightFormat::kFp8Block:
      return target.block_cols;
    case WeightFormat::kMxFp4:
      return kMxFp4Block;
    case WeightFormat::kNvFp4:
      return kNvFp4Block;
  }
  return 1;
}

// Whether element i is the format's largest, and by which factor past it a number would round to the next
// one.
bool IsLargest(const RecodedRows& rows, size_t i, WeightFormat format) {
  switch (format) {
    case WeightFormat::kPlain:
      return false;
    case WeightFormat::kFp8Block:
      return (std::to_integer<unsigned>(rows.data[i]) & 0x7FU) == 0x7EU;
    case WeightFormat::kMxFp4:
    case WeightFormat::kNvFp4:
      return ((std::to_integer<unsigned>(rows.data[i / 2]) >> (i % 2 * 4)) & 7U) == 7U;
  }
  return false;
}

}  // namespace

void ScaleSurvey::Exponents::Add(int exponent) {
  least = empty ? exponent : std::min(least, exponent);
  greatest = empty ? exponent : std::max(greatest, exponent);
  empty = false;
}

void ScaleSurvey::Exponents::Merge(const Exponents& other) {
  if (other.empty) return;
  Add(other.least);
  Add(other.greatest);
}

void ScaleSurvey::Merge(const ScaleSurvey& other) {
  max_magnitude = std::max(max_magnitude, other.max_magnitude);
  power_of_two &= other.power_of_two;
  used.Merge(other.used);
  stored.Merge(other.stored);
}

ScaleSurvey SurveyRows(const Weight& source, int64_t begin, int64_t end, std::span<const float> values) {
  ScaleSurvey survey;
  survey.max_magnitude = MaxMagnitude(values);
  if (source.format == WeightFormat::kMxFp4) {
    SurveyMxFp4(source, begin, end, survey);
  } else {
    SurveyValues(values, survey);
  }
  return survey;
}

int64_t RecodeTarget::DataRowBytes(int64_t cols) const {
  switch (format) {
    case WeightFormat::kPlain:
      return cols * 2;
    case WeightFormat::kFp8Block:
      return cols;
    case WeightFormat::kMxFp4:
    case WeightFormat::kNvFp4:
      return cols / 2;
  }
  return 0;
}

int64_t RecodeTarget::ScaleRowBytes(int64_t cols) const {
  return format == WeightFormat::kPlain ? 0 : (cols + BlockColumns(*this) - 1) / BlockColumns(*this);
}

void ChooseGlobalScale(const ScaleSurvey& survey, RecodeTarget& target) {
  target.global_exponent.reset();
  if (survey.power_of_two) {
    target.global_exponent = ExponentOfCommonScale(survey.stored);
    if (!target.global_exponent) target.global_exponent = ExponentOfCommonScale(survey.used);
  }
  target.global_scale = target.global_exponent ? std::ldexp(1.0F, *target.global_exponent)
                                               : NvFp4GlobalScale(survey.max_magnitude);
}

Result<RecodedRows> RecodeRows(const Weight& source, int64_t begin, int64_t end,
                               std::span<const float> values, const RecodeTarget& target,
                               std::string_view name) {
  const int64_t num_rows = end - begin;
  DSV4_CHECK(static_cast<int64_t>(values.size()) == num_rows * source.cols)
      << name << " " << values.size() << " values";
  switch (target.format) {
    case WeightFormat::kPlain:
      return ToBf16(values, begin, source.cols, name);
    case WeightFormat::kFp8Block:
      return ToBytes(QuantizeFp8Block(values, num_rows, source.cols, target.block_rows, target.block_cols));
    case WeightFormat::kMxFp4:
      if (source.format == WeightFormat::kNvFp4) return NvFp4ToMxFp4(source, begin, end, values, target.rule);
      return ToBytes(QuantizeMxFp4(values, num_rows, source.cols, target.rule));
    case WeightFormat::kNvFp4:
      if (!target.global_exponent)
        return ToBytes(QuantizeNvFp4(values, num_rows, source.cols, target.global_scale, target.rule));
      if (source.format == WeightFormat::kMxFp4)
        return TranscodeMxFp4(source, begin, end, *target.global_exponent);
      return TranscodeValues(values, *target.global_exponent);
  }
  return Error(Internal("a weight format without a writer"));
}

double Comparison::relative_rms() const {
  return error_squares == 0 ? 0 : std::sqrt(error_squares / value_squares);
}

void Comparison::Merge(const Comparison& other) {
  num_values += other.num_values;
  num_different += other.num_different;
  num_clipped += other.num_clipped;
  num_vanished += other.num_vanished;
  error_squares += other.error_squares;
  value_squares += other.value_squares;
}

Comparison CompareRows(std::span<const float> values, int64_t cols, const RecodedRows& written,
                       const RecodeTarget& target) {
  const int64_t num_rows = static_cast<int64_t>(values.size()) / cols;
  Weight weight = {.format = target.format,
                   .rows = num_rows,
                   .cols = cols,
                   .block_rows = target.block_rows,
                   .block_cols = target.block_cols,
                   .global_scale = target.global_scale};
  SetViews(written.data.data(), written.scale.data(), weight);
  const int64_t block = BlockColumns(target);
  // Past the largest element, a longer grid would go on with 8 after 6 and 480 after 448. The borders
  // themselves, 7 and 464, round down; scales are rounded numbers, so there is a little slack.
  const float clip_factor =
      (target.format == WeightFormat::kFp8Block ? 464.0F / 448.0F : 7.0F / 6.0F) * 1.00001F;
  Comparison comparison;
  comparison.num_values = static_cast<int64_t>(values.size());
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < num_rows; ++r) {
    DequantizeRow(weight, r, row.data());
    const std::span<const float> source = values.subspan(static_cast<size_t>(r * cols), row.size());
    for (int64_t begin = 0; begin < cols; begin += block) {
      bool had_values = false;
      bool has_values = false;
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(std::min(cols, begin + block));
           ++i) {
        const double value = static_cast<double>(source[i]);
        const double error = static_cast<double>(row[i]) - value;
        had_values |= source[i] != 0.0F;
        has_values |= row[i] != 0.0F;
        comparison.value_squares += value * value;
        if (source[i] == row[i]) continue;
        ++comparison.num_different;
        comparison.error_squares += error * error;
        if (std::fabs(source[i]) > clip_factor * std::fabs(row[i]) &&
            IsLargest(written, static_cast<size_t>(r * cols) + i, target.format))
          ++comparison.num_clipped;
      }
      if (had_values && !has_values) ++comparison.num_vanished;
    }
  }
  return comparison;
}

}  // namespace dsv4::convert
