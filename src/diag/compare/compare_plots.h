// The drawings of `compare`: where an error starts, how it grows, and what it does to the tokens.
#pragma once

#include <vector>

#include "diag/compare/comparer.h"
#include "diag/report/plot.h"

namespace dsv4::diag {

// With shared inputs errors are each op's own and do not grow from layer to layer, and the logits say
// nothing.
std::vector<Plot> ComparePlots(const std::vector<Compared>& compared, const LogitsAgreement& logits,
                               bool shared_inputs);

}  // namespace dsv4::diag
