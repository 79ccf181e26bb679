// Reference store_rows and gather_rows, row by row, packed or as they are.
#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"
#include "formats/cache_rows.h"

namespace dsv4::backend::reference {

Status StoreRows(ops::OpContext&, const ops::StoreRowsArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t row_bytes = args.StoredBytes();
  std::vector<float> values(args.pack.has_value() ? static_cast<size_t>(args.source.shape[1]) : 0);
  for (const ops::RowRun& run : args.runs) {
    if (run.num_rows == 0 || row_bytes == 0) continue;
    if (args.pack.has_value()) {
      for (int64_t i = 0; i < run.num_rows; ++i) {
        const int64_t row = run.source_begin + i;
        LoadValues(args.source.data, args.source.dtype, row * args.source.shape[1], std::span(values));
        DSV4_RETURN_IF_ERROR(
            PackRow(*args.pack, values, static_cast<std::byte*>(run.destination) + i * row_bytes)
                .WithContext(fmt::format("op store_rows: row {}", row)));
      }
      continue;
    }
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
