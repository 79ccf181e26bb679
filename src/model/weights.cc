#include "model/weights.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "io/checkpoint.h"
#include "model/resolved_checkpoint.h"
#include "model/small_tensors.h"
#include "model/stored_linear.h"
#include "model/tensor_table.h"

namespace dsv4::model {
namespace {

// Fills the structs from resolved tensors. The first error sticks in status(); later loads do nothing.
class Loader {
 public:
  Loader(const ModelConfig& config, Numerics numerics, std::vector<Buffer>& copies)
      : config_(config), numerics_(numerics), copies_(copies) {}

  const Status& status() const { return status_; }

  Weight Linear(TensorId id, const StoredLinear& stored) {
    if (!status_.ok()) return {};
    return Keep(LoadLinear(stored, ActivationOf(RowOf(id), stored.format), copies_));
  }

  // Small numbers as contiguous F32 of the table's shape.
  TensorView Vector(TensorId id, const io::StoredTensor* tensor, const LayerConfig& layer) {
    if (!status_.ok()) return {};
    return Keep(LoadVector(*tensor, RowOf(id).shape(config_, layer), copies_));
  }

  TensorView ExpertIds(const io::StoredTensor* tensor) {
    if (!status_.ok()) return {};
    return Keep(LoadExpertIds(*tensor, config_, copies_));
  }

  LayerWeights Layer(const ResolvedLayer& resolved, const LayerConfig& layer) {
    const auto linear = [&](TensorId id) { return Linear(id, resolved[id].linear); };
    const auto vector = [&](TensorId id) { return Vector(id, resolved[id].tensor, layer); };
    LayerWeights out;
    out.attn_norm = vector(TensorId::kAttnNorm);
    out.ffn_norm = vector(TensorId::kFfnNorm);
    out.hc_attn = {vector(TensorId::kHcAttnFn), vector(TensorId::kHcAttnBase),
                   vector(TensorId::kHcAttnScale)};
    out.hc_ffn = {vector(TensorId::kHcFfnFn), vector(TensorId::kHcFfnBase), vector(TensorId::kHcFfnScale)};

    out.wq_a = linear(TensorId::kWqA);
    out.q_norm = vector(TensorId::kQNorm);
    out.wq_b = linear(TensorId::kWqB);
    out.wkv = linear(TensorId::kWkv);
    out.kv_norm = vector(TensorId::kKvNorm);
    out.attn_sink = vector(TensorId::kAttnSink);
    out.wo_a = linear(TensorId::kWoA);
    out.wo_b = linear(TensorId::kWoB);
    if (layer.compressed()) {
      out.compressor = CompressorWeights{linear(TensorId::kCompressorWkv), linear(TensorId::kCompressorWgate),
                                         vector(TensorId::kCompressorApe), vector(TensorId::kCompressorNorm)};
    }
    if (layer.kind == LayerKind::kCsa) {
      out.indexer = IndexerWeights{linear(TensorId::kIndexerWqB), linear(TensorId::kIndexerWeightsProj),
                                   CompressorWeights{linear(TensorId::kIndexerCompressorWkv),
                                                     linear(TensorId::kIndexerCompressorWgate),
                                                     vector(TensorId::kIndexerCompressorApe),
                                                     vector(TensorId::kIndexerCompressorNorm)}};
    }

    out.gate = linear(TensorId::kGate);
    if (layer.hash_routed)
      out.tid2eid = ExpertIds(resolved[TensorId::kGateTid2Eid].tensor);
    else
      out.gate_bias = vector(TensorId::kGateBias);
    out.shared_expert = {linear(TensorId::kSharedW1), linear(TensorId::kSharedW2),
                         linear(TensorId::kSharedW3)};
    out.experts.reserve(resolved.experts.size());
    for (const ResolvedExpert& expert : resolved.experts) {
      out.experts.push_back({Linear(TensorId::kExpertW1, expert.w1), Linear(TensorId::kExpertW2, expert.w2),
                             Linear(TensorId::kExpertW3, expert.w3)});
    }
    return out;
  }

 private:
  // Release numerics round activations in front of the formats the release multiplies in FP8. NVFP4 takes them as they
  // are: its checkpoints were made from the release afterwards (decisions.md 5).
  ActivationQuant ActivationOf(const TensorRow& row, WeightFormat format) const {
    const bool fp8_operand = format == WeightFormat::kFp8Block || format == WeightFormat::kMxFp4;
    return numerics_ == Numerics::kRelease && row.quantised_activations && fp8_operand
               ? ActivationQuant::kFp8Block
               : ActivationQuant::kNone;
  }

  template <typename T>
  T Keep(Result<T> result) {
    if (!result) {
      status_ = std::move(result.error());
      return T();
    }
    return *std::move(result);
  }

  const ModelConfig& config_;
  Numerics numerics_;
  std::vector<Buffer>& copies_;
  Status status_;
};

void LogFindings(const ResolvedCheckpoint& resolved) {
  std::string skipped;
  for (const auto& [what, counts] : resolved.skipped) {
    skipped += fmt::format("{}{} {} ({:.1f} MB)", skipped.empty() ? "" : ", ", counts.num_tensors, what,
                           static_cast<double>(counts.num_bytes) / 1e6);
  }
  if (!skipped.empty()) LogInfo(fmt::format("checkpoint: skipped draft and vision tensors: {}", skipped));
  for (const std::string& disagreement : resolved.disagreements) LogWarning("checkpoint: " + disagreement);
}

}  // namespace

Result<ModelWeights> LoadWeights(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelConfig& config,
                                 const LoadOptions& options) {
  const int64_t num_layers = options.max_layers.value_or(config.num_hidden_layers);
  if (num_layers < 1 || num_layers > config.num_hidden_layers) {
    return Error(InvalidArgument(fmt::format("max_layers: {}, wanted 1 to num_hidden_layers {}", num_layers,
                                             config.num_hidden_layers)));
  }
  DSV4_ASSIGN_OR_RETURN(const ResolvedCheckpoint resolved, ResolveCheckpoint(*checkpoint, config));
  LogFindings(resolved);

  ModelWeights weights;
  Loader loader(config, options.numerics, weights.copies);
  const auto vector = [&](TensorId id) { return loader.Vector(id, resolved[id].tensor, LayerConfig()); };
  weights.embed = loader.Linear(TensorId::kEmbed, resolved[TensorId::kEmbed].linear);
  weights.head = resolved.head_is_tied ? weights.embed
                                       : loader.Linear(TensorId::kHead, resolved[TensorId::kHead].linear);
  weights.norm = vector(TensorId::kNorm);
  weights.hc_head = {vector(TensorId::kHcHeadFn), vector(TensorId::kHcHeadBase),
                     vector(TensorId::kHcHeadScale)};
  for (int64_t i = 0; i < num_layers; ++i) {
    const auto index = static_cast<size_t>(i);
    weights.layers.push_back(loader.Layer(resolved.layers[index], config.layers[index]));
    DSV4_TRY(loader.status().WithContext(checkpoint->directory()));
    if (options.progress) options.progress(i + 1, num_layers);
  }
  weights.checkpoint = std::move(checkpoint);
  return weights;
}

}  // namespace dsv4::model
