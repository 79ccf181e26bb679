// V4.1's config.json in both dialects, the plans that follow from it, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/json.h"
#include "model/arch/v41/v41.h"

namespace dsv4::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The release's numbers.
Json TextConfig() {
  Json json = Json::parse(R"({
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups": 8,
    "o_lora_rank": 1024, "sliding_window": 128, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "rms_norm_eps": 1e-20, "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "index_n_heads": 32, "index_head_dim": 128,
    "index_topk": 512, "n_routed_experts": 384, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 2304, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "routed_scaling_factor": 1.5, "swiglu_limit": 10, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "engram_layer_ids": [1, 14], "engram_vocab_size": 16000000,
    "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4, "engram_n_heads": 8,
    "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3})");
  json["compress_ratios"] = Json::array();
  for (const auto& [ratio, count] : {std::pair{0, 2}, std::pair{2, 18}, std::pair{1, 20}, std::pair{0, 3}})
    for (int i = 0; i < count; ++i) json["compress_ratios"].push_back(ratio);
  return json;
}

Json Nested() {
  return {{"architectures", {"DeepseekV41ForConditionalGeneration"}},
          {"model_type", "deepseek_v41"},
          {"text_config", TextConfig()},
          {"vision_config", {{"n_layers", 27}}},
          {"image_token_id", 129264},
          {"eos_token_id", 1},
          {"quantization_config",
           {{"quant_method", "fp8"},
            {"weight_block_size", {32, 32}},
            {"scale_fmt", "ue8m0"},
            {"expert_dtype", "fp4"}}}};
}

// inference/config.json
Json Flat() {
  Json json = TextConfig();
  json.erase("model_type");
  for (const auto& [name, flat] : {std::pair{"hidden_size", "dim"},
                                   {"num_hidden_layers", "n_layers"},
                                   {"num_attention_heads", "n_heads"},
                                   {"qk_rope_head_dim", "rope_head_dim"},
                                   {"sliding_window", "window_size"},
                                   {"rms_norm_eps", "norm_eps"},
                                   {"kv_source_layer_ids", "kv_source_layers"},
                                   {"index_source_layer_ids", "index_source_layers"},
                                   {"candidate_source_layer_id", "candidate_source_layer"},
                                   {"num_experts_per_tok", "n_activated_experts"},
                                   {"moe_intermediate_size", "moe_inter_dim"},
                                   {"scoring_func", "score_func"},
                                   {"routed_scaling_factor", "route_scale"},
                                   {"engram_pad_token_id", "engram_pad_id"},
                                   {"num_nextn_predict_layers", "n_mtp_layers"},
                                   {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}}) {
    json[flat] = json[name];
    json.erase(name);
  }
  return json;
}

ModelConfig Parse(const Json& json) {
  auto config = ParseV41Config(json, "config.json");
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message());
  return config ? *config : ModelConfig();
}

std::string Fault(const Json& json) {
  const auto config = ParseV41Config(json, "config.json");
  return config ? "accepted" : config.error().message();
}

Json With(const char* key, Json value) {
  Json json = Nested();
  json["text_config"][key] = std::move(value);
  return json;
}

TEST(V41Config, IsKnownByNamesAndByKeys) {
  EXPECT_TRUE(IsV41Config(Nested()));
  EXPECT_TRUE(IsV41Config(Flat()));
  EXPECT_TRUE(IsV41Config(TextConfig()));
  EXPECT_FALSE(IsV41Config({{"model_type", "deepseek_v4"}}));
}

TEST(V41Config, BothDialectsSayTheSame) {
  for (const ModelConfig& config : {Parse(Nested()), Parse(Flat())}) {
    EXPECT_EQ(config.hidden_size, 5120);
    EXPECT_EQ(config.num_hidden_layers, 40);
    EXPECT_EQ(config.num_attention_heads, 64);
    EXPECT_EQ(config.qk_rope_head_dim, 64);
    EXPECT_EQ(config.sliding_window, 128);
    EXPECT_EQ(config.num_experts_per_tok, 6);
    EXPECT_EQ(config.moe_intermediate_size, 2304);
    EXPECT_DOUBLE_EQ(config.rms_norm_eps, 1e-20);
    EXPECT_DOUBLE_EQ(config.router_eps, 1e-20);
    EXPECT_DOUBLE_EQ(config.gate_temp, 1);
    EXPECT_DOUBLE_EQ(config.routed_scaling_factor, 1.5);
    EXPECT_EQ(config.max_position_embeddings, 1048576);
    EXPECT_FALSE(config.rope.yarn);
    EXPECT_TRUE(config.compress_rope.yarn);
    EXPECT_EQ(config.candidate_topk_blocks, 2048);
    EXPECT_EQ(config.candidate_block_size, 8);
    ASSERT_TRUE(config.engram.has_value());
    EXPECT_THAT(config.engram->layer_ids, ElementsAre(1, 14));
    EXPECT_EQ(config.engram->compressed_vocab_size, 99092);
    EXPECT_EQ(config.engram->row_dim(), 6144);
    ASSERT_TRUE(config.dspark.has_value()) << config.dspark_fault;
    EXPECT_EQ(config.dspark->n_routed_experts, 128);
    EXPECT_EQ(config.dspark->num_experts_per_tok, 3);
    EXPECT_TRUE(config.dspark->taps_inputs);
    EXPECT_EQ(config.entry_rows.RowBytes(512) + config.key_rows.RowBytes(128), 356);
    EXPECT_EQ(config.window_rows.RowBytes(512), 528);
    EXPECT_EQ(config.quantization.weight_block_rows, 32);
    EXPECT_EQ(config.quantization.weight_block_cols, 32);
  }
  EXPECT_EQ(Parse(Nested()).expert_dtype, "fp4");
  EXPECT_THAT(Parse(Nested()).eos_token_ids, ElementsAre(1));
}

TEST(V41Config, PlansNameOwners) {
  const std::vector<LayerPlan> plans = Parse(Nested()).layers;
  ASSERT_EQ(plans.size(), 40U);
  const auto owners = [&](size_t i) {
    const LayerPlan& p = plans[i];
    return std::vector<int>{p.entries, p.keys, p.selection, p.candidates, static_cast<int>(p.ratio)};
  };
  EXPECT_THAT(owners(1), ElementsAre(-1, -1, -1, -1, 0));
  EXPECT_THAT(owners(2), ElementsAre(2, 2, 2, -1, 2));
  EXPECT_THAT(owners(7), ElementsAre(2, -1, 2, -1, 2));
  EXPECT_THAT(owners(19), ElementsAre(14, -1, 14, -1, 2));
  EXPECT_THAT(owners(20), ElementsAre(20, 20, 20, 20, 1));
  EXPECT_THAT(owners(23), ElementsAre(20, -1, 20, -1, 1));
  EXPECT_THAT(owners(24), ElementsAre(20, 20, 24, 20, 1));
  EXPECT_THAT(owners(39), ElementsAre(20, -1, 36, -1, 1));
  EXPECT_TRUE(plans[20].makes_candidates());
  EXPECT_FALSE(plans[20].bound_by_candidates());
  EXPECT_TRUE(plans[24].bound_by_candidates());
  EXPECT_FALSE(plans[24].makes_keys());
  EXPECT_EQ(plans[1].engram, 0);
  EXPECT_EQ(plans[14].engram, 1);
  EXPECT_EQ(plans[15].engram, -1);
  EXPECT_EQ(plans[2].pooling, Pooling::kGated);
  EXPECT_EQ(plans[20].pooling, Pooling::kSingle);
  EXPECT_EQ(plans[1].rope, RopeKind::kPlain);
  EXPECT_EQ(plans[2].rope, RopeKind::kCompressed);
}

TEST(V41Config, CandidatesOfANullAndANegativeSource) {
  const auto of_layer_24 = [](Json source) {
    return Parse(With("candidate_source_layer_id", std::move(source))).layers[24].candidates;
  };
  EXPECT_EQ(of_layer_24(nullptr), 20);
  EXPECT_EQ(of_layer_24(-1), -1);
}

TEST(V41Config, RefusesByTheKey) {
  EXPECT_THAT(Fault(With("scoring_func", "softmax")), HasSubstr("key scoring_func: holds \"softmax\""));
  EXPECT_THAT(Fault(With("norm_topk_prob", 3)), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(Fault(With("kv_source_layer_ids", {8, 2})), HasSubstr("wanted layers that ascend"));
  EXPECT_THAT(Fault(With("kv_source_layer_ids", {3, 8, 14, 20})), HasSubstr("compress_ratios[2]"));
  EXPECT_THAT(Fault(With("index_source_layer_ids", {2, 14, 20})), HasSubstr("which reads other entries"));
  EXPECT_THAT(Fault(With("index_source_layer_ids", {0, 2, 8, 14, 20})), HasSubstr("compress_ratios[0]"));
  EXPECT_THAT(Fault(With("candidate_source_layer_id", 14)), HasSubstr("candidates of layer 14"));
  EXPECT_THAT(Fault(With("candidate_source_layer_id", 21)), HasSubstr("candidate_source_layer_id"));
  EXPECT_THAT(Fault(With("compress_ratios", {0, 0, 2})), HasSubstr("compress_ratios"));
  EXPECT_THAT(Fault(With("engram_layer_ids", {14, 1})), HasSubstr("engram_layer_ids"));
  EXPECT_THAT(Fault(With("engram_num_embeddings", {5})), HasSubstr("engram_num_embeddings"));
  EXPECT_THAT(Fault(With("dim", 4096)), HasSubstr("key dim: holds 4096, wanted 5120, as hidden_size says"));
}

}  // namespace
}  // namespace dsv4::model
