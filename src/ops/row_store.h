// StoreRows: copies rows into cache storage (tensor/rows.h says how cached rows are laid out), one launch for
// all runs.
//   source  [num_rows, width]  bf16, f32 or i32, contiguous; u8: rows as they are stored, of `width` bytes
//   pack    null: the destinations have the source's dtype and width; else they have rows of this format, which unpacks to the source's
//           dtype
//   runs    in any order, destinations do not overlap
// No rounding: what is packed must lie on the format's grid already (formats/cache_rows.h). Errors:
// InvalidArgument if a run leaves the source, a destination is null, the format cannot have such rows, or a
// value is not on its grid.
#pragma once

#include <optional>
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
  std::optional<CacheFormat> pack = std::nullopt;

  // Bytes of a row at its destination.
  int64_t StoredBytes() const {
    const int64_t width = source.shape[1];
    return pack.has_value() ? pack->RowBytes(width) : width * ElementBytes(source.dtype);
  }
  DSV4_OPERANDS(source, pack, runs)
};

Status Validate(const StoreRowsArgs& args);

}  // namespace dsv4::ops
