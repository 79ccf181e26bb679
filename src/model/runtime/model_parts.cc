// Parts of a loaded model: what follows from its weights and options before the first step.
#include "model/runtime/model_parts.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "model/config/cache_geometry.h"
#include "model/config/rope_table.h"
#include "model/graph/engram.h"
#include "model/graph/step.h"

namespace dsv4::model {
namespace {

std::shared_ptr<const kv::CacheLayout> MakeCacheLayout(const ModelConfig& config,
                                                       std::span<const LayerPlan> layers,
                                                       const ModelWeights& weights,
                                                       const ModelOptions& options) {
  auto layout =
      std::make_shared<kv::CacheLayout>(CacheGeometry(config, layers, options.numerics, options.cache_rows,
                                                      options.max_chunk_tokens, options.max_rewind_tokens));
  if (weights.mtp.has_value() && weights.place.first_stage())
    layout->layers.push_back(DraftBlockGeometry(config));
  for (size_t i = 0; weights.dspark.has_value() && i < weights.dspark->stages.size(); ++i)
    layout->layers.push_back(DsparkStageGeometry(config, weights.dspark->config, i == 0));
  if (config.engram.has_value()) layout->look_back = config.engram->max_ngram_size - 1;
  layout->shard = weights.place.entries();
  if (options.placement.divide_sequences) layout->num_places = options.placement.num_shards;
  return layout;
}

uint64_t NextModelNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

ModelParts::ModelParts(ModelConfig model_config, ModelWeights model_weights,
                       const ops::Backend& model_backend, const ModelOptions& model_options)
    : number(NextModelNumber()),
      config(std::move(model_config)),
      weights(std::move(model_weights)),
      backend(model_backend),
      options(model_options),
      arena(model_backend.context->memory()) {}

ModelParts::~ModelParts() = default;

Status ModelParts::Prepare() {
  num_layers = options.max_layers > 0 ? options.max_layers : config.num_hidden_layers;
  if (!backend.packs_rows) options.cache_rows = CacheRows::kWide;
  layers = PlansOfStage(config.layers, weights.place.layers);
  if (config.engram.has_value() && !options.sizes_only) {
    if (options.token_classes.empty()) {
      return InvalidArgument(
          "config, engram_layer_ids: rows of n-gram tables are found by classes of tokens, got no tokenizer");
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(engram, MakeEngramLookup(config, weights, options.token_classes));
  }
  layout = MakeCacheLayout(config, layers, weights, options);
  DSV4_RETURN_IF_ERROR(kv::Validate(*layout));
  DSV4_RETURN_IF_ERROR(UploadRopeTables());
  // On a device all weights are copies, but for those of experts on the host, which borrow from the mapping.
  const bool on_device = backend.context->memory().device().type != DeviceType::kHost;
  if (on_device && options.experts.host == 0) weights.checkpoint.reset();
  return {};
}

Status ModelParts::UploadRopeTables() {
  Memory& memory = backend.context->memory();
  std::vector<float> tables = RopeFrequencies(config.rope, config.qk_rope_head_dim);
  const auto count = static_cast<int64_t>(tables.size());
  const std::vector<float> compress = RopeFrequencies(config.compress_rope, config.qk_rope_head_dim);
  tables.insert(tables.end(), compress.begin(), compress.end());
  const size_t num_bytes = tables.size() * sizeof(float);
  DSV4_ASSIGN_OR_RETURN_STATUS(rope_buffer, memory.Allocate(num_bytes));
  DSV4_RETURN_IF_ERROR(
      memory.CopyFromHost(rope_buffer.data(), tables.data(), num_bytes, backend.context->stream()));
  const TensorView both =
      TensorView::Contiguous(rope_buffer.data(), DType::kF32, {2 * count}, memory.device());
  rope_plain = both.Rows(0, count);
  rope_compress = both.Rows(count, 2 * count);
  return {};
}

Result<kv::SequenceState> ModelParts::NewSequenceAt(int64_t place) const {
  const kv::StateHome home = layout->num_places == 1
                                 ? kv::StateHome()
                                 : kv::StateHome{static_cast<int>(place), place == this->place().shard()};
  return kv::SequenceState::Create(layout, backend.context->memory(), backend.context->stream(),
                                   group.journal(), home);
}

Graph ModelParts::MakeGraph() const {
  return {.number = number,
          .config = config,
          .weights = weights,
          .layers = layers,
          .backend = backend,
          .rope = {.plain = rope_plain, .compress = rope_compress},
          .numerics = options.numerics,
          .clamp_shared_expert = options.clamp_shared_expert,
          .group = group.ranks(),
          .shards = {.group = group.shards(),
                     .hosts = group.shard_hosts(),
                     .entries = place().entries(),
                     .max_gathered_terms = options.max_gathered_terms},
          .engram = engram.get(),
          .reads = options.placement.num_shards == 1 ? options.experts_from_disk.get() : nullptr,
          .layer_rows = &layer_rows};
}

std::string ModelParts::why_no_draft() const {
  if (can_draft()) return {};
  const std::string& mtp = weights.no_mtp;
  const std::string& dspark = weights.no_dspark;
  return mtp.empty() || dspark.empty() ? mtp + dspark : fmt::format("{}; {}", dspark, mtp);
}

}  // namespace dsv4::model
