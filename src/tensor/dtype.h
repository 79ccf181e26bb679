// Element types of tensors, as safetensors spells them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dsv4 {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // e4m3fn: max 448, no infinity
  kF8E8M0,  // ue8m0: the scale 2^(byte - 127); 255 is NaN
  kI8,      // MXFP4 weights: two e2m1 in a byte
  kU8,      // NVFP4 weights: two e2m1 in a byte
  kI32,
  kI64,
};

// Bytes of one element.
constexpr int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

// The safetensors name: "F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "I8", "U8", "I32", "I64".
std::string_view DTypeName(DType dtype);
// nullopt for a name this engine does not read.
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace dsv4
