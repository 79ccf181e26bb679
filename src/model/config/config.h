// The hyperparameters of one checkpoint. The room of its architecture reads them from config.json
// (model/arch/architecture.h). Field names are the release's config keys.
//
// Every number is finite and inside a range that lets sizes be multiplied in int64 without overflow, and the
// divisibility rules of the architecture hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config/layer_plan.h"
#include "model/config/tensor_rows.h"
#include "tensor/cache_format.h"

namespace dsv4::model {

struct Trunk;

// One rotary table. YaRN changes frequencies only, never amplitudes (model.md 9).
struct RopeConfig {
  double theta = 0;
  bool yarn = false;
  // Meaningful only with yarn.
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;

  friend bool operator==(const RopeConfig& a, const RopeConfig& b) = default;
};

// `quantization_config` as written. What a tensor is stored as follows from its dtype, shape and siblings;
// this is compared with it afterwards.
struct QuantizationConfig {
  std::string quant_method;    // The tool's name; empty when the file has no such section.
  std::string quant_algo;      // "NVFP4", "MIXED_PRECISION" or empty.
  std::string moe_quant_algo;  // "NVFP4" or empty.
  std::string scale_fmt;       // "ue8m0" or empty.
  // FP8 block size, output rows by input columns. nullopt when the file names none: 128 x 128 is tried.
  std::optional<int64_t> weight_block_rows;
  std::optional<int64_t> weight_block_cols;
  std::vector<std::string> quantized_layers;  // Module names stored as NVFP4, as spelled in the file.
  std::vector<std::string> ignore;            // Module name patterns left in the source format.
};

// A DSpark drafter: the `dspark_*` keys of the releases from July 2026 on (dspark_config.h). How many stages
// there are is shown by the tensors alone: num_nextn_predict_layers stayed 1 when there were three.
struct DsparkConfig {
  int64_t block_size = 0;      // Tokens that one pass drafts.
  int64_t noise_token_id = 0;  // Token that stands behind the anchor in a block.
  int64_t markov_rank = 0;     // Columns of both Markov tables.
  std::vector<int64_t>
      target_layer_ids;  // Layers of the trunk whose streams are tapped, in the order of main_proj's columns.
  bool taps_inputs =
      false;  // The streams in front of a tapped layer, behind its Engram; else those behind it.
  // Experts of its layers; the releases before V4.1 have the trunk's.
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
};

// Tables of n-grams whose rows are mixed into the streams in front of some layers: the `engram_*` keys of
// V4.1.
struct EngramConfig {
  std::vector<int64_t> layer_ids;       // Ascending.
  std::vector<int64_t> num_embeddings;  // Rows of each layer's table.
  int64_t vocab_size = 0;               // No table of one n-gram size and head has fewer rows.
  int64_t max_ngram_size = 0;           // Sizes 2 up to this one.
  int64_t n_heads = 0;                  // For each size.
  int64_t head_dim = 0;
  int64_t pad_token_id = 0;           // Stands in front of the first token.
  int64_t compressed_vocab_size = 0;  // Classes of tokens; 0 where the file names none.

  int64_t rows_per_token() const { return (max_ngram_size - 1) * n_heads; }
  int64_t row_dim() const { return rows_per_token() * head_dim; }
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;

  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;          // K = V row, rotary part included.
  int64_t qk_rope_head_dim = 0;  // The last dims of a head; even.
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0;     // Divides num_attention_heads.
  int64_t o_lora_rank = 0;  // Per group.
  int64_t sliding_window = 0;

  // Zero when no layer selects and the file leaves them out.
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  bool hadamard_keys = true;  // Whether queries and keys of the indexer are rotated before they are rounded.
  // How many blocks of how many entries a layer's candidates are; zero where no layer makes any.
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  // The grids that release numerics round cached rows to, which is also how they are packed.
  CacheFormat window_rows;
  CacheFormat entry_rows;
  CacheFormat key_rows;
  bool delays_mix = false;       // Whether a sub-layer's input is mixed by the weights of the one before.
  bool norm_query_heads = true;  // Whether each head's query has unit mean square.
  int64_t activation_block =
      128;  // Columns of activations that share a scale in front of FP8 and MXFP4 weights.

  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;  // Routed and shared experts. There is always one shared expert.
  double routed_scaling_factor = 1;
  double gate_temp = 1;            // Divides the router's logits.
  double router_eps = 0;           // Added to the sum that divides the weights.
  bool norm_topk_prob = true;      // Whether weights are divided by their sum,
  bool norm_single_expert = true;  // and that of a single expert by itself.
  double swiglu_limit = 0;         // 0: no clamp.

  int64_t hc_mult = 0;  // Residual streams.
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  double rms_norm_eps = 0;

  RopeConfig rope;           // Layers of RopeKind::kPlain.
  RopeConfig compress_rope;  // Everything in layers of RopeKind::kCompressed.

  bool tie_word_embeddings = false;
  std::vector<int64_t> bos_token_ids;  // As written; may be empty.
  std::vector<int64_t> eos_token_ids;

  std::optional<EngramConfig> engram;

  std::vector<LayerPlan> layers;       // num_hidden_layers plans, checked; a draft module's tail is dropped.
  std::span<const TensorRow> tensors;  // The architecture's table of tensors (tensor_rows.h),
  const Trunk* trunk = nullptr;        // and its layer (graph/trunk.h).

  // Drafters and vision parts. The model runs without them, so a fault of their keys is no error of the
  // configuration.
  int64_t num_nextn_predict_layers = 0;
  bool drafter_taps_inputs = false;  // DsparkConfig::taps_inputs, wherever the drafter lies.
  std::optional<DsparkConfig> dspark;
  std::string dspark_fault;  // Why there is none although some of its keys are there.
  bool has_vision = false;

  std::string expert_dtype;  // "fp4", "fp8" or empty, as written.
  QuantizationConfig quantization;
  std::vector<std::string> unknown_keys;  // Keys of config.json without effect.

  int64_t NumExperts(const LayerPlan& layer) const {
    return layer.num_experts > 0 ? layer.num_experts : n_routed_experts;
  }
  int64_t ExpertsPerToken(const LayerPlan& layer) const {
    return layer.experts_per_token > 0 ? layer.experts_per_token : num_experts_per_tok;
  }
  int64_t hc_dim() const { return hc_mult * hidden_size; }
  int64_t hc_mix() const { return (2 + hc_mult) * hc_mult; }  // Rows of hc_{attn,ffn}_fn: pre, post, comb.
  int64_t q_dim() const { return num_attention_heads * head_dim; }
  int64_t o_group_dim() const { return q_dim() / o_groups; }  // Input columns of wo_a.
  int64_t nope_head_dim() const { return head_dim - qk_rope_head_dim; }
};

// One line for people; empty where there are none.
std::string UnknownKeys(const ModelConfig& config);

}  // namespace dsv4::model
