// Expert outputs for the tokens that chose them, for the ops that keep these terms and the one that sums
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "ops/expert_terms.h"

namespace dsv4::backend::reference {

// Called once for every assignment (token * top_k + slot) of an expert that is here, with its row of dim
// numbers that x's dtype holds. Calls come from several threads, in no order.
using StoreTerm = std::function<void(int64_t assignment, std::span<const float> row)>;

// Takes valid args; ignores their `terms`. OutOfRange names `op` and an index outside the experts, before the
// first call.
Status ForEachTerm(ops::OpContext& context, std::string_view op, const ops::ExpertTermsArgs& args,
                   const StoreTerm& store);

}  // namespace dsv4::backend::reference
