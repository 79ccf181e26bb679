// y = quant(x) W^T before its rounding: what linear, grouped_linear and routed_experts share.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/weight.h"

namespace dsv4::backend::reference {

// Rounds `num_rows` rows of `cols` fp32 values as `quant` says (groups of ActivationGroup, the last may be
// shorter) and widens them.
std::vector<double> QuantizeActivations(std::span<const float> x, int64_t num_rows, int64_t cols,
                                        ActivationQuant quant);

// Receives the sum for activation row `token` and weight row `row`.
using EmitSum = std::function<void(int64_t token, int64_t row, double sum)>;

// Every dot product of `num_tokens` activation rows (weight.cols wide, `x_stride` apart) with weight rows
// [begin, end). Each weight row is dequantised once, to fp32, exactly as weight.h says. A sum depends on its
// two rows alone.
void MultiplyRows(const Weight& weight, int64_t begin, int64_t end, const double* x, int64_t x_stride,
                  int64_t num_tokens, const EmitSum& emit);

// How many weight rows to hand a thread at a time: enough work to pay for waking it.
int64_t RowGrain(int64_t cols, int64_t num_tokens);

}  // namespace dsv4::backend::reference
