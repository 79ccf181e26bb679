// What config.json says of a DSpark drafter: the `dspark_*` keys of the releases from July 2026 on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

// How many stages there are is shown by the tensors alone: num_nextn_predict_layers stayed 1 when there were three.
struct DsparkConfig {
  int64_t block_size = 0;      // Tokens that one pass drafts.
  int64_t noise_token_id = 0;  // What stands behind the anchor in a block.
  int64_t markov_rank = 0;     // Columns of both Markov tables.
  std::vector<int64_t>
      target_layer_ids;  // Layers of the trunk whose outputs are tapped, in the order of main_proj's columns.
};

// nullopt where there is none of the keys. `what` names the document in errors; InvalidArgument names the key, what it holds and
// what is wanted, one of them missing included.
Result<std::optional<DsparkConfig>> ParseDsparkConfig(std::string_view json, std::string_view what,
                                                      const ModelConfig& config);
Result<std::optional<DsparkConfig>> LoadDsparkConfig(const std::string& directory, const ModelConfig& config);

}  // namespace dsv4::model
