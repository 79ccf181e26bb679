// Reader of a dump's safetensors: rows of a named tensor as fp32, and its token ids.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "diag/dump.h"
#include "diag/dump_names.h"
#include "formats/number_formats.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kMaxRowElements = int64_t{1} << 40;

// Elements of one row; the file is hostile.
Result<int64_t> RowWidth(const io::StoredTensor& stored) {
  if (stored.dims.empty())
    return Error(InvalidArgument(fmt::format("tensor {}: a number, wanted rows", stored.name)));
  int64_t width = 1;
  for (size_t i = 1; i < stored.dims.size(); ++i) {
    const int64_t dim = stored.dims[i];
    // With no rows the file proves nothing about a row's size.
    if (dim > 0 && width > kMaxRowElements / dim) {
      return Error(InvalidArgument(fmt::format("tensor {}: shape {}, wanted rows of at most {}", stored.name,
                                               stored.ShapeString(), Counted(kMaxRowElements, "element"))));
    }
    width *= dim;
  }
  return width;
}

Status CheckDType(const io::StoredTensor& stored) {
  switch (stored.dtype.value_or(DType::kU8)) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kI32:
    case DType::kI64:
      return {};
    default:
      return InvalidArgument(fmt::format("tensor {}: dtype {}, wanted F32, F16, BF16, I32 or I64",
                                         stored.name, stored.dtype_name));
  }
}

template <typename T, typename ToFloat>
std::vector<float> Converted(std::span<const std::byte> bytes, const ToFloat& to_float) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = to_float(element);
  }
  return values;
}

// Floats of a dtype that CheckDType lets through.
std::vector<float> ToFloats(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::kBF16:
      return Converted<uint16_t>(bytes, FloatFromBf16);
    case DType::kF16:
      return Converted<uint16_t>(bytes, FloatFromF16);
    case DType::kI32:
      return Converted<int32_t>(bytes, [](int32_t value) { return static_cast<float>(value); });
    case DType::kI64:
      return Converted<int64_t>(bytes, [](int64_t value) { return static_cast<float>(value); });
    default:
      return Converted<float>(bytes, [](float value) { return value; });
  }
}

}  // namespace

Result<DumpFiles> DumpFiles::Open(const std::string& directory) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> paths, SafetensorsIn(directory));
  if (paths.empty()) return Error(NotFound(fmt::format("dump {}: no *.safetensors in it", directory)));
  DumpFiles dump;
  for (const std::string& path : paths) {
    DSV4_ASSIGN_OR_RETURN(io::MappedFile file, io::MappedFile::Open(path));
    DSV4_ASSIGN_OR_RETURN(std::vector<io::StoredTensor> stored, io::ParseSafetensors(file.bytes(), path));
    dump.files_.push_back(std::move(file));
    for (io::StoredTensor& tensor : stored) {
      auto place = SplitDumpTensorName(tensor.name);
      if (!place) return Error(place.error().WithContext(path));
      const Status dtype = CheckDType(tensor);
      if (!dtype.ok()) return Error(dtype.WithContext(path));
      const Result<int64_t> width = RowWidth(tensor);
      if (!width) return Error(width.error().WithContext(path));
      const std::string name = tensor.name;
      if (!dump.tensors_.try_emplace(std::move(*place), Entry{std::move(tensor), *width}).second) {
        return Error(InvalidArgument(fmt::format("{}: tensor {}: in another file too", path, name)));
      }
    }
  }
  return dump;
}

bool DumpFiles::Has(int layer, std::string_view name) const {
  return tensors_.contains(std::pair(layer, std::string(name)));
}

Result<std::vector<float>> DumpFiles::Rows(int layer, std::string_view name, int64_t first_row,
                                           int64_t num_rows, int64_t width) {
  const Entry& entry = tensors_.at(std::pair(layer, std::string(name)));
  const int64_t stored_rows = entry.stored.dims[0];
  if (first_row + num_rows > stored_rows || (num_rows > 0 && width != entry.width)) {
    return Error(InvalidArgument(fmt::format("the dump has [{}, {}], this model [{}, {}]", stored_rows,
                                             entry.width, first_row + num_rows, width)));
  }
  const size_t row_bytes =
      stored_rows == 0 ? 0 : entry.stored.bytes.size() / static_cast<size_t>(stored_rows);
  return ToFloats(*entry.stored.dtype, entry.stored.bytes.subspan(static_cast<size_t>(first_row) * row_bytes,
                                                                  static_cast<size_t>(num_rows) * row_bytes));
}

bool DumpFiles::rounds_to_bf16() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& entry) { return entry.second.stored.dtype == DType::kBF16; });
}

std::vector<int32_t> DumpFiles::TokenIds() const {
  std::vector<int32_t> ids;
  const auto found = tensors_.find(std::pair(-1, std::string("pass.token_ids")));
  if (found == tensors_.end()) return ids;
  for (const float value : ToFloats(*found->second.stored.dtype, found->second.stored.bytes))
    ids.push_back(value >= 0 && value < 0x1p24F ? static_cast<int32_t>(value) : -1);
  return ids;
}

}  // namespace dsv4::diag
