// List of seeded faults by op, and the names that a finding may give them.
#include "tests/diag/seeded_ops.h"

#include <algorithm>

#include "ops/op_table.h"

namespace dsv4::testing {

std::set<std::string> ReplacedOps(const Mutation& mutation) {
  ops::OpTable table = Right();
  if (mutation.ops) mutation.ops(table);
  std::set<std::string> names;
#define DSV4_IF_REPLACED(name, Op) \
  if (table.name != Right().name) names.insert(#name);
  DSV4_FOR_EACH_OP(DSV4_IF_REPLACED)
#undef DSV4_IF_REPLACED
  return names;
}

bool NamesOneOf(const std::string& ops, const std::set<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return (", " + ops + ",").find(", " + name + ",") != std::string::npos;
  });
}

std::vector<SeededOp> SeededOps() {
  std::vector<SeededOp> ops;
  const SeededMistakes mistakes = AllSeededMistakes();
  for (const Json& entry : ReadJson(GoldenDirectory() / "mistakes.json")) {
    const auto id = entry.at("id").get<std::string>();
    const auto golden = entry.at("golden").get<std::string>();
    if (!mistakes.contains(id) || golden.starts_with("ops/") || !mistakes.at(id).mutation.ops) continue;
    if (mistakes.at(id).pieces.size() > 1) continue;  // Shows in decode only: decode-prefill's.
    if (golden.ends_with(":mtp")) continue;           // Shows in drafts only: draft's.
    const bool release = golden.ends_with(":release");
    ops.push_back({id, golden.substr(0, golden.find(':')),
                   release ? model::Numerics::kRelease : model::Numerics::kPlain});
  }
  return ops;
}

}  // namespace dsv4::testing
