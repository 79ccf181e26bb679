// Names of ops that a table lacks.
#include "ops/op_table.h"

namespace dsv4::ops {

#define DSV4_OP_MISSING(name, Op) \
  if (table.name == nullptr) missing.emplace_back(#name);

std::vector<std::string> MissingOps(const OpTable& table) {
  std::vector<std::string> missing;
  DSV4_FOR_EACH_OP(DSV4_OP_MISSING)
  return missing;
}

std::vector<std::string> MissingShardOps(const OpTable& table) {
  std::vector<std::string> missing;
  DSV4_FOR_EACH_SHARD_OP(DSV4_OP_MISSING)
  return missing;
}

#undef DSV4_OP_MISSING

}  // namespace dsv4::ops
