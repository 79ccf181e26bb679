// Format of a linear from its tensors' dtypes, shapes and suffixes, and slices of it for shards.
#include "model/checkpoint/stored_linear.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/text.h"
#include "formats/number_formats.h"

namespace dsv4::model {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string ShapeText(const std::vector<int64_t>& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

int64_t NumElements(const TensorPart& part) {
  int64_t count = 1;
  for (const int64_t dim : part.dims) count *= dim;
  return count;
}

// "tensor X: F8_E4M3 [4, 4]".
std::string Found(const TensorPart& part) {
  return fmt::format("tensor {}: {} {}", part.tensor->name, part.tensor->dtype_name, ShapeText(part.dims));
}

Status CheckShape(const TensorPart& part, int64_t rows, int64_t cols, std::string_view reason) {
  if (part.dims == std::vector<int64_t>{rows, cols}) return {};
  return InvalidArgument(fmt::format("tensor {}: shape {}, {} wants [{}, {}]", part.tensor->name,
                                     ShapeText(part.dims), reason, rows, cols));
}

Status DescribePlain(const LinearParts& parts, StoredLinear& out) {
  for (const TensorPart* part : {&parts.scale, &parts.multiplier, &parts.divisor}) {
    if (part->tensor != nullptr) {
      return InvalidArgument(
          fmt::format("{}: a scale, but {} is not quantised", Found(*part), Found(parts.weight)));
    }
  }
  out.format = WeightFormat::kPlain;
  return CheckShape(parts.weight, out.rows, out.cols, "config");
}

// The power of two of which `count` blocks cover `size`; 0: there is none. Other than where one block covers
// all, no two are alike.
int64_t BlockOf(int64_t size, int64_t count) {
  for (int64_t block = 1; block < 2 * size; block *= 2) {
    if (CeilDiv(size, block) == count) return block;
  }
  return 0;
}

// The blocks that this scale tensor's shape means: the configured ones, one per row, or one for all. Where
// the config names none, they are blocks of powers of two.
Status ReadScaleGrid(const TensorPart& scale, const QuantizationConfig& quantization, StoredLinear& out) {
  constexpr int64_t kDefaultBlock = 128;
  const int64_t block_rows = quantization.weight_block_rows.value_or(kDefaultBlock);
  const int64_t block_cols = quantization.weight_block_cols.value_or(kDefaultBlock);
  const std::vector<int64_t> grid = {CeilDiv(out.rows, block_rows), CeilDiv(out.cols, block_cols)};
  const bool per_row =
      scale.dims == std::vector<int64_t>{out.rows, 1} || scale.dims == std::vector<int64_t>{out.rows};
  if (scale.dims == grid) {
    out.block_rows = block_rows;
    out.block_cols = block_cols;
  } else if (NumElements(scale) == 1) {
    out.block_rows = out.rows;
    out.block_cols = out.cols;
  } else if (per_row) {
    out.block_rows = 1;
    out.block_cols = out.cols;
  } else if (!quantization.weight_block_rows && scale.dims.size() == 2 &&
             BlockOf(out.rows, scale.dims[0]) > 0 && BlockOf(out.cols, scale.dims[1]) > 0) {
    out.block_rows = BlockOf(out.rows, scale.dims[0]);
    out.block_cols = BlockOf(out.cols, scale.dims[1]);
  } else {
    return InvalidArgument(fmt::format(
        "tensor {}: shape {}, weight_block_size [{}, {}] of a [{}, {}] weight wants {}", scale.tensor->name,
        ShapeText(scale.dims), block_rows, block_cols, out.rows, out.cols, ShapeText(grid)));
  }
  return {};
}

Status DescribeFp8(const LinearParts& parts, const QuantizationConfig& quantization, StoredLinear& out) {
  out.format = WeightFormat::kFp8Block;
  DSV4_RETURN_IF_ERROR(CheckShape(parts.weight, out.rows, out.cols, "config"));
  if (parts.scale.tensor == nullptr) {
    return InvalidArgument(fmt::format("{}: has no scale beside it, FP8 wants one", Found(parts.weight)));
  }
  if (parts.multiplier.tensor != nullptr || parts.divisor.tensor != nullptr) {
    return InvalidArgument(
        fmt::format("{}: has a global scale beside it, which only 4-bit weights have", Found(parts.weight)));
  }
  const std::optional<DType> dtype = parts.scale.tensor->dtype;
  if (dtype == DType::kF8E8M0 || dtype == DType::kU8) {
    out.scale_dtype = DType::kF8E8M0;
  } else if (dtype == DType::kF32 || dtype == DType::kBF16) {
    out.scale_dtype = *dtype;
  } else {
    return InvalidArgument(fmt::format("{}: FP8 scales want F8_E8M0, F32 or BF16", Found(parts.scale)));
  }
  return ReadScaleGrid(parts.scale, quantization, out);
}

Status DescribeFourBit(const LinearParts& parts, StoredLinear& out) {
  const bool nvfp4 = parts.multiplier.tensor != nullptr || parts.divisor.tensor != nullptr;
  out.format = nvfp4 ? WeightFormat::kNvFp4 : WeightFormat::kMxFp4;
  const std::string_view name = WeightFormatName(out.format);
  const int64_t block = nvfp4 ? kNvFp4Block : kMxFp4Block;
  if (parts.scale.tensor == nullptr) {
    return InvalidArgument(
        fmt::format("{}: has no block scales beside it, {} wants them", Found(parts.weight), name));
  }
  if (out.cols % block != 0) {
    return InvalidArgument(fmt::format("{}: {}, {} wants a multiple of {}", Found(parts.weight),
                                       Counted(out.cols, "column"), name, block));
  }
  DSV4_RETURN_IF_ERROR(
      CheckShape(parts.weight, out.rows, out.cols / 2, fmt::format("{} (two elements a byte)", name)));
  const std::optional<DType> dtype = parts.scale.tensor->dtype;
  const bool dtype_fits = nvfp4 ? dtype == DType::kF8E4M3 : dtype == DType::kF8E8M0 || dtype == DType::kU8;
  if (!dtype_fits) {
    return InvalidArgument(
        fmt::format("{}: {} block scales want {}", Found(parts.scale), name, nvfp4 ? "F8_E4M3" : "F8_E8M0"));
  }
  out.scale_dtype = nvfp4 ? DType::kF8E4M3 : DType::kF8E8M0;
  DSV4_RETURN_IF_ERROR(CheckShape(parts.scale, out.rows, out.cols / block, name));
  out.block_rows = out.block_cols = 1;  // Weight's convention for formats whose block is fixed.
  if (!nvfp4) return {};

  if (parts.multiplier.tensor != nullptr && parts.divisor.tensor != nullptr) {
    return InvalidArgument(fmt::format("{}: two global scales, this and {}", Found(parts.multiplier),
                                       parts.divisor.tensor->name));
  }
  out.global_scale_divides = parts.divisor.tensor != nullptr;
  const TensorPart& global = out.global_scale_divides ? parts.divisor : parts.multiplier;
  if (global.tensor->dtype != DType::kF32 || NumElements(global) != 1) {
    return InvalidArgument(fmt::format("{}: a global scale wants one F32", Found(global)));
  }
  out.global_scale = global.bytes;
  return {};
}

Result<TensorView> Align(std::span<const std::byte> bytes, DType dtype, Shape shape,
                         std::vector<Buffer>& copies) {
  DSV4_ASSIGN_OR_RETURN(const io::AlignedTensor aligned, io::AlignTensor(bytes, dtype, shape));
  if (aligned.copy) copies.push_back(aligned.copy);
  return aligned.view;
}

}  // namespace

TensorPart TensorPart::Whole(const io::StoredTensor* tensor) {
  if (tensor == nullptr) return {};
  return {tensor, tensor->dims, tensor->bytes};
}

Result<TensorPart> TensorPart::Slice(const io::StoredTensor* tensor, int64_t index, int64_t count) {
  if (tensor == nullptr) return TensorPart();
  TensorPart whole = Whole(tensor);
  if (NumElements(whole) == 1) return whole;
  if (whole.dims.empty() || whole.dims[0] != count) {
    return Error(InvalidArgument(
        fmt::format("{}: want {} in the first dimension", Found(whole), Counted(count, "expert"))));
  }
  const size_t bytes_each = whole.bytes.size() / static_cast<size_t>(count);
  return TensorPart{tensor,
                    {whole.dims.begin() + 1, whole.dims.end()},
                    whole.bytes.subspan(static_cast<size_t>(index) * bytes_each, bytes_each)};
}

std::string StoredLinear::FormatName() const {
  if (format == WeightFormat::kPlain) {
    return data_dtype == DType::kF32 ? "f32" : data_dtype == DType::kF16 ? "f16" : "bf16";
  }
  if (format != WeightFormat::kFp8Block) return std::string(WeightFormatName(format));
  return fmt::format("{} [{}, {}] {}", WeightFormatName(format), block_rows, block_cols,
                     DTypeName(scale_dtype));
}

Result<StoredLinear> StoredLinear::Rows(int64_t begin, int64_t end) const {
  StoredLinear part = *this;
  part.rows = end - begin;
  const auto rows_of = [](std::span<const std::byte> bytes, int64_t total, int64_t from, int64_t to) {
    const size_t row_bytes = bytes.size() / static_cast<size_t>(total);
    return bytes.subspan(static_cast<size_t>(from) * row_bytes, static_cast<size_t>(to - from) * row_bytes);
  };
  part.data = rows_of(data, rows, begin, end);
  if (scale_rows == 0) return part;
  if (scale_rows == 1) {  // One row of scales serves any rows.
    part.block_rows = part.rows;
    return part;
  }
  if (begin % block_rows != 0) {
    return Error(InvalidArgument(fmt::format("tensor {}: expert rows begin at {}, inside a scale block of {}",
                                             weight_tensor->name, begin, Counted(block_rows, "row"))));
  }
  const int64_t scale_end = CeilDiv(end, block_rows);
  part.scale = rows_of(scale, scale_rows, begin / block_rows, scale_end);
  part.scale_rows = scale_end - begin / block_rows;
  return part;
}

Result<StoredLinear> StoredLinear::RowsFrom(int64_t begin, int64_t end, std::vector<Buffer>& copies) const {
  if (scale_rows <= 1 || begin % block_rows == 0) return Rows(begin, end);
  // Blocks of as many rows as fit both the old ones and the new beginning.
  StoredLinear finer = *this;
  finer.block_rows = std::gcd(block_rows, begin);
  finer.scale_rows = CeilDiv(rows, finer.block_rows);
  const size_t row_bytes = scale.size() / static_cast<size_t>(scale_rows);
  DSV4_ASSIGN_OR_RETURN(Buffer copy,
                        HostMemory().Allocate(row_bytes * static_cast<size_t>(finer.scale_rows)));
  for (int64_t row = 0; row < finer.scale_rows; ++row) {
    const auto source = static_cast<size_t>(row * finer.block_rows / block_rows);
    std::memcpy(static_cast<std::byte*>(copy.data()) + static_cast<size_t>(row) * row_bytes,
                scale.data() + source * row_bytes, row_bytes);
  }
  finer.scale = {static_cast<const std::byte*>(copy.data()), copy.num_bytes()};
  copies.push_back(std::move(copy));
  return finer.Rows(begin, end);
}

int64_t StoredLinear::column_unit() const {
  switch (format) {
    case WeightFormat::kPlain:
      return 1;
    case WeightFormat::kFp8Block:
      return scale_cols > 1 ? block_cols : 1;
    case WeightFormat::kMxFp4:
      return kMxFp4Block;
    case WeightFormat::kNvFp4:
      return kNvFp4Block;
  }
  return 1;
}

// `take` makes of bytes of `num_rows` rows the part of every row that columns [from, to) of `total` are:
// count bytes from byte `first` on.
template <typename Take>
Result<StoredLinear> StoredLinear::ColumnsBy(int64_t begin, int64_t end, const Take& take) const {
  if (begin % column_unit() != 0) {
    return Error(InvalidArgument(fmt::format("tensor {}: columns begin at {}, inside a block of {}",
                                             weight_tensor->name, begin, Counted(column_unit(), "column"))));
  }
  const auto columns_of = [&](std::span<const std::byte>& bytes, int64_t num_rows, int64_t total,
                              int64_t from, int64_t to) -> Status {
    const size_t row_bytes = bytes.size() / static_cast<size_t>(num_rows);
    const size_t first = row_bytes * static_cast<size_t>(from) / static_cast<size_t>(total);
    const size_t count = row_bytes * static_cast<size_t>(to) / static_cast<size_t>(total) - first;
    return take(bytes, static_cast<size_t>(num_rows), first, count);
  };
  StoredLinear part = *this;
  part.cols = end - begin;
  DSV4_TRY(columns_of(part.data, rows, cols, begin, end));
  if (format == WeightFormat::kPlain || scale_cols == 0) return part;
  if (scale_cols == 1) {  // One column of scales serves any columns.
    if (format == WeightFormat::kFp8Block) part.block_cols = part.cols;
    return part;
  }
  const int64_t unit = column_unit();
  const int64_t scale_end = CeilDiv(end, unit);
  DSV4_TRY(columns_of(part.scale, scale_rows, scale_cols, begin / unit, scale_end));
  part.scale_cols = scale_end - begin / unit;
  return part;
}

Result<StoredLinear> StoredLinear::Columns(int64_t begin, int64_t end, std::vector<Buffer>& copies) const {
  return ColumnsBy(
      begin, end,
      [&](std::span<const std::byte>& bytes, size_t num_rows, size_t first, size_t count) -> Status {
        const size_t row_bytes = bytes.size() / num_rows;
        DSV4_ASSIGN_OR_RETURN_STATUS(Buffer copy, HostMemory().Allocate(count * num_rows));
        for (size_t row = 0; row < num_rows; ++row) {
          std::memcpy(static_cast<std::byte*>(copy.data()) + row * count,
                      bytes.data() + row * row_bytes + first, count);
        }
        bytes = {static_cast<const std::byte*>(copy.data()), copy.num_bytes()};
        copies.push_back(std::move(copy));
        return {};
      });
}

Result<StoredLinear> StoredLinear::SizesOfColumns(int64_t begin, int64_t end) const {
  return ColumnsBy(begin, end,
                   [](std::span<const std::byte>& bytes, size_t num_rows, size_t, size_t count) -> Status {
                     bytes = bytes.first(count * num_rows);
                     return {};
                   });
}

Result<StoredLinear> DescribeLinear(const LinearParts& parts, int64_t rows, int64_t cols,
                                    const QuantizationConfig& quantization) {
  StoredLinear out;
  out.rows = rows;
  out.cols = cols;
  const std::optional<DType> dtype = parts.weight.tensor->dtype;
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) {
    DSV4_TRY(DescribePlain(parts, out));
  } else if (dtype == DType::kF8E4M3) {
    DSV4_TRY(DescribeFp8(parts, quantization, out));
  } else if (dtype == DType::kI8 || dtype == DType::kU8) {
    DSV4_TRY(DescribeFourBit(parts, out));
  } else {
    return Error(InvalidArgument(fmt::format(
        "{}: a linear wants F32, F16, BF16, F8_E4M3 or packed 4-bit U8 or I8", Found(parts.weight))));
  }
  out.data_dtype = *dtype;
  out.data = parts.weight.bytes;
  out.weight_tensor = parts.weight.tensor;
  if (out.format != WeightFormat::kPlain) {
    out.scale = parts.scale.bytes;
    const bool fp8 = out.format == WeightFormat::kFp8Block;
    out.scale_rows = fp8 ? CeilDiv(rows, out.block_rows) : rows;
    out.scale_cols = fp8 ? CeilDiv(cols, out.block_cols)
                         : cols / (out.format == WeightFormat::kNvFp4 ? kNvFp4Block : kMxFp4Block);
  }
  return out;
}

bool IsMxFp4Transcode(const StoredLinear& stored) {
  if (stored.format != WeightFormat::kNvFp4 || stored.scale_cols % 2 != 0) return false;
  float global = 0;
  std::memcpy(&global, stored.global_scale.data(), sizeof(global));
  int exponent = 0;
  if (std::frexp(global, &exponent) != 0.5F) return false;
  // No mantissa bit in a normal scale, one bit in a subnormal one; 0 is the scale of a block of zeros.
  const auto is_power_of_two = [](uint8_t code) {
    return code < 8 ? (code & (code - 1)) == 0 : (code & 7) == 0 && code < kE4m3NaN;
  };
  for (size_t i = 0; i < stored.scale.size(); i += 2) {
    if (stored.scale[i] != stored.scale[i + 1] || !is_power_of_two(static_cast<uint8_t>(stored.scale[i])))
      return false;
  }
  return true;
}

Weight WeightOf(const StoredLinear& stored) {
  Weight weight;
  weight.format = stored.format;
  weight.rows = stored.rows;
  weight.cols = stored.cols;
  weight.block_rows = stored.block_rows;
  weight.block_cols = stored.block_cols;
  weight.global_scale_divides = stored.global_scale_divides;
  const bool packed = stored.format == WeightFormat::kMxFp4 || stored.format == WeightFormat::kNvFp4;
  weight.data = TensorView::Contiguous(static_cast<const void*>(stored.data.data()), stored.data_dtype,
                                       {stored.rows, packed ? stored.cols / 2 : stored.cols});
  if (stored.format != WeightFormat::kPlain) {
    weight.scale = TensorView::Contiguous(static_cast<const void*>(stored.scale.data()), stored.scale_dtype,
                                          {stored.scale_rows, stored.scale_cols});
  }
  if (!stored.global_scale.empty()) {
    std::memcpy(&weight.global_scale, stored.global_scale.data(), sizeof(float));
  }
  return weight;
}

Result<Weight> LoadSizes(const StoredLinear& stored, ActivationQuant activation,
                         std::vector<Buffer>& copies) {
  Weight weight = WeightOf(stored);
  weight.activation = activation;
  DSV4_ASSIGN_OR_RETURN(weight.data, Align(stored.data, stored.data_dtype, weight.data.shape, copies));
  if (stored.format != WeightFormat::kPlain) {
    DSV4_ASSIGN_OR_RETURN(weight.scale, Align(stored.scale, stored.scale_dtype, weight.scale.shape, copies));
  }
  return weight;
}

Result<Weight> LoadLinear(const StoredLinear& stored, ActivationQuant activation, std::vector<Buffer>& copies,
                          ScaleChecks& checks) {
  DSV4_ASSIGN_OR_RETURN(const Weight weight, LoadSizes(stored, activation, copies));
  const std::string& name = stored.weight_tensor->name;
  DSV4_TRY(ValidateWeight(weight, name));
  checks.Add(weight, name);
  return weight;
}

}  // namespace dsv4::model
