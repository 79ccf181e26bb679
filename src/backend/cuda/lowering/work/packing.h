// Tokens of a linear as they were packed for it (weights/operand_layout.h).
#pragma once

#include <cstdint>

#include "backend/cuda/weights/device_weight.h"
#include "tensor/dtype.h"

namespace dsv4::backend::cuda {

struct PackedTokensWork {
  const void* x;
  DType dtype;
  int64_t stride;
  int64_t num_rows;
  int64_t cols;
  int group;
  MatmulKind kind;
  const uint16_t* packed;  // Scratch: where the op that runs would pack them.
  int64_t packed_rows;
  friend bool operator==(const PackedTokensWork&, const PackedTokensWork&) = default;
};

}  // namespace dsv4::backend::cuda
