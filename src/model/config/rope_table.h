// The rotary frequencies of a layer: one number per pair of rotated dims (model.md 9).
//
// Pair i of `rope_dim` dims turns by theta^(-2i / rope_dim) a position. YaRN divides the frequencies of the
// slow pairs by its factor, leaves the fast ones and blends linearly between. It is always on where
// configured, whatever the length, and never scales amplitudes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace dsv4::model {

// rope_dim / 2 frequencies, computed in double and rounded once. `rope_dim` is even and positive.
std::vector<float> RopeFrequencies(const RopeConfig& config, int64_t rope_dim);

}  // namespace dsv4::model
