// Which rounding points a run reproduces (docs/architecture.md, "Numerics").
#pragma once

#include <cstdint>

namespace dsv4::model {

enum class Numerics : uint8_t {
  kRelease,  // Every rounding point of the release: FP8 activations, cache rounding, Hadamard and FP4 in the indexer.
  kPlain,  // Weights dequantised, nothing simulated; what transformers computes.
};

}  // namespace dsv4::model
