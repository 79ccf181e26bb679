// Single numbers that stand far out of all others, as a flipped bit of an exponent leaves them.
#pragma once

#include <vector>

#include "diag/checks/tensors/holes.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// Numbers of F32, F16 and BF16 tensors that are 10 times as large as the next, in the first GiB of each. Tensors of less than 64 numbers
// are compared with those of their name in all layers. Gains of norms that are a 4096th of the next least, too. Codes and their scales are scale_survey.h's.
std::vector<Hole> LookForLoneNumbers(const model::ModelWeights& weights,
                                     const model::ResolvedCheckpoint& resolved);

}  // namespace dsv4::diag
