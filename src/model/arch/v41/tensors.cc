// The tensors of a V4.1 checkpoint. Names of the release; those of transformers are V4's.
#include <algorithm>
#include <iterator>
#include <vector>

#include "model/arch/v4/v4.h"
#include "model/arch/v41/v41.h"
#include "model/config/config.h"

namespace dsv4::model {
namespace {

using Config = const ModelConfig&;
using Layer = const LayerPlan&;
using Id = TensorId;
using Kind = TensorKind;
using Scope = TensorScope;

Shape CompressorMatrix(Config c, Layer l) { return {l.overlap * c.head_dim, c.hidden_size}; }
bool MakesKeys(Layer l) { return l.makes_keys(); }
bool Gates(Layer l) { return l.makes_entries() && l.pooling != Pooling::kSingle; }
bool HasEngram(Layer l) { return l.has_engram(); }
Shape PerExpert(Config c, Layer l) { return {c.NumExperts(l)}; }
Shape PerStream(Config c, Layer) { return {c.hc_mult, c.hidden_size}; }
Shape EngramTableShape(Config c, Layer l) {
  return {c.engram->num_embeddings[static_cast<size_t>(l.engram)], c.engram->head_dim};
}

// V4 has other ones of these, or none.
constexpr TensorRow kOwn[] = {
    {Id::kCompressorWgate, "{attn|self_attn}.compressor.{wgate|gate_proj}", Kind::kLinear, Scope::kLayer,
     CompressorMatrix, false, Gates},
    {Id::kIndexerWk, "{attn|self_attn}.indexer.{wk|k_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.index_head_dim, c.head_dim};
     },
     false, MakesKeys},
    {Id::kIndexerKNorm, "{attn|self_attn}.indexer.k_norm.weight", Kind::kVector, Scope::kLayer,
     [](Config c, Layer) { return Shape{c.index_head_dim}; }, false, MakesKeys},
    {Id::kEngramTable, "engram.embed", Kind::kTable, Scope::kLayer, EngramTableShape, false, HasEngram},
    {Id::kEngramWkv, "engram.wkv", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{(c.hc_mult + 1) * c.hidden_size, c.engram->row_dim()};
     },
     true, HasEngram},
    {Id::kEngramQ, "engram.q_weight", Kind::kVector, Scope::kLayer, PerStream, false, HasEngram},
    {Id::kEngramK, "engram.k_weight", Kind::kVector, Scope::kLayer, PerStream, false, HasEngram},
    {Id::kGate, "{ffn|mlp}.gate", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer l) {
       return Shape{c.NumExperts(l), c.hidden_size};
     }},
    {Id::kGateBias, "{ffn|mlp}.gate.{bias|e_score_correction_bias}", Kind::kVector, Scope::kLayer, PerExpert},
    {Id::kGateBiasVision, "{ffn|mlp}.gate.bias_vl", Kind::kVision, Scope::kVision, PerExpert},
    {Id::kDsparkMarkovW1, "markov_head.embed", Kind::kEmbedding, Scope::kDsparkLast, nullptr},
    {Id::kDsparkMarkovW2, "markov_head.head", Kind::kLinear, Scope::kDsparkLast, nullptr},
};

// V4 alone has these.
constexpr Id kMissing[] = {Id::kHcHeadFn,
                           Id::kHcHeadBase,
                           Id::kHcHeadScale,
                           Id::kCompressorApe,
                           Id::kIndexerCompressorWkv,
                           Id::kIndexerCompressorWgate,
                           Id::kIndexerCompressorApe,
                           Id::kIndexerCompressorNorm,
                           Id::kGateTid2Eid,
                           Id::kMtpEProj,
                           Id::kMtpHProj,
                           Id::kMtpENorm,
                           Id::kMtpHNorm};

}  // namespace

std::span<const TensorRow> V41Tensors() {
  static const std::vector<TensorRow> rows = [] {
    std::vector<TensorRow> all(std::begin(kOwn), std::end(kOwn));
    for (const TensorRow& row : V4Tensors()) {
      const bool own = std::ranges::find(kOwn, row.id, &TensorRow::id) != std::end(kOwn);
      if (!own && std::ranges::find(kMissing, row.id) == std::end(kMissing)) all.push_back(row);
    }
    std::ranges::sort(all, {}, &TensorRow::id);
    return all;
  }();
  return rows;
}

}  // namespace dsv4::model
