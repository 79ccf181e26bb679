#include "model/config/cache_geometry.h"

#include "base/check.h"
#include "ops/hadamard_fp4.h"
#include "ops/simulate_fp8.h"

namespace dsv4::model {

kv::CacheLayout CacheGeometry(const ModelConfig& config, const Range& layers, Numerics numerics,
                              CacheRows rows, int64_t max_chunk_tokens, int64_t max_rewind_tokens) {
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
  const DType dtype = numerics == Numerics::kRelease ? DType::kBF16 : DType::kF32;
  layout.window_format = layout.entry_format = layout.key_format = dtype;
  if (numerics == Numerics::kRelease && rows == CacheRows::kPacked) {
    layout.window_format = layout.entry_format =
        CacheFormat::Fp8(config.nope_head_dim(), ops::SimulateFp8Args{}.group);
    layout.key_format = CacheFormat::Fp4(config.index_head_dim, ops::kIndexerFp4Group);
  }
  layout.max_positions = config.max_position_embeddings;
  layout.max_chunk_tokens = max_chunk_tokens;
  layout.max_rewind_tokens = max_rewind_tokens;
  return layout;
}

}  // namespace dsv4::model
