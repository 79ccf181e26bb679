// Seeded mistakes that replace an op and show on a whole model, for the checks that name an op.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "model/runtime/model.h"
#include "tests/golden/faults/fault.h"

namespace dsv4::testing {

struct SeededOp {
  std::string mistake;  // Name of one of AllSeededMistakes().
  std::string golden;   // A model it shows on.
  model::Numerics numerics = model::Numerics::kPlain;
};

// Every mistake that replaces an op and shows in one prefill of a golden model.
std::vector<SeededOp> SeededOps();

// The ops that a mistake replaces.
std::set<std::string> ReplacedOps(const Mutation& mutation);

// Does a report's list of ops ("linear, rope") hold one of `names`?
bool NamesOneOf(const std::string& ops, const std::set<std::string>& names);

}  // namespace dsv4::testing
