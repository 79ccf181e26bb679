// DeepSeek-V4: its configuration, plans and tensors (model/arch/architecture.h).
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

class ConfigReader;
struct Trunk;

// Keys a layer attends to (model.md 1.2).
enum class V4Attention : uint8_t {
  kWindow,  // "SWA": the sliding window only.
  kChosen,  // "CSA": window and the indexer's top-k of the overlapping compressed rows (the release's ratio 4).
  kEntries,  // "HCA": window and every visible compressed row (the release's ratio 128).
};
LayerPlan V4Layer(int number, V4Attention attention, int64_t ratio, RouterKind router);

// Plans from `compress_ratios` (release) or `layer_types` with `compress_rates` (transformers), and
// `num_hash_layers` or `mlp_layer_types`. Faults stay in the reader.
void ReadV4Plans(ConfigReader& reader, ModelConfig& config);

std::span<const TensorRow> V4Tensors();
const Trunk& V4Trunk();

// Two dialects are understood: the release's (`compress_ratios`, `num_hash_layers`, `qk_rope_head_dim`,
// `rope_scaling`) and transformers' (`layer_types` with `compress_rates`, `mlp_layer_types`,
// `rope_parameters.{main,compress}`, `partial_rotary_factor`). Where a file has both, they must agree.
// InvalidArgument names every switch of the format that no V4 release uses (another router function, biases,
// group-limited routing).
Result<ModelConfig> ParseV4Config(const Json& root, std::string_view what);

}  // namespace dsv4::model
