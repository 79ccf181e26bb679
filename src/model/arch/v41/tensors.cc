// The tensors of a V4.1 checkpoint. Names of the release; those of transformers are V4's.
#include "model/arch/v41/v41.h"
#include "model/config/config.h"

namespace dsv4::model {
namespace {

using Config = const ModelConfig&;
using Layer = const LayerPlan&;
using Id = TensorId;
using Kind = TensorKind;
using Scope = TensorScope;

Shape HiddenVector(Config c, Layer) { return {c.hidden_size}; }
Shape Vocabulary(Config c, Layer) { return {c.vocab_size, c.hidden_size}; }
Shape HcFn(Config c, Layer) { return {c.hc_mix(), c.hc_dim()}; }
Shape HcBase(Config c, Layer) { return {c.hc_mix()}; }
Shape HcScale(Config, Layer) { return {3}; }
Shape CompressorMatrix(Config c, Layer l) { return {l.overlap * c.head_dim, c.hidden_size}; }
Shape ExpertIn(Config c, Layer) { return {c.moe_intermediate_size, c.hidden_size}; }
Shape ExpertOut(Config c, Layer) { return {c.hidden_size, c.moe_intermediate_size}; }
bool Compresses(Layer l) { return l.makes_entries(); }
bool MakesKeys(Layer l) { return l.makes_keys(); }
bool Selects(Layer l) { return l.selects(); }
bool Gates(Layer l) { return l.makes_entries() && l.pooling != Pooling::kSingle; }
bool HasEngram(Layer l) { return l.has_engram(); }
Shape PerExpert(Config c, Layer l) { return {c.NumExperts(l)}; }
Shape PerStream(Config c, Layer) { return {c.hc_mult, c.hidden_size}; }
Shape EngramTableShape(Config c, Layer l) {
  return {c.engram->num_embeddings[static_cast<size_t>(l.engram)], c.engram->head_dim};
}

constexpr TensorRow kTable[] = {
    {Id::kEmbed, "{embed|embed_tokens}", Kind::kEmbedding, Scope::kModel, Vocabulary},
    {Id::kHead, "{head|lm_head}", Kind::kLinear, Scope::kModel, Vocabulary},
    {Id::kNorm, "norm.weight", Kind::kVector, Scope::kModel, HiddenVector},
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

    {Id::kCompressorWkv, "{attn|self_attn}.compressor.{wkv|kv_proj}", Kind::kLinear, Scope::kLayer,
     CompressorMatrix, false, Compresses},
    {Id::kCompressorWgate, "{attn|self_attn}.compressor.{wgate|gate_proj}", Kind::kLinear, Scope::kLayer,
     CompressorMatrix, false, Gates},
    {Id::kCompressorNorm, "{attn|self_attn}.compressor.{norm|kv_norm}.weight", Kind::kVector, Scope::kLayer,
     [](Config c, Layer) { return Shape{c.head_dim}; }, false, Compresses},

    {Id::kIndexerWqB, "{attn|self_attn}.{indexer|compressor.indexer}.{wq_b|q_b_proj}", Kind::kLinear,
     Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.index_n_heads * c.index_head_dim, c.q_lora_rank};
     },
     true, Selects},
    {Id::kIndexerWeightsProj,
     "{attn|self_attn}.{indexer|compressor.indexer}.{weights_proj|scorer.weights_proj}", Kind::kLinear,
     Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.index_n_heads, c.hidden_size};
     },
     true, Selects},
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

    {Id::kDsparkMainProj, "main_proj", Kind::kLinear, Scope::kDsparkFirst, nullptr, true},
    {Id::kDsparkMainNorm, "main_norm.weight", Kind::kVector, Scope::kDsparkFirst, HiddenVector},
    {Id::kDsparkMarkovW1, "markov_head.embed", Kind::kEmbedding, Scope::kDsparkLast, nullptr},
    {Id::kDsparkMarkovW2, "markov_head.head", Kind::kLinear, Scope::kDsparkLast, nullptr},
    {Id::kDsparkConfidence, "confidence_head.proj", Kind::kLinear, Scope::kDsparkLast, nullptr},
};
}  // namespace

std::span<const TensorRow> V41Tensors() { return kTable; }

}  // namespace dsv4::model
