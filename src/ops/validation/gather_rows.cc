// Checks of gather_rows' operands: pages, sequences and the rows that come together.
#include "ops/gather_rows.h"

#include <string>

#include "base/text.h"
#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const GatherRowsArgs& args) {
  OperandChecker check("gather_rows");
  check.Operand("rows", args.rows, {DType::kBF16, DType::kF32, DType::kI32, DType::kU8}, {kAnyDim, kAnyDim});
  int64_t left = args.rows.shape[0];
  for (size_t i = 0; check.ok() && i < args.sources.size(); ++i) {
    const PagedRows& source = args.sources[i];
    const std::string name = "sources[" + std::to_string(i) + "]";
    // Written so that no sum of hostile values can overflow.
    check.Require(0 <= source.num_rows && source.num_rows <= left, name, Counted(source.num_rows, "row"),
                  "0 to the " + std::to_string(left) + " that rows has left");
    if (args.rows.dtype == DType::kU8) {
      check.Require(source.format == args.sources[0].format && source.width == args.sources[0].width, name,
                    "rows of another format", "the first source's");
      check.Require(source.format.packed() && source.RowBytes() == args.rows.shape[1], name,
                    Counted(source.RowBytes(), "byte") + " a row",
                    std::to_string(args.rows.shape[1]) + " of packed rows");
      check.Pages(name, source, source.width, source.format.dtype, source.num_rows);
    } else {
      check.Require(!source.format.packed(), name, "packed rows", "rows in u8");
      check.Pages(name, source, args.rows.shape[1], args.rows.dtype, source.num_rows);
    }
    left -= source.num_rows;
  }
  check.Require(left == 0, "rows", Counted(left, "row") + " more than the sources", "as many");
  return check.status();
}

}  // namespace dsv4::ops
