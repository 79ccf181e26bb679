// checkpoint: do the stored numbers look like weights? Zero and constant tensors, magnitudes that no training
// leaves, and one tensor out of line with its siblings. Block scales that no quantiser writes, gate and up of
// the experts exchanged, and activation scales that cannot be. Field lessons N1 and N2.
#pragma once

#include "diag/report/report.h"
#include "model/checkpoint/weights.h"
#include "model/config/config.h"

namespace dsv4::diag {

// Looks at every linear layer and norm of `weights`, at all of their block scales, and at the input scales of
// its checkpoint. Linears are read at up to 16 rows, spread evenly. A tensor is called zero or constant only
// after all of it was read. A finding for
//   a zero, constant or not finite tensor; RMS above 4 or below 1e-5;
//   a linear whose RMS is more than 8 times off the median of the same module in other layers and experts;
//   parts that were never written, in any tensor that is read; tables and biases without content (holes.h);
//   block scales that no quantiser writes (scale_survey.h);
//   experts whose gate and up are exchanged (gate_up_order.h), where the weights can tell;
//   input scales that cannot be, and experts that calibration never reached (input_scales.h).
// Errors: those of ResolveCheckpoint.
// `random`: the weights say that nothing has trained them, so layers are not compared with each other.
Result<CheckReport> CheckCheckpoint(const model::ModelConfig& config, const model::ModelWeights& weights,
                                    bool random = false);

}  // namespace dsv4::diag
