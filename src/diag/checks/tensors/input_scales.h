// Activation scales of checkpoints for NVFP4 engines: read, judged, never used here (this engine takes scales
// from the data). Others multiply with them, so a wrong one is a reason for wrong answers there. Field lesson
// N2.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "model/checkpoint/resolved_checkpoint.h"

namespace dsv4::diag {

struct InputScales {
  int64_t count = 0;
  int64_t num_ones = 0;  // Exactly 1: what a quantiser writes without calibration.
  std::vector<std::string> findings;
  std::vector<std::string> notes;  // Worth a line, no fault.
};

// Finds, in ModelOpt's `input_scale` (amax / (6 * 448)) and compressed-tensors' `input_global_scale` (its
// reciprocal):
//   numbers that are not positive and finite, and implied activations above 1e6 or below 1e-5;
//   routed experts with a scale of exactly 1 whose siblings in the layer mostly have another: no calibration token reached them;
//   w1 and w3 of experts more than 64 times off the median of their layer. Both read the layer's normed input, which does not
//   vary by that; what w2 reads does.
// Notes layers whose experts all share one scale (synchronised after calibration), and experts whose w1 and
// w3, which read the same input, have different ones.
InputScales LookAtInputScales(const io::Checkpoint& checkpoint, const model::ResolvedCheckpoint& resolved);

}  // namespace dsv4::diag
