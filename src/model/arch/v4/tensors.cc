// The tensors of a V4 checkpoint. Source of names and shapes: model.md 11.1.
#include "model/arch/v4/v4.h"
#include "model/config/config.h"

namespace dsv4::model {
namespace {

using Config = const ModelConfig&;
using Layer = const LayerPlan&;
using Id = TensorId;
using Kind = TensorKind;
using Scope = TensorScope;

Shape HiddenVector(Config c, Layer) { return {c.hidden_size}; }
Shape Square(Config c, Layer) { return {c.hidden_size, c.hidden_size}; }
Shape Vocabulary(Config c, Layer) { return {c.vocab_size, c.hidden_size}; }
Shape HcFn(Config c, Layer) { return {c.hc_mix(), c.hc_dim()}; }
Shape HcBase(Config c, Layer) { return {c.hc_mix()}; }
Shape HcScale(Config, Layer) { return {3}; }
Shape CompressorMatrix(Config c, Layer l) { return {l.overlap * c.head_dim, c.hidden_size}; }
Shape CompressorApe(Config c, Layer l) { return {l.ratio, l.overlap * c.head_dim}; }
Shape IndexerMatrix(Config c, Layer l) { return {l.overlap * c.index_head_dim, c.hidden_size}; }
Shape IndexerApe(Config c, Layer l) { return {l.ratio, l.overlap * c.index_head_dim}; }
Shape ExpertIn(Config c, Layer) { return {c.moe_intermediate_size, c.hidden_size}; }
Shape ExpertOut(Config c, Layer) { return {c.hidden_size, c.moe_intermediate_size}; }
bool Compresses(Layer l) { return l.makes_entries(); }
bool MakesKeys(Layer l) { return l.makes_keys(); }
bool Selects(Layer l) { return l.selects(); }
// A vision checkpoint has the bias in layers routed by token ids too, for image tokens.
bool RoutesByScore(Layer l) { return l.router == RouterKind::kScores; }
bool RoutesByTokenIds(Layer l) { return l.router == RouterKind::kTokenIds; }
Shape PerExpert(Config c, Layer) { return {c.n_routed_experts}; }

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

    {Id::kCompressorWkv, "{attn|self_attn}.compressor.{wkv|kv_proj}", Kind::kLinear, Scope::kLayer,
     CompressorMatrix, false, Compresses},
    {Id::kCompressorWgate, "{attn|self_attn}.compressor.{wgate|gate_proj}", Kind::kLinear, Scope::kLayer,
     CompressorMatrix, false, Compresses},
    {Id::kCompressorApe, "{attn|self_attn}.compressor.{ape|position_bias}", Kind::kVector, Scope::kLayer,
     CompressorApe, false, Compresses},
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
    {Id::kIndexerCompressorWkv, "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{wkv|kv_proj}",
     Kind::kLinear, Scope::kLayer, IndexerMatrix, false, MakesKeys},
    {Id::kIndexerCompressorWgate,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{wgate|gate_proj}", Kind::kLinear,
     Scope::kLayer, IndexerMatrix, false, MakesKeys},
    {Id::kIndexerCompressorApe,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{ape|position_bias}", Kind::kVector,
     Scope::kLayer, IndexerApe, false, MakesKeys},
    {Id::kIndexerCompressorNorm,
     "{attn|self_attn}.{indexer.compressor|compressor.indexer}.{norm|kv_norm}.weight", Kind::kVector,
     Scope::kLayer, [](Config c, Layer) { return Shape{c.index_head_dim}; }, false, MakesKeys},

    {Id::kGate, "{ffn|mlp}.gate", Kind::kLinear, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.n_routed_experts, c.hidden_size};
     }},
    {Id::kGateBias, "{ffn|mlp}.gate.{bias|e_score_correction_bias}", Kind::kVector, Scope::kLayer, PerExpert,
     false, RoutesByScore},
    {Id::kGateTid2Eid, "{ffn|mlp}.gate.tid2eid", Kind::kExpertIds, Scope::kLayer,
     [](Config c, Layer) {
       return Shape{c.vocab_size, c.num_experts_per_tok};
     },
     false, RoutesByTokenIds},
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
}  // namespace

std::span<const TensorRow> V4Tensors() { return kTable; }

}  // namespace dsv4::model
