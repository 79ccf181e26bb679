// Reader and checks of a DSpark drafter's keys in config.json.
#include "model/config/dspark_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/json.h"
#include "base/text.h"
#include "model/config/config_reader.h"

namespace dsv4::model {
namespace {

constexpr int64_t kMaxBlock = 64;
constexpr int64_t kMaxMarkovRank = int64_t{1} << 16;
const std::span<const char* const> kKeys = std::span(kDsparkKeys).first(4);

Status Wanted(std::string_view what, std::string_view key, std::string_view got, std::string_view wanted) {
  return InvalidArgument(fmt::format("{}: key {}: {}, wanted {}", what, key, got, wanted));
}

std::string Shown(const Json& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = JsonText(value);
  return "holds " + (text.size() > kMaxShown ? text.substr(0, kMaxShown) + "..." : text);
}

Result<int64_t> Integer(std::string_view what, std::string_view key, const Json& value, int64_t min,
                        int64_t max) {
  const bool is_small = value.is_number_integer() &&
                        !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max));
  if (is_small && value.get<int64_t>() >= min && value.get<int64_t>() <= max) return value.get<int64_t>();
  return Error(Wanted(what, key, Shown(value), fmt::format("an integer from {} to {}", min, max)));
}

}  // namespace

Result<std::optional<DsparkConfig>> ParseDsparkConfig(const Json& root, std::string_view what,
                                                      const ModelConfig& config) {
  if (!root.is_object()) return Error(InvalidArgument(fmt::format("{}: not a JSON object", what)));
  const auto has = [&](const char* key) { return root.contains(key) && !root[key].is_null(); };
  if (std::none_of(kKeys.begin(), kKeys.end(), has)) return std::optional<DsparkConfig>();
  for (const char* key : kKeys) {
    if (!has(key)) return Error(Wanted(what, key, "missing", "all of dspark_* or none"));
  }
  DsparkConfig dspark;
  dspark.taps_inputs = config.drafter_taps_inputs;
  DSV4_ASSIGN_OR_RETURN(dspark.block_size, Integer(what, kKeys[0], root[kKeys[0]], 1, kMaxBlock));
  DSV4_ASSIGN_OR_RETURN(dspark.noise_token_id,
                        Integer(what, kKeys[1], root[kKeys[1]], 0, config.vocab_size - 1));
  DSV4_ASSIGN_OR_RETURN(dspark.markov_rank, Integer(what, kKeys[2], root[kKeys[2]], 1, kMaxMarkovRank));
  const Json& layers = root[kKeys[3]];
  const auto num_layers = static_cast<size_t>(config.num_hidden_layers);
  if (!layers.is_array() || layers.empty() || layers.size() > num_layers)
    return Error(Wanted(what, kKeys[3], Shown(layers),
                        fmt::format("a list of 1 to {}", Counted(num_layers, "layer"))));
  for (const Json& layer : layers) {
    DSV4_ASSIGN_OR_RETURN(const int64_t id, Integer(what, kKeys[3], layer, 0, config.num_hidden_layers - 1));
    dspark.target_layer_ids.push_back(id);
  }
  const auto count_or = [&](const char* key, int64_t most, int64_t trunks) -> Result<int64_t> {
    if (!has(key) || root[key] == 0) return trunks;
    return Integer(what, key, root[key], 1, most);
  };
  DSV4_ASSIGN_OR_RETURN(dspark.n_routed_experts,
                        count_or(kDsparkKeys[4], kMaxExperts, config.n_routed_experts));
  DSV4_ASSIGN_OR_RETURN(dspark.num_experts_per_tok,
                        count_or(kDsparkKeys[5], dspark.n_routed_experts, config.num_experts_per_tok));
  return std::optional(std::move(dspark));
}

LayerPlan DsparkStagePlan(const DsparkConfig& dspark, int number, int state_layer) {
  LayerPlan plan = BlockPlan(number, state_layer);
  plan.num_experts = dspark.n_routed_experts;
  plan.experts_per_token = dspark.num_experts_per_tok;
  return plan;
}

}  // namespace dsv4::model
