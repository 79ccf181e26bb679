#include "ops/op_table.h"

namespace dsv4::ops {

std::vector<std::string> MissingOps(const OpTable& table) {
  std::vector<std::string> missing;
#define DSV4_OP_MISSING(name, Args) \
  if (table.name == nullptr) missing.emplace_back(#name);
  DSV4_FOR_EACH_OP(DSV4_OP_MISSING)
#undef DSV4_OP_MISSING
  return missing;
}

}  // namespace dsv4::ops
