#include <cstddef>
#include <cstring>

#include "backend/reference/reference_ops.h"

namespace dsv4::backend::reference {

Status StoreRows(ops::OpContext&, const ops::StoreRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t row_bytes = args.source.shape[1] * ElementBytes(args.source.dtype);
  for (const ops::RowRun& run : args.runs) {
    if (run.num_rows == 0 || row_bytes == 0) continue;
    std::memcpy(run.destination, args.source.as<const std::byte>() + run.source_begin * row_bytes,
                static_cast<size_t>(run.num_rows * row_bytes));
  }
  return {};
}

Status GatherRows(ops::OpContext&, const ops::GatherRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  ops::ForEachStretch(args, [](const std::byte* from, std::byte* to, int64_t num_bytes) {
    std::memcpy(to, from, static_cast<size_t>(num_bytes));
  });
  return {};
}

}  // namespace dsv4::backend::reference
