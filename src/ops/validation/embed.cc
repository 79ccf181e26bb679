// Checks of embed's operands: ids, table and streams.
#include "ops/embed.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const EmbedArgs& args) {
  OperandChecker check("embed");
  check.Operand("token_ids", args.token_ids, {DType::kI32}, {kAnyDim});
  check.Operand("table", args.table, {DType::kBF16, DType::kF16, DType::kF32}, {kAnyDim, kAnyDim});
  check.Operand("streams", args.streams, {DType::kBF16, DType::kF32},
                {args.token_ids.shape[0], kAnyDim, args.table.shape[1]});
  return check.status();
}

}  // namespace dsv4::ops
