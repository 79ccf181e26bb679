// StoreRows: copies rows into cache storage (tensor/rows.h says how cached rows are laid out), one launch for all runs.
//   source  [num_rows, width]  bf16, f32 or i32, contiguous; the destinations have its dtype and width
//   runs    in any order, destinations do not overlap
// No rounding. Errors: InvalidArgument if a run leaves the source or a destination is null.
#pragma once

#include <span>

#include "ops/op_context.h"
#include "tensor/rows.h"

namespace dsv4::ops {

using dsv4::PagedRows;
using dsv4::RingRows;
using dsv4::RowRun;

struct StoreRowsArgs {
  TensorView source;
  std::span<const RowRun> runs;
};

Status Validate(const StoreRowsArgs& args);

}  // namespace dsv4::ops
