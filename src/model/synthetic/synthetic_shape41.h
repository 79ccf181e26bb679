// Shapes of V4.1 among those of random checkpoints (synthetic_shape.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::model {

inline constexpr std::array<std::string_view, 3> kShapeNames41 = {"mini41", "slim41", "flash41"};

// config.json without `quantization_config`, nested as released. InvalidArgument for too many layers, or a draft block (MTP), which V4.1 has not.
Result<Json> SyntheticConfig41(const SyntheticOptions& options);

// The keys of a drafter that taps the last three layers, in a config whose other keys are there. Its noise is the last id, and its Markov head
// as wide as the release's where the model is.
void AddDspark(int64_t num_layers, Json& config);

}  // namespace dsv4::model
