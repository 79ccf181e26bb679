// GatherRows: cached rows of some sequences, one sequence behind the other. StoreRows wrote them; they are
// for other ranks, or for another pass of the model.
//   sources  of each the first num_rows rows; of one width and format
//   rows     [sum of their num_rows, width]  bf16, f32 or i32, contiguous, in the sources' order; overlaps no source. Of packed rows
//            [.., RowBytes]  u8: they travel as they are stored
// No rounding. Errors: InvalidArgument if dims or formats disagree, or a page that is wanted is missing. No
// rows: does nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "ops/op_context.h"
#include "tensor/rows.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

struct GatherRowsArgs {
  std::span<const PagedRows> sources;
  TensorView rows;
  DSV4_OPERANDS(rows, sources)
};

Status Validate(const GatherRowsArgs& args);

// Calls run(from, to, num_bytes) for every stretch of rows that lie together, in order; `args` is valid.
template <typename Run>
void ForEachStretch(const GatherRowsArgs& args, const Run& run) {
  auto* to = args.rows.as<std::byte>();
  for (const PagedRows& source : args.sources) {
    const int64_t row_bytes = source.RowBytes();
    for (int64_t begin = 0; begin < source.num_rows; begin += source.rows_per_page) {
      const int64_t num_bytes = std::min(source.rows_per_page, source.num_rows - begin) * row_bytes;
      run(static_cast<const std::byte*>(source.pages[static_cast<size_t>(begin / source.rows_per_page)]), to,
          num_bytes);
      to += num_bytes;
    }
  }
}

}  // namespace dsv4::ops
