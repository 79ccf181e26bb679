// Checks of store_rows' runs and formats.
#include "ops/row_store.h"

#include <string>

#include "base/text.h"
#include "formats/cache_rows.h"
#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const StoreRowsArgs& args) {
  OperandChecker check("store_rows");
  check.Operand("source", args.source, {DType::kBF16, DType::kF32, DType::kI32, DType::kU8},
                {kAnyDim, kAnyDim});
  if (args.pack.has_value()) {
    check.Require(args.pack->packed(), "pack", "a format without codes", "null or one with codes");
    check.Require(args.pack->dtype == args.source.dtype, "source",
                  "dtype " + std::string(DTypeName(args.source.dtype)), DTypeName(args.pack->dtype));
    if (check.ok())
      DSV4_RETURN_IF_ERROR(
          dsv4::Validate(*args.pack, args.source.shape[1]).WithContext("op store_rows: pack"));
  }
  const int64_t num_rows = args.source.shape[0];
  for (size_t i = 0; check.ok() && i < args.runs.size(); ++i) {
    const RowRun& run = args.runs[i];
    if (run.num_rows == 0) continue;
    // Written so that no sum of hostile values can overflow.
    const bool inside = run.num_rows > 0 && run.source_begin >= 0 && run.source_begin <= num_rows &&
                        run.num_rows <= num_rows - run.source_begin;
    if (inside && run.destination != nullptr) continue;
    const std::string name = "runs[" + std::to_string(i) + "]";
    check.Require(inside, name, Counted(run.num_rows, "row") + " from " + std::to_string(run.source_begin),
                  "rows of a source of " + std::to_string(num_rows));
    check.Require(run.destination != nullptr, name, "destination null", "memory");
  }
  return check.status();
}

}  // namespace dsv4::ops
