// DeepSeek-V4.1: its configuration, plans and tensors (model/arch/architecture.h).
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

class ConfigReader;
struct Trunk;

// Whether a config.json is of V4.1, by its names or by keys that no other model has.
bool IsV41Config(const Json& root);

// A config.json as one object with the release's key names. The nested dialect has a `text_config` and more
// beside it, the flat one (`inference/config.json`) other names. Where both names occur they must agree.
Result<Json> FlattenV41Config(const Json& root, std::string_view what);

// Plans from `compress_ratios`, the lists of source layers and `engram_layer_ids`. Faults stay in the reader.
void ReadV41Plans(ConfigReader& reader, ModelConfig& config);

std::span<const TensorRow> V41Tensors();
const Trunk& V41Trunk();

// InvalidArgument names every switch that no release uses.
Result<ModelConfig> ParseV41Config(const Json& root, std::string_view what);

}  // namespace dsv4::model
