// Reading and writing tensors as fp32, which holds every bf16 and f16 number exactly. A store is a rounding
// point.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "formats/number_formats.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cpu {

inline const uint8_t* At(const void* data, DType dtype, int64_t index) {
  return static_cast<const uint8_t*>(data) + index * ElementBytes(dtype);
}

// `count` elements from `data` on; F32, BF16 or F16 at any address.
void LoadFloats(const Kernels& kernels, const void* data, DType dtype, int64_t count, float* out);
// Rounds to BF16, or copies to F32.
void StoreFloats(const Kernels& kernels, const float* values, int64_t count, void* data, DType dtype);

// A small contiguous tensor: norm weights, sinks, scales.
std::vector<float> LoadAll(const Kernels& kernels, const TensorView& view);

// Entry of a contiguous integer tensor, I32 or I64.
int64_t LoadInteger(const TensorView& view, int64_t index);

// An intermediate that the release holds in the activations' dtype.
inline double HeldAs(DType dtype, double value) {
  return dtype == DType::kBF16 ? static_cast<double>(RoundToBf16(static_cast<float>(value))) : value;
}

}  // namespace dsv4::backend::cpu
