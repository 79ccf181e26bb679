#include "model/checkpoint/tensor_table.h"

#include "base/check.h"

namespace dsv4::model {
namespace {

using Config = const ModelConfig&;
using Layer = const LayerConfig&;
using Id = TensorId;
using Kind = TensorKind;
using Scope = TensorScope;

Shape HiddenVector(Config c, Layer) { return {c.hidden_size}; }
Shape Square(Config c, Layer) { return {c.hidden_size, c.hidden_size}; }
Shape Vocabulary(Config c, Layer) { return {c.vocab_size, c.hidden_size}; }
Shape HcFn(Config c, Layer) { return {c.hc_mix(), c.hc_dim()}; }
Shape HcBase(Config c, Layer) { return {c.hc_mix()}; }
Shape HcScale(Config, Layer) { return {3}; }
Shape CompressorMatrix(Config c, Layer l) { return {l.compress_overlap() * c.head_dim, c.hidden_size}; }
Shape CompressorApe(Config c, Layer l) { return {l.compress_ratio, l.compress_overlap() * c.head_dim}; }
Shape IndexerMatrix(Config c, Layer l) { return {l.compress_overlap() * c.index_head_dim, c.hidden_size}; }
Shape IndexerApe(Config c, Layer l) { return {l.compress_ratio, l.compress_overlap() * c.index_head_dim}; }
Shape ExpertIn(Config c, Layer) { return {c.moe_intermediate_size, c.hidden_size}; }
Shape ExpertOut(Config c, Layer) { return {c.hidden_size, c.moe_intermediate_size}; }
Shape PerExpert(Config c, Layer) { return {c.n_routed_experts}; }

// Source of names and shapes: model.md 11.1.
constexpr TensorRow kTable[] = {
    {Id::kEmbed, "{embed|embed_tokens}", Kind::kEmbedding, Scope::kModel, Vocabulary},
    {Id::kHead, "{head|lm_head}", Kind::kLinear, Scope::kModel, Vocabulary},
    {Id::kNorm, "norm.weight", Kind::kVector, Scope::kModel, HiddenVector},
    {Id::kHcHeadFn, "{hc_head_fn|hc_head.hc_fn}", Kind::kVector, Scope::kModel,
     [](Config c, Layer) {
       return Shape{c.hc_mult, c.hc_dim()};
     }},
    {Id::kHcHeadBase, "{hc_head_base|hc_head.hc_base}", Kind::kVector, Scope::kModel,
     [](Config c, Layer) { return Shape{c.hc_mult}; }},
    {Id::kHcHeadScale, "{hc_head_scale|hc_head.hc_scale}", Kind::kVector, Scope::kModel,
     [](Config, Layer) { return Shape{1}; }},

    {Id::kAttnNorm, "{attn_norm|input_layernorm}.weight", Kind::kVector, Scope::kLayer, HiddenVector},
    {Id::kFfnNorm, "{ffn_norm|post_attention_layernorm}.weight", Kind::kVector, Scope::kLayer, HiddenVector},
    {Id::kHcAttnFn, "{hc_attn_fn|attn_hc.fn}", Kind::kVector, Scope::kLayer, HcFn},
    {Id::kHcAttnBase, "{hc_attn_base|attn_hc.base}", Kind::kVector, Scope::kLayer, HcBase},
    {Id::kHcAttnScale, "{hc_attn_scale|attn_hc.scale}", Kind::kVector, Scope::kLayer, HcScale},
    {Id::kHcFfnFn, "{hc_ffn_fn|ffn_hc.fn}", Kind::kVector, Scope::kLayer, HcFn},
    {Id::kHcFfnBase, "{hc_ffn_base|ffn_hc.base}", Kind::kVector, Scope::kLayer, HcBase},
    {Id::kHcFfnScale, "{hc_ffn_scale|ffn_hc.scale}", Kind::kVector, Scope::kLayer, HcScale},

    {Id::kAttnSink, "{attn|self_attn}.{attn_sink|sinks}", Kind::kVector, Scope::kLayer,
     [](Config c, Layer) { return Shape{c.num_attention_heads}; }},
    {Id::kWqA, "{attn|self_attn}.{wq_a|q_a_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.q_lora_rank, c.hidden_size};
     },
     true},
    {Id::kQNorm, "{attn|self_attn}.{q_norm|q_a_norm}.weight", Kind::kVector, Scope::kLayer,
     [](Config c, Layer) { return Shape{c.q_lora_rank}; }},
    {Id::kWqB, "{attn|self_attn}.{wq_b|q_b_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.q_dim(), c.q_lora_rank};
     },
     true},
    {Id::kWkv, "{attn|self_attn}.{wkv|kv_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.head_dim, c.hidden_size};
     },
     true},
    // save_pretrained turns every kv_norm into norm.
    {Id::kKvNorm, "{attn|self_attn}.{kv_norm|norm|kv_norm}.weight", Kind::kVector, Scope::kLayer,
     [](Config c, Layer) { return Shape{c.head_dim}; }},
    // The release expands wo_a to bf16 and leaves its input alone.
    {Id::kWoA, "{attn|self_attn}.{wo_a|o_a_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.o_groups * c.o_lora_rank, c.o_group_dim()};
     }},
    {Id::kWoB, "{attn|self_attn}.{wo_b|o_b_proj}", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.hidden_size, c.o_groups * c.o_lora_rank};
     },
     true},

    {Id::kCompressorWkv, "{attn|self_attn}.compressor.{wkv|kv_proj}", Kind::kLinear, Scope::kCompressed,
     CompressorMatrix},
    {Id::kCompressorWgate, "{attn|self_attn}.compressor.{wgate|gate_proj}", Kind::kLinear, Scope::kCompressed,
     CompressorMatrix},
    {Id::kCompressorApe, "{attn|self_attn}.compressor.{ape|position_bias}", Kind::kVector, Scope::kCompressed,
     CompressorApe},
    {Id::kCompressorNorm, "{attn|self_attn}.compressor.{norm|kv_norm}.weight", Kind::kVector,
     Scope::kCompressed, [](Config c, Layer) { return Shape{c.head_dim}; }},

    {Id::kIndexerWqB, "{attn|self_attn}.{indexer|compressor.indexer}.{wq_b|q_b_proj}", Kind::kLinear,
     Scope::kCsa,
     [](Config c, Layer) {
       return Shape{c.index_n_heads * c.index_head_dim, c.q_lora_rank};
     },
     true},
    {Id::kIndexerWeightsProj,
     "{attn|self_attn}.{indexer|compressor.indexer}.{weights_proj|scorer.weights_proj}", Kind::kLinear,
     Scope::kCsa,
     [](Config c, Layer) {
       return Shape{c.index_n_heads, c.hidden_size};
     },
     true},
    {Id::kIndexerCompressorWkv, "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{wkv|kv_proj}",
     Kind::kLinear, Scope::kCsa, IndexerMatrix},
    {Id::kIndexerCompressorWgate,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{wgate|gate_proj}", Kind::kLinear, Scope::kCsa,
     IndexerMatrix},
    {Id::kIndexerCompressorApe,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{ape|position_bias}", Kind::kVector,
     Scope::kCsa, IndexerApe},
    {Id::kIndexerCompressorNorm,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{norm|kv_norm}.weight", Kind::kVector,
     Scope::kCsa, [](Config c, Layer) { return Shape{c.index_head_dim}; }},

    {Id::kGate, "{ffn|mlp}.gate", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.n_routed_experts, c.hidden_size};
     }},
    {Id::kGateBias, "{ffn|mlp}.gate.{bias|e_score_correction_bias}", Kind::kVector, Scope::kScored,
     PerExpert},
    {Id::kGateTid2Eid, "{ffn|mlp}.gate.tid2eid", Kind::kExpertIds, Scope::kHashed,
     [](Config c, Layer) {
       return Shape{c.vocab_size, c.num_experts_per_tok};
     }},
    {Id::kSharedW1, "{ffn|mlp}.shared_experts.{w1|gate_proj}", Kind::kLinear, Scope::kLayer, ExpertIn, true},
    {Id::kSharedW2, "{ffn|mlp}.shared_experts.{w2|down_proj}", Kind::kLinear, Scope::kLayer, ExpertOut, true},
    {Id::kSharedW3, "{ffn|mlp}.shared_experts.{w3|up_proj}", Kind::kLinear, Scope::kLayer, ExpertIn, true},
    {Id::kExpertW1, "{ffn|mlp}.experts.#.{w1|gate_proj}", Kind::kLinear, Scope::kExpert, ExpertIn, true},
    {Id::kExpertW2, "{ffn|mlp}.experts.#.{w2|down_proj}", Kind::kLinear, Scope::kExpert, ExpertOut, true},
    {Id::kExpertW3, "{ffn|mlp}.experts.#.{w3|up_proj}", Kind::kLinear, Scope::kExpert, ExpertIn, true},
    {Id::kFusedExpertsW1W3, "{ffn|mlp}.experts.gate_up_proj", Kind::kLinear, Scope::kFusedExperts,
     [](Config c, Layer) {
       return Shape{2 * c.moe_intermediate_size, c.hidden_size};
     },
     true},
    {Id::kFusedExpertsW2, "{ffn|mlp}.experts.down_proj", Kind::kLinear, Scope::kFusedExperts, ExpertOut,
     true},
    {Id::kGateBiasVision, "{ffn|mlp}.gate.bias_vl", Kind::kVision, Scope::kVision, PerExpert},

    {Id::kMtpEProj, "e_proj", Kind::kLinear, Scope::kMtp, Square, true},
    {Id::kMtpHProj, "h_proj", Kind::kLinear, Scope::kMtp, Square, true},
    {Id::kMtpENorm, "enorm.weight", Kind::kVector, Scope::kMtp, HiddenVector},
    {Id::kMtpHNorm, "hnorm.weight", Kind::kVector, Scope::kMtp, HiddenVector},

    // The Markov tables' names end like an expert's; they are no part of any.
    {Id::kDsparkMainProj, "main_proj", Kind::kLinear, Scope::kDsparkFirst, nullptr, true},
    {Id::kDsparkMainNorm, "main_norm.weight", Kind::kVector, Scope::kDsparkFirst, HiddenVector},
    {Id::kDsparkMarkovW1, "markov_head.markov_w1", Kind::kEmbedding, Scope::kDsparkLast, nullptr},
    {Id::kDsparkMarkovW2, "markov_head.markov_w2", Kind::kLinear, Scope::kDsparkLast, nullptr},
    {Id::kDsparkConfidence, "confidence_head.proj", Kind::kLinear, Scope::kDsparkLast, nullptr},
};
static_assert(std::size(kTable) == kNumTensorIds);

}  // namespace

std::span<const TensorRow> TensorTable() { return kTable; }

const TensorRow& RowOf(TensorId id) {
  const TensorRow& row = kTable[static_cast<size_t>(id)];
  DSV4_CHECK(row.id == id) << "the table is not in the order of TensorId at " << row.names;
  return row;
}

bool LayerHas(const TensorRow& row, const LayerConfig& layer) {
  switch (row.scope) {
    case Scope::kLayer:
    case Scope::kExpert:
      return true;
    case Scope::kCompressed:
      return layer.compressed();
    case Scope::kCsa:
      return layer.kind == LayerKind::kCsa;
    case Scope::kScored:
      return !layer.hash_routed;
    case Scope::kHashed:
      return layer.hash_routed;
    case Scope::kModel:
    case Scope::kFusedExperts:
    case Scope::kVision:
    case Scope::kMtp:
    case Scope::kDsparkFirst:
    case Scope::kDsparkLast:
      return false;
  }
  return false;
}

namespace {

bool IsOfHead(const TensorRow& row) {
  return row.id == TensorId::kNorm || row.id == TensorId::kHcHeadFn || row.id == TensorId::kHcHeadBase ||
         row.id == TensorId::kHcHeadScale;
}

}  // namespace

bool IsOfMtp(const TensorRow& row) {
  return row.scope == TensorScope::kMtp || IsOfHead(row) || LayerHas(row, LayerConfig());
}

bool IsOfDspark(const TensorRow& row, bool first, bool last) {
  if (row.scope == TensorScope::kDsparkFirst) return first;
  if (row.scope == TensorScope::kDsparkLast || IsOfHead(row)) return last;
  return LayerHas(row, LayerConfig());
}

Shape DsparkShape(TensorId id, const ModelConfig& config, const DsparkConfig& dspark) {
  const int64_t width = config.hidden_size;
  switch (id) {
    case TensorId::kDsparkMainProj:
      return {width, width * static_cast<int64_t>(dspark.target_layer_ids.size())};
    case TensorId::kDsparkMarkovW1:
    case TensorId::kDsparkMarkovW2:
      return {config.vocab_size, dspark.markov_rank};
    case TensorId::kDsparkConfidence:
      return {1, width + dspark.markov_rank};
    default:
      break;
  }
  DSV4_CHECK(false) << "not of a DSpark drafter alone: " << RowOf(id).names;
  return {};
}

bool IsFp8InRelease(TensorId id) {
  switch (id) {
    case TensorId::kMtpEProj:
    case TensorId::kMtpHProj:
    case TensorId::kDsparkMainProj:
    case TensorId::kWqA:
    case TensorId::kWqB:
    case TensorId::kWkv:
    case TensorId::kWoA:
    case TensorId::kWoB:
    case TensorId::kIndexerWqB:
    case TensorId::kSharedW1:
    case TensorId::kSharedW2:
    case TensorId::kSharedW3:
      return true;
    default:
      return false;
  }
}

std::vector<std::string> ExpandNames(std::string_view pattern) {
  std::vector<std::string> names = {""};
  const auto append = [&](const std::vector<std::string_view>& choices) {
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string_view choice : choices) longer.push_back(name + std::string(choice));
    }
    names = std::move(longer);
  };
  while (!pattern.empty()) {
    const size_t open = pattern.find('{');
    append({pattern.substr(0, open)});
    if (open == std::string_view::npos) break;
    const size_t close = pattern.find('}', open);
    DSV4_CHECK(close != std::string_view::npos) << "unclosed group in " << pattern;
    std::vector<std::string_view> choices;
    std::string_view group = pattern.substr(open + 1, close - open - 1);
    for (size_t bar = group.find('|'); bar != std::string_view::npos; bar = group.find('|')) {
      choices.push_back(group.substr(0, bar));
      group.remove_prefix(bar + 1);
    }
    choices.push_back(group);
    append(choices);
    pattern.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace dsv4::model
