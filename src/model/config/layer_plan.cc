#include "model/config/layer_plan.h"

#include "base/check.h"

namespace dsv4::model {
namespace {

AttentionKind AttentionOf(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return AttentionKind::kWindow;
    case LayerKind::kCsa:
      return AttentionKind::kSelectedEntries;
    case LayerKind::kHca:
      return AttentionKind::kAllEntries;
  }
  return AttentionKind::kWindow;
}

}  // namespace

std::vector<LayerPlan> PlanLayers(const ModelConfig& config, const Range& layers) {
  DSV4_CHECK(0 <= layers.begin && layers.end <= config.num_hidden_layers)
      << layers.begin << ", " << layers.end;
  std::vector<LayerPlan> plans;
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    const auto state_layer = static_cast<int>(i - layers.begin);
    plans.push_back({.number = static_cast<int>(i),
                     .attention = AttentionOf(layer.kind),
                     .router = layer.hash_routed ? RouterKind::kTokenIds : RouterKind::kScores,
                     .ratio = layer.compress_ratio,
                     .overlap = layer.compress_overlap(),
                     .state_layer = state_layer,
                     .entries_layer = state_layer});
  }
  return plans;
}

}  // namespace dsv4::model
