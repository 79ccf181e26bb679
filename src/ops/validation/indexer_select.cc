// Checks of indexer_select's operands: queries, head weights, keys, block lists and the choice.
#include "ops/indexer_select.h"

#include "ops/validation/indexer_checks.h"

namespace dsv4::ops {

Status Validate(const IndexerSelectArgs& args) {
  OperandChecker check("indexer_select");
  CheckIndexer(check, args, {}, "selected", args.selected, DType::kI32);
  if (args.within.is_null() && args.best.is_null()) return check.status();
  check.Require(args.within.is_null() || args.best.is_null(), "best", "blocks beside those of within",
                "one of the two");
  check.Require(args.block_size >= 1, "block_size", args.block_size, "at least 1");
  const TensorView& blocks = args.within.is_null() ? args.best : args.within;
  const char* const name = args.within.is_null() ? "best" : "within";
  check.Operand(name, blocks, {DType::kI32}, {args.q.shape[0], kAnyDim});
  check.Disjoint(name, blocks, "selected", args.selected);
  if (check.ok()) check.Require(blocks.shape[1] >= 1, name, blocks.shape[1], "room for a block");
  return check.status();
}

}  // namespace dsv4::ops
