#include "model/config/cache_geometry.h"

#include "base/check.h"

namespace dsv4::model {

kv::CacheLayout CacheGeometry(const ModelConfig& config, const Range& layers, Numerics numerics,
                              int64_t max_chunk_tokens, int64_t max_rewind_tokens) {
  DSV4_CHECK(0 <= layers.begin && layers.end <= config.num_hidden_layers)
      << layers.begin << ", " << layers.end;
  kv::CacheLayout layout;
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    const LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layout.layers.push_back({.ratio = layer.compress_ratio,
                             .overlap = layer.compress_overlap() == 2,
                             .width = config.head_dim,
                             .indexer_width = layer.kind == LayerKind::kCsa ? config.index_head_dim : 0});
  }
  layout.window_size = config.sliding_window;
  layout.row_dtype = numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  layout.max_positions = config.max_position_embeddings;
  layout.max_chunk_tokens = max_chunk_tokens;
  layout.max_rewind_tokens = max_rewind_tokens;
  return layout;
}

}  // namespace dsv4::model
