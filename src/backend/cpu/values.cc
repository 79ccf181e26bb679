// Conversions between tensors of any dtype and fp32 for ops whose work is small.
#include "backend/cpu/values.h"

#include "base/check.h"

namespace dsv4::backend::cpu {

namespace {

template <typename T>
T Load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

void LoadFloats(const Kernels& kernels, const void* data, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBF16:
      return kernels.widen_bf16(static_cast<const uint8_t*>(data), count, out);
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = FloatFromF16(Load<uint16_t>(data, i));
      return;
    default:
      DSV4_CHECK(false) << "values of dtype " << DTypeName(dtype);
  }
}

void StoreFloats(const Kernels& kernels, const float* values, int64_t count, void* data, DType dtype) {
  DSV4_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << "store to dtype " << DTypeName(dtype);
  if (dtype == DType::kBF16) return kernels.narrow_bf16(values, count, static_cast<uint8_t*>(data));
  if (count > 0) std::memcpy(data, values, static_cast<size_t>(count) * sizeof(float));
}

std::vector<float> LoadAll(const Kernels& kernels, const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  LoadFloats(kernels, view.data, view.dtype, view.num_elements(), values.data());
  return values;
}

int64_t LoadInteger(const TensorView& view, int64_t index) {
  return view.dtype == DType::kI64 ? Load<int64_t>(view.data, index) : Load<int32_t>(view.data, index);
}

}  // namespace dsv4::backend::cpu
