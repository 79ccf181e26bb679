#include "ops/indexer_select.h"

#include "ops/validation/indexer_checks.h"

namespace dsv4::ops {

Status Validate(const IndexerSelectArgs& args) {
  OperandChecker check("indexer_select");
  CheckIndexer(check, args, {}, "selected", args.selected, DType::kI32);
  return check.status();
}

}  // namespace dsv4::ops
