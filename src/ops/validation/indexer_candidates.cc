// Checks of indexer_candidates' operands: keys of this rank, queries and the candidate list.
#include "ops/indexer_candidates.h"

#include "ops/validation/attention_checks.h"
#include "ops/validation/indexer_checks.h"

namespace dsv4::ops {

Status Validate(const IndexerCandidatesArgs& args) {
  OperandChecker check("indexer_candidates");
  CheckShard(check, args.shard);
  CheckIndexer(check, args, args.shard, "candidates", args.candidates, DType::kI64);
  return check.status();
}

}  // namespace dsv4::ops
