// Names of dtypes, both ways.
#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace dsv4 {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 9> kNames = {{{DType::kF32, "F32"},
                                                                       {DType::kF16, "F16"},
                                                                       {DType::kBF16, "BF16"},
                                                                       {DType::kF8E4M3, "F8_E4M3"},
                                                                       {DType::kF8E8M0, "F8_E8M0"},
                                                                       {DType::kI8, "I8"},
                                                                       {DType::kU8, "U8"},
                                                                       {DType::kI32, "I32"},
                                                                       {DType::kI64, "I64"}}};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [dtype, known] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace dsv4
