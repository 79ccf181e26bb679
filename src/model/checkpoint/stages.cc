// Stages of whole groups of layers, balanced by bytes.
#include "model/checkpoint/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/text.h"
#include "model/config/cache_geometry.h"

namespace dsv4::model {

Status CheckPlacement(const ModelConfig& config, const Placement& placement, int64_t max_layers) {
  const int64_t all = config.num_hidden_layers;
  const int64_t num_layers = max_layers > 0 ? std::min(max_layers, all) : all;
  if (placement.divide_entries && KeepsEntriesWhole(config)) {
    return InvalidArgument(fmt::format(
        "placement {}: this model's candidate blocks are chosen among all entries, so every shard "
        "keeps them; want expert, expert,sequences, tensor or pipeline",
        ToString(placement)));
  }
  const int64_t most = MostStages(std::span(config.layers).first(static_cast<size_t>(num_layers)));
  if (placement.num_stages <= most) return {};
  return InvalidArgument(fmt::format(
      "placement {}: got {}, want at most {} of {}: a stage has at least a layer, and layers that "
      "read rows of another are in its stage",
      ToString(placement), Counted(placement.num_stages, "stage"), most, Counted(num_layers, "layer")));
}

int64_t LayerBytes(const ResolvedLayer& layer) {
  int64_t num_bytes = 0;
  for (const ResolvedTensor& tensor : layer.tensors) {
    if (!tensor.is_table) num_bytes += tensor.linear.num_bytes();
  }
  for (const ResolvedExpert& expert : layer.experts) {
    num_bytes += expert.w1.num_bytes() + expert.w2.num_bytes() + expert.w3.num_bytes();
  }
  return num_bytes;
}

std::vector<Range> StageLayers(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                               int64_t num_layers, int num_stages) {
  const std::span<const LayerPlan> plans = std::span(config.layers).first(static_cast<size_t>(num_layers));
  // Layers that stay together are cut as one.
  std::vector<int64_t> begins;
  std::vector<int64_t> costs;
  for (int64_t i = 0; i < num_layers; ++i) {
    if (MayBeginStage(plans, i)) {
      begins.push_back(i);
      costs.push_back(0);
    }
    costs.back() += LayerBytes(resolved.layers[static_cast<size_t>(i)]);
  }
  DSV4_CHECK(num_stages >= 1 && num_stages <= std::ssize(costs)) << num_stages;
  // A token's row of the embedding costs nothing; the table takes memory and the head is read whole.
  const int64_t ends = (resolved.head_is_tied ? 0 : resolved[TensorId::kHead].linear.num_bytes()) +
                       resolved[TensorId::kEmbed].linear.num_bytes();
  begins.push_back(num_layers);
  std::vector<Range> stages = BalanceLayers(costs, ends, num_stages);
  for (Range& stage : stages)
    stage = {begins[static_cast<size_t>(stage.begin)], begins[static_cast<size_t>(stage.end)]};
  return stages;
}

}  // namespace dsv4::model
