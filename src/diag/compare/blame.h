// Which op, and which expert, the figures of a comparison point at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "diag/compare/comparer.h"

namespace dsv4::diag {

// Most unusual op where own errors (shared inputs) are all under their bounds. Where most tensors agree bit
// for bit, it is the first that does not. Else it is the one whose error is highest over the median of the
// same tensor in other layers. Null when nothing differs.
const Compared* MostUnusual(const std::vector<Compared>& own);

// The experts that explain which rows of ffn.routed are off: every row that chose one of them is, rows
// without them are not. `row_errors` are own errors; `choices` is [rows, experts per token]. Empty when no
// few experts explain it.
std::vector<int64_t> ExpertsBehind(std::span<const double> row_errors, std::span<const float> choices);

}  // namespace dsv4::diag
