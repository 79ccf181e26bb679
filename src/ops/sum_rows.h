// SumRows: rows added up by where they belong, in order.
//   rows     [num_rows, dim]  f32, contiguous
//   targets  num_rows row numbers of `out`, in host memory; borrowed for the call
//   out      [num_targets, dim]  f32, contiguous, no overlap with rows
// out[t] = ((0 + a) + b) + ... over the rows whose target is t, in their order; 0 where there is none. Sums
// in fp32.
// Errors: InvalidArgument if dims or dtypes disagree; OutOfRange names a target outside `out`.
#pragma once

#include <cstdint>
#include <span>

#include "ops/op_context.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

struct SumRowsArgs {
  TensorView rows;
  std::span<const int32_t> targets;
  TensorView out;
  DSV4_OPERANDS(rows, out)
};

Status Validate(const SumRowsArgs& args);

}  // namespace dsv4::ops
