// Reads the `dspark_*` keys of a config.json.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

// The keys; a config.json with a drafter has at least the first four.
inline constexpr std::array<const char*, 6> kDsparkKeys = {
    "dspark_block_size",       "dspark_noise_token_id",   "dspark_markov_rank",
    "dspark_target_layer_ids", "dspark_n_routed_experts", "dspark_num_experts_per_tok"};

// nullopt where there is none of the keys. `what` names the document in errors; InvalidArgument names the
// key, what it holds and what is wanted, one of them missing included.
Result<std::optional<DsparkConfig>> ParseDsparkConfig(const Json& root, std::string_view what,
                                                      const ModelConfig& config);

// The plan of a stage of the drafter: a window of its own, and experts by score.
LayerPlan DsparkStagePlan(const DsparkConfig& dspark, int number, int state_layer);

}  // namespace dsv4::model
