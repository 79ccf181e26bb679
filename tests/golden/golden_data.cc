// Reader of golden data: .npy arrays, JSON, and op cases as tensors and weights.
#include "tests/golden/golden_data.h"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <stdexcept>

#include "formats/number_formats.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

namespace dsv4::testing {
namespace {

template <typename T>
T Take(Result<T> result) {
  if (!result.has_value()) throw std::runtime_error(result.error().ToString());
  return std::move(*result);
}

float FloatAt(const TensorView& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF32:
      return view.as<const float>()[i];
    case DType::kBF16:
      return FloatFromBf16(view.as<const uint16_t>()[i]);
    case DType::kI32:
      return static_cast<float>(view.as<const int32_t>()[i]);
    case DType::kI64:
      return static_cast<float>(view.as<const int64_t>()[i]);
    case DType::kF8E4M3:
      return FloatFromE4m3(view.as<const uint8_t>()[i]);
    case DType::kF8E8M0:
      return FloatFromE8m0(view.as<const uint8_t>()[i]);
    default:
      throw std::runtime_error(fmt::format("no float values in a {} tensor", DTypeName(view.dtype)));
  }
}

Shape ToShape(const std::vector<int64_t>& dims) {
  switch (dims.size()) {
    case 0:
      return {};
    case 1:
      return {dims[0]};
    case 2:
      return {dims[0], dims[1]};
    case 3:
      return {dims[0], dims[1], dims[2]};
    case 4:
      return {dims[0], dims[1], dims[2], dims[3]};
    default:
      throw std::runtime_error("golden tensor of rank above 4");
  }
}

}  // namespace

std::filesystem::path GoldenDirectory() { return std::filesystem::path("tests") / "golden"; }

Json ReadJson(const std::filesystem::path& path) {
  return Take(ParseJson(Take(io::ReadTextFile(path.string())), path.string()));
}

NpyArray ReadNpy(const std::filesystem::path& path) {
  const io::MappedFile file = Take(io::MappedFile::Open(path.string()));
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const auto fail = [&](std::string_view what) {
    return std::runtime_error(fmt::format("{}: {}", path.string(), what));
  };
  if (bytes.size() < 10 || bytes.substr(0, 6) != "\x93NUMPY") throw fail("not a .npy file");
  const size_t header_size =
      static_cast<uint8_t>(bytes[8]) + 256 * static_cast<size_t>(static_cast<uint8_t>(bytes[9]));
  const std::string_view header = bytes.substr(10, header_size);
  if (header.find("'<f4'") == std::string_view::npos) throw fail("not float32");
  if (header.find("'fortran_order': False") == std::string_view::npos) throw fail("not in C order");
  NpyArray array;
  const size_t open = header.find('(');
  size_t count = 1;
  for (size_t at = open + 1; header[at] != ')';) {
    size_t used = 0;
    array.shape.push_back(std::stoll(std::string(header.substr(at)), &used));
    count *= static_cast<size_t>(array.shape.back());
    at += used;
    while (header[at] == ',' || header[at] == ' ') ++at;
  }
  const std::string_view data = bytes.substr(10 + header_size);
  if (data.size() != count * sizeof(float)) throw fail("its data does not match its shape");
  array.values.resize(count);
  std::memcpy(array.values.data(), data.data(), data.size());
  return array;
}

TensorView OpCase::Stored(const std::string& operand) const {
  const auto found = tensors_.find(operand);
  if (found == tensors_.end())
    throw std::runtime_error(fmt::format("case {}: no operand {}", name_, operand));
  return found->second;
}

TensorView OpCase::New(DType dtype, Shape shape) {
  const auto num_bytes = static_cast<size_t>(shape.num_elements() * ElementBytes(dtype));
  buffers_.push_back(Take(HostMemory().Allocate(num_bytes)));
  return TensorView::Contiguous(buffers_.back().data(), dtype, shape);
}

TensorView OpCase::Copy(const std::string& operand, DType dtype) {
  const TensorView source = Stored(operand);
  TensorView copy = New(dtype, source.shape);
  for (int64_t i = 0; i < source.num_elements(); ++i) {
    switch (dtype) {
      case DType::kF32:
        copy.as<float>()[i] = FloatAt(source, i);
        break;
      case DType::kBF16:
        copy.as<uint16_t>()[i] = Bf16FromFloat(FloatAt(source, i));
        break;
      case DType::kI32:
        copy.as<int32_t>()[i] = static_cast<int32_t>(source.as<const int64_t>()[i]);
        break;
      default:
        throw std::runtime_error(fmt::format("no copy as {}", DTypeName(dtype)));
    }
  }
  return copy;
}

std::vector<float> ToFloats(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = FloatAt(view, static_cast<int64_t>(i));
  return values;
}

std::vector<float> OpCase::Floats(const std::string& operand) const { return ToFloats(Stored(operand)); }

std::vector<int64_t> OpCase::Integers(const std::string& operand) const {
  const TensorView view = Stored(operand);
  const auto* data = view.as<const int64_t>();
  return {data, data + view.num_elements()};
}

Weight OpCase::StoredWeight(const std::string& prefix, ActivationQuant activation, int64_t block_rows,
                            int64_t block_cols) const {
  Weight weight;
  weight.activation = activation;
  weight.data = Stored(prefix + (Has(prefix + "weight") ? "weight" : "weight_packed"));
  weight.rows = weight.data.shape[0];
  weight.cols = weight.data.shape[1];
  const bool packed = weight.data.dtype == DType::kI8 || weight.data.dtype == DType::kU8;
  if (packed) weight.cols *= 2;
  if (Has(prefix + "weight_scale")) {
    weight.format = WeightFormat::kNvFp4;
    weight.scale = Stored(prefix + "weight_scale");
    weight.global_scale_divides = Has(prefix + "weight_global_scale");
    weight.global_scale =
        Stored(prefix + (weight.global_scale_divides ? "weight_global_scale" : "weight_scale_2"))
            .as<const float>()[0];
  } else if (Has(prefix + "scale")) {
    weight.format = packed ? WeightFormat::kMxFp4 : WeightFormat::kFp8Block;
    weight.scale = Stored(prefix + "scale");
    if (!packed) {
      weight.block_rows = block_rows;
      weight.block_cols = block_cols;
    }
  }
  if (const Status status = ValidateWeight(weight, name_); !status.ok())
    throw std::runtime_error(status.ToString());
  return weight;
}

OpFile::OpFile(const std::string& op) {
  const std::string path = (GoldenDirectory() / "ops" / (op + ".safetensors")).string();
  file_ = std::make_unique<io::MappedFile>(Take(io::MappedFile::Open(path)));
  const std::span<const std::byte> bytes = file_->bytes();
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size),
                                header_size);
  const Json metadata = Take(ParseJson(header, path))["__metadata__"];
  const Json cases = Take(ParseJson(metadata["cases"].get<std::string>(), path));
  for (const auto& [name, scalars] : cases.items()) cases_.emplace_back(name, scalars);
  for (const io::StoredTensor& tensor : Take(io::ParseSafetensors(bytes, path))) {
    const size_t slash = tensor.name.find('/');
    io::AlignedTensor aligned =
        Take(io::AlignTensor(tensor.bytes, tensor.dtype.value(), ToShape(tensor.dims)));
    if (aligned.copy) copies_.push_back(aligned.copy);
    Case(tensor.name.substr(0, slash)).Add(tensor.name.substr(slash + 1), aligned.view);
  }
}

OpCase& OpFile::Case(const std::string& name) {
  for (OpCase& c : cases_) {
    if (c.name() == name) return c;
  }
  throw std::runtime_error(fmt::format("no case {}", name));
}

}  // namespace dsv4::testing
