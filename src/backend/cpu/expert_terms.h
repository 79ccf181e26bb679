// Terms that experts add to the tokens that chose them, for the ops that keep these terms and the one that
// sums them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "ops/expert_terms.h"

namespace dsv4::backend::cpu {

// So many columns are taken at once, at most.
inline constexpr int64_t kTermColumns = 128;

// Takes columns [begin, end) of an assignment (token * top_k + slot) of an expert that is here. Its row of
// dim numbers of x's dtype begins at `row`. Each column is taken once, by one thread for all assignments.
// Experts come in ascending order, and the assignments of one in order.
using TakeTerm = std::function<void(int64_t assignment, const uint8_t* row, int64_t begin, int64_t end)>;

// Calls `add` for valid args, whose `terms` it does not look at. OutOfRange names `op` and an index outside
// the experts, before the first call.
Status ForEachTerm(ops::OpContext& context, std::string_view op, const ops::ExpertTermsArgs& args,
                   const TakeTerm& take);

}  // namespace dsv4::backend::cpu
