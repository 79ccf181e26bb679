// Observer that keeps all tensors of a run as fp32 on the host.
#include "diag/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/cache_rows.h"
#include "formats/number_formats.h"

namespace dsv4::diag {

Result<std::vector<std::byte>> ToHostBytes(ops::OpContext& context, const TensorView& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_bytes()));
  if (bytes.empty()) return bytes;
  if (tensor.device.type == DeviceType::kHost) {
    std::memcpy(bytes.data(), tensor.data, bytes.size());
  } else {
    DSV4_TRY(context.memory().CopyToHost(bytes.data(), tensor.data, bytes.size(), context.stream()));
  }
  return bytes;
}

Result<std::vector<float>> ToHostFloats(ops::OpContext& context, const TensorView& tensor) {
  const auto count = static_cast<size_t>(tensor.num_elements());
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ToHostBytes(context, tensor));
  std::vector<float> values(count);
  const auto convert = [&]<typename T>(T, auto&& to_float) {
    for (size_t i = 0; i < count; ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = to_float(element);
    }
  };
  switch (tensor.dtype) {
    case DType::kF32:
      convert(float{}, [](float value) { return value; });
      break;
    case DType::kBF16:
      convert(uint16_t{}, FloatFromBf16);
      break;
    case DType::kF16:
      convert(uint16_t{}, FloatFromF16);
      break;
    case DType::kI32:
      convert(int32_t{}, [](int32_t value) { return static_cast<float>(value); });
      break;
    default:
      return Error(
          Unimplemented(fmt::format("dtype {}: wanted F32, F16, BF16 or I32", DTypeName(tensor.dtype))));
  }
  return values;
}

Result<std::vector<float>> ReadPagedRows(ops::OpContext& context, const PagedRows& rows, int64_t count,
                                         Device device) {
  std::vector<float> all;
  for (int64_t begin = 0; begin < count; begin += rows.rows_per_page) {
    const int64_t in_page = std::min(rows.rows_per_page, count - begin);
    const int64_t row_bytes = rows.RowBytes();
    const TensorView view =
        TensorView::Contiguous(rows.pages[static_cast<size_t>(begin / rows.rows_per_page)], DType::kU8,
                               {in_page, row_bytes}, device);
    DSV4_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, ToHostBytes(context, view));
    std::vector<float> values(static_cast<size_t>(rows.width));
    for (int64_t row = 0; row < in_page; ++row) {
      UnpackRow(rows.format, bytes.data() + row * row_bytes, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

Status FromHostFloats(ops::OpContext& context, std::span<const float> values, const TensorView& tensor) {
  DSV4_CHECK(static_cast<int64_t>(values.size()) == tensor.num_elements()) << values.size();
  if (values.empty()) return {};
  if (tensor.dtype == DType::kF32) {
    return context.memory().CopyFromHost(tensor.data, values.data(), values.size_bytes(), context.stream());
  }
  if (tensor.dtype == DType::kI32) {
    const auto fits = [](float value) { return std::abs(value) < 0x1p31F; };  // Not NaN either.
    if (!std::all_of(values.begin(), values.end(), fits)) {
      return InvalidArgument("a number that is no 32-bit integer");
    }
    const std::vector<int32_t> numbers(values.begin(), values.end());
    return context.memory().CopyFromHost(tensor.data, numbers.data(), numbers.size() * sizeof(int32_t),
                                         context.stream());
  }
  if (tensor.dtype != DType::kBF16) {
    return Unimplemented(fmt::format("dtype {}: wanted F32, BF16 or I32", DTypeName(tensor.dtype)));
  }
  std::vector<uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), Bf16FromFloat);
  return context.memory().CopyFromHost(tensor.data, rounded.data(), rounded.size() * sizeof(uint16_t),
                                       context.stream());
}

Recording::Recording(ops::OpContext& context, Filter filter)
    : context_(&context), filter_(std::move(filter)) {}

void Recording::OnTensor(int layer, std::string_view name, const TensorView& tensor) {
  if (!status_.ok() || (filter_ && !filter_(layer, name))) return;
  const auto [place, added] = index_.try_emplace({layer, std::string(name)}, tensors_.size());
  if (added) {
    RecordedTensor made{.layer = layer, .name = std::string(name), .dtype = tensor.dtype};
    for (int i = 1; i < tensor.shape.rank(); ++i) {
      made.row_dims.push_back(tensor.shape[i]);
      made.width *= tensor.shape[i];
    }
    tensors_.push_back(std::move(made));
  }
  RecordedTensor& recorded = tensors_[place->second];
  const Result<std::vector<float>> values = ToHostFloats(*context_, tensor);
  if (!values) {
    status_ = values.error().WithContext(fmt::format("recording layer {}, {}", layer, name));
    return;
  }
  recorded.num_rows += tensor.shape[0];
  recorded.values.insert(recorded.values.end(), values->begin(), values->end());
}

const RecordedTensor* Recording::Find(int layer, std::string_view name) const {
  const auto found = index_.find(std::pair(layer, std::string(name)));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace dsv4::diag
