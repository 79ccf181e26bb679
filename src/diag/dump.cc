#include "diag/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "formats/number_formats.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace dsv4::diag {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLayerPrefix = "layers.";
constexpr int kMaxLayers = 1 << 16;
constexpr int64_t kMaxRowElements = int64_t{1} << 40;

std::string FileName(int layer) {
  return layer < 0 ? "outside.safetensors" : fmt::format("layer-{:03}.safetensors", layer);
}

std::string FullName(const RecordedTensor& tensor) {
  return tensor.layer < 0 ? tensor.name : fmt::format("{}{}.{}", kLayerPrefix, tensor.layer, tensor.name);
}

// The values in their own dtype again, which they came from and fit exactly.
std::vector<std::byte> Encode(const RecordedTensor& tensor) {
  const auto size = static_cast<size_t>(ElementBytes(tensor.dtype));
  std::vector<std::byte> bytes(tensor.values.size() * size);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    std::byte* place = bytes.data() + i * size;
    if (tensor.dtype == DType::kBF16) {
      const uint16_t bits = Bf16FromFloat(tensor.values[i]);
      std::memcpy(place, &bits, size);
    } else if (tensor.dtype == DType::kI32) {
      const auto number = static_cast<int32_t>(tensor.values[i]);
      std::memcpy(place, &number, size);
    } else {
      std::memcpy(place, &tensor.values[i], size);
    }
  }
  return bytes;
}

Status WriteFile(const std::string& path, const std::map<std::string, const RecordedTensor*>& tensors) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    io::TensorSpec spec{.name = name, .dtype = tensor->dtype, .dims = {tensor->num_rows}};
    spec.dims.insert(spec.dims.end(), tensor->row_dims.begin(), tensor->row_dims.end());
    specs.push_back(std::move(spec));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(io::SafetensorsWriter writer,
                               io::SafetensorsWriter::Create(path, std::move(specs)));
  for (const io::TensorSpec& spec : writer.specs()) {
    DSV4_RETURN_IF_ERROR(writer.Append(Encode(*tensors.at(spec.name))));
  }
  return writer.Finish();
}

Result<std::vector<fs::path>> SafetensorsIn(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> files;
  fs::directory_iterator entries(directory, error);
  if (error) return Error(NotFound(fmt::format("dump {}: {}", directory, error.message())));
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The layer and the rest of a full name.
Result<std::pair<int, std::string>> SplitName(const std::string& full) {
  if (!full.starts_with(kLayerPrefix)) return std::pair(-1, full);
  int layer = -1;
  const char* begin = full.data() + kLayerPrefix.size();
  const char* end = full.data() + full.size();
  const auto [stop, error] = std::from_chars(begin, end, layer);
  if (error != std::errc() || stop == end || *stop != '.' || stop + 1 == end || layer < 0 ||
      layer >= kMaxLayers) {
    return Error(InvalidArgument(fmt::format("tensor {}: wanted layers.<number>.<name>", full)));
  }
  return std::pair(layer, std::string(stop + 1, end));
}

Result<RecordedTensor> Decode(const io::StoredTensor& stored) {
  DSV4_ASSIGN_OR_RETURN(auto place, SplitName(stored.name));
  RecordedTensor tensor{.layer = place.first, .name = std::move(place.second)};
  if (stored.dims.empty())
    return Error(InvalidArgument(fmt::format("tensor {}: a number, wanted rows", stored.name)));
  tensor.num_rows = stored.dims[0];
  tensor.row_dims.assign(stored.dims.begin() + 1, stored.dims.end());
  for (const int64_t dim : tensor.row_dims) {
    // With no rows the file proves nothing about a row's size.
    if (dim > 0 && tensor.width > kMaxRowElements / dim) {
      return Error(InvalidArgument(fmt::format("tensor {}: shape {}, wanted rows of at most {} elements",
                                               stored.name, stored.ShapeString(), kMaxRowElements)));
    }
    tensor.width *= dim;
  }
  const auto read = [&]<typename T>(T, auto&& to_float) {
    tensor.values.resize(stored.bytes.size() / sizeof(T));
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      T element;
      std::memcpy(&element, stored.bytes.data() + i * sizeof(T), sizeof(T));
      tensor.values[i] = to_float(element);
    }
  };
  if (!stored.dtype) {
    return Error(InvalidArgument(fmt::format("tensor {}: dtype {}", stored.name, stored.dtype_name)));
  }
  tensor.dtype = *stored.dtype;
  switch (*stored.dtype) {
    case DType::kF32:
      read(float{}, [](float value) { return value; });
      break;
    case DType::kBF16:
      read(uint16_t{}, FloatFromBf16);
      break;
    case DType::kF16:
      read(uint16_t{}, FloatFromF16);
      break;
    case DType::kI32:
      read(int32_t{}, [](int32_t value) { return static_cast<float>(value); });
      break;
    case DType::kI64:
      read(int64_t{}, [](int64_t value) { return static_cast<float>(value); });
      tensor.dtype = DType::kI32;
      break;
    default:
      return Error(InvalidArgument(fmt::format("tensor {}: dtype {}, wanted F32, F16, BF16, I32 or I64",
                                               stored.name, stored.dtype_name)));
  }
  return tensor;
}

}  // namespace

Status WriteDump(const Recording& recording, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return InvalidArgument(fmt::format("dump {}: {}", directory, error.message()));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<fs::path> old, SafetensorsIn(directory));
  if (!old.empty()) {
    return InvalidArgument(
        fmt::format("dump {}: holds {} already; give a new directory", directory, old[0].string()));
  }
  std::map<int, std::map<std::string, const RecordedTensor*>> by_layer;
  for (const RecordedTensor& tensor : recording.tensors()) by_layer[tensor.layer][FullName(tensor)] = &tensor;
  for (const auto& [layer, tensors] : by_layer) {
    DSV4_RETURN_IF_ERROR(WriteFile((fs::path(directory) / FileName(layer)).string(), tensors));
  }
  return {};
}

const RecordedTensor* Dump::Find(int layer, std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const RecordedTensor& tensor) {
    return tensor.layer == layer && tensor.name == name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

std::vector<int32_t> Dump::TokenIds() const {
  std::vector<int32_t> ids;
  const RecordedTensor* tensor = Find(-1, "pass.token_ids");
  if (tensor == nullptr) return ids;
  // What no vocabulary has becomes -1, which is no id either.
  for (const float value : tensor->values)
    ids.push_back(value >= 0 && value < 0x1p24F ? static_cast<int32_t>(value) : -1);
  return ids;
}

Result<Dump> ReadDump(const std::string& directory) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<fs::path> files, SafetensorsIn(directory));
  if (files.empty()) return Error(NotFound(fmt::format("dump {}: no *.safetensors in it", directory)));
  Dump dump;
  std::set<std::string> names;
  for (const fs::path& file : files) {
    DSV4_ASSIGN_OR_RETURN(const io::MappedFile mapped, io::MappedFile::Open(file.string()));
    DSV4_ASSIGN_OR_RETURN(const std::vector<io::StoredTensor> stored,
                          io::ParseSafetensors(mapped.bytes(), file.string()));
    for (const io::StoredTensor& tensor : stored) {
      if (!names.insert(tensor.name).second) {
        return Error(
            InvalidArgument(fmt::format("{}: tensor {}: in another file too", file.string(), tensor.name)));
      }
      Result<RecordedTensor> decoded = Decode(tensor);
      if (!decoded) return Error(decoded.error().WithContext(file.string()));
      dump.tensors.push_back(std::move(*decoded));
    }
  }
  return dump;
}

Dump ToDump(const Recording& recording) { return {recording.tensors()}; }

}  // namespace dsv4::diag
