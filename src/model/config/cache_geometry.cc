// Cache layout that a model's plans ask for, drafters included.
#include "model/config/cache_geometry.h"

#include "base/check.h"

namespace dsv4::model {

kv::CacheLayout CacheGeometry(const ModelConfig& config, std::span<const LayerPlan> layers, Numerics numerics,
                              CacheRows rows, int64_t max_chunk_tokens, int64_t max_rewind_tokens) {
  kv::CacheLayout layout;
  for (const LayerPlan& layer : layers) {
    DSV4_CHECK(layer.window == static_cast<int>(layout.layers.size()))
        << "layer " << layer.number << " has state layer " << layer.window;
    layout.layers.push_back({.ratio = layer.makes_entries() ? layer.ratio : 0,
                             .overlap = layer.makes_entries() && layer.overlap == 2,
                             .width = config.head_dim,
                             .indexer_width = layer.makes_keys() ? config.index_head_dim : 0,
                             .pools = layer.pooling != Pooling::kSingle,
                             .pools_keys = layer.key_source == KeySource::kCompressor});
  }
  layout.window_size = config.sliding_window;
  const DType dtype = numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  layout.window_format = layout.entry_format = layout.key_format = dtype;
  if (numerics == Numerics::kRelease && rows == CacheRows::kPacked) {
    layout.window_format = config.window_rows;
    layout.entry_format = config.entry_rows;
    layout.key_format = config.key_rows;
  }
  layout.max_positions = config.max_position_embeddings;
  layout.max_chunk_tokens = max_chunk_tokens;
  layout.max_rewind_tokens = max_rewind_tokens;
  return layout;
}

kv::LayerCacheLayout DraftBlockGeometry(const ModelConfig& config) {
  return {.width = config.head_dim, .draft_width = config.hc_dim()};
}

kv::LayerCacheLayout DsparkStageGeometry(const ModelConfig& config, const DsparkConfig& dspark, bool first) {
  const auto num_taps = static_cast<int64_t>(dspark.target_layer_ids.size());
  return {.width = config.head_dim,
          .draft_width = first ? num_taps * config.hidden_size : 0,
          .block_draft = true};
}

}  // namespace dsv4::model
