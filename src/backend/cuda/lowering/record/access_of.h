// Range that an op reads or writes of a tensor.
#pragma once

#include "backend/cuda/lowering/launch/accesses.h"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

inline Access AccessOf(const void* data, int64_t num_bytes, Division division = Division::kNone) {
  return {{data, static_cast<size_t>(num_bytes)}, division};
}
// Null: nothing.
inline Access AccessOf(const TensorView& tensor, Division division = Division::kNone) {
  return AccessOf(tensor.data, tensor.is_null() ? 0 : tensor.num_bytes(), division);
}

}  // namespace dsv4::backend::cuda
