// V4.1's config.json in both dialects, the plans that follow from it, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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

// The form of transformers: both rotary tables in rope_parameters, and where entries are made.
TEST(V41Config, ReadsTransformersNames) {
  Json json = Nested();
  Json& text = json["text_config"];
  const Json yarn = text["rope_scaling"];
  Json compress = yarn;
  compress["rope_theta"] = 160000;
  compress["partial_rotary_factor"] = 0.125;
  compress["attention_factor"] = 1.0;
  text["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", 10000}, {"partial_rotary_factor", 0.125}}},
      {"compress", compress}};
  text["layer_types"] = Json::array();
  for (int i = 0; i < 40; ++i) {
    const bool makes = i == 2 || i == 8 || i == 14 || i == 20;
    text["layer_types"].push_back(makes ? "shared_compressed_attention" : "sliding_attention");
  }
  text["max_position_embeddings"] = 1048576;
  Json without = json;
  for (const char* key : {"rope_scaling", "rope_theta", "compress_rope_theta", "qk_rope_head_dim"})
    without["text_config"].erase(key);
  without["text_config"]["partial_rotary_factor"] = 0.125;
  const ModelConfig release = Parse(Nested());
  for (const Json& form : {json, without}) {
    const ModelConfig config = Parse(form);
    EXPECT_EQ(config.rope, release.rope);
    EXPECT_EQ(config.compress_rope, release.compress_rope);
    EXPECT_EQ(config.qk_rope_head_dim, 64);
    EXPECT_THAT(config.unknown_keys, ElementsAre());
  }
  text["layer_types"][3] = "shared_compressed_attention";
  EXPECT_THAT(Fault(json), HasSubstr("layer_types[3]"));
  EXPECT_THAT(
      Fault(With("rope_parameters",
                 {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 65536}})),
      HasSubstr("key rope_scaling"));
}

// The numbers of YaRN as inference/config.json has them.
TEST(V41Config, ReadsYarnOneByOne) {
  Json flat = Flat();
  flat.erase("rope_scaling");
  flat.update({{"rope_factor", 16}, {"original_seq_len", 65536}, {"beta_fast", 32}, {"beta_slow", 1}});
  EXPECT_EQ(Parse(flat).compress_rope, Parse(Flat()).compress_rope);
  EXPECT_EQ(Parse(flat).max_position_embeddings, 1048576);
}

TEST(V41Config, YarnIsRefusedByItsOwnNames) {
  const auto with = [](Json scaling) {
    Json json = Nested();
    json["text_config"].erase("max_position_embeddings");
    json["text_config"]["rope_scaling"] = std::move(scaling);
    return Fault(json);
  };
  for (const Json& factor : {Json("x"), Json(0), Json(-1), Json(1e19), Json(nullptr)}) {
    EXPECT_THAT(
        with({{"rope_type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", 65536}}),
        HasSubstr("rope_scaling: key factor"));
    EXPECT_THAT(with({{"rope_type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", factor}}),
                HasSubstr("rope_scaling: key original_max_position_embeddings"));
  }
  EXPECT_THAT(with(5), HasSubstr("key rope_scaling"));
  // Numbers that are right by themselves and tell no context, or none at all.
  for (const Json& scaling :
       {Json(nullptr), Json({{"rope_type", "default"}}),
        Json({{"rope_type", "yarn"}, {"factor", 1e6}, {"original_max_position_embeddings", 1 << 24}})})
    EXPECT_THAT(with(scaling), HasSubstr("key max_position_embeddings: missing"));
}

TEST(V41Config, WhatStandsAroundTheTextCounts) {
  Json json = Nested();
  json["text_config"]["eos_token_id"] = 3;
  json["text_config"]["bos_token_id"] = nullptr;
  json["bos_token_id"] = 0;
  json["transformers_version"] = "5.6.0";
  json["text_config"]["transformers_version"] = "5.7.0";
  EXPECT_THAT(Parse(json).eos_token_ids, ElementsAre(1));
  EXPECT_THAT(Parse(json).bos_token_ids, ElementsAre(0));
  json["hidden_size"] = 5120;
  EXPECT_EQ(Parse(json).hidden_size, 5120);
  json["hidden_size"] = 4096;
  EXPECT_THAT(Fault(json), HasSubstr("key hidden_size: holds 4096, wanted 5120, as text_config says"));
  json = Nested();
  json["expert_dtype"] = "fp8";
  EXPECT_THAT(Fault(json), HasSubstr("expert_dtype: holds \"fp8\", wanted \"fp4\""));
  json = Nested();
  json["gate_temp"] = 2;
  EXPECT_EQ(Parse(json).gate_temp, 2);
}

// A key that may change a number has an effect or is refused; no other one is passed over in silence.
TEST(V41Config, PassesNothingOver) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"num_hash_layers", 3},
                                                 {"n_hash_layers", 3},
                                                 {"first_k_dense_replace", 1},
                                                 {"moe_layer_freq", 2},
                                                 {"kv_lora_rank", 512},
                                                 {"qk_nope_head_dim", 128},
                                                 {"v_head_dim", 128},
                                                 {"rope_interleave", false},
                                                 {"num_local_experts", 8},
                                                 {"scale_fmt", "float"},
                                                 {"swiglu_alpha", 1.7},
                                                 {"hc_post_scale", 1},
                                                 {"engram_kernel_size", 4},
                                                 {"engram_seed", 0},
                                                 {"dspark_sliding_window", 64},
                                                 {"index_topk_freq", 4},
                                                 {"mlp_layer_types", Json::array({"moe"})},
                                                 {"compress_rates", Json::object()},
                                                 {"attn_logit_softcapping", 30.0},
                                                 {"final_logit_softcapping", 30.0},
                                                 {"logit_scale", 0.5}}) {
    EXPECT_THAT(Fault(With(key, value)), HasSubstr(std::string("key ") + key));
    EXPECT_EQ(Fault(With(key, nullptr)), "accepted");
  }
  EXPECT_THAT(Fault(With("partial_rotary_factor", 0.5)), HasSubstr("as partial_rotary_factor says"));
  Json ratios = TextConfig()["compress_ratios"];
  ratios[41] = 2;
  EXPECT_THAT(Fault(With("compress_ratios", ratios)),
              HasSubstr("compress_ratios[41], of the drafter: holds 2"));
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"type", "linear"}, {"extrapolation_factor", 2}, {"mscale", 0.7}, {"truncate", false}}) {
    Json scaling = TextConfig()["rope_scaling"];
    scaling[key] = value;
    EXPECT_THAT(Fault(With("rope_scaling", scaling)), HasSubstr(std::string("rope_scaling: key ") + key));
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"activation_scheme", "static"}, {"fmt", "e5m2"}, {"scale_fmt", "float"}}) {
    Json json = Nested();
    json["quantization_config"][key] = value;
    EXPECT_THAT(Fault(json), HasSubstr(std::string("quantization_config: key ") + key));
  }
  Json json = With("checkpoint_note", "kept");
  json["_name_or_path"] = "x";
  json["image_token_id"] = 129264;
  EXPECT_THAT(Parse(json).unknown_keys, ElementsAre("checkpoint_note"));
  json["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}};
  EXPECT_THAT(Parse(json).unknown_keys,
              ElementsAre("quantization_config.kv_cache_scheme", "checkpoint_note"));
  json["quantization_config"].erase("kv_cache_scheme");
  EXPECT_THAT(UnknownKeys(Parse(json)), HasSubstr("change nothing: checkpoint_note"));
}

}  // namespace
}  // namespace dsv4::model
