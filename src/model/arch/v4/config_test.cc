// Tests of V4's config reader: both dialects, contradictions, rotary sizes, quantisation sections, drafters.
#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "model/arch/architecture.h"

namespace dsv4::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The release's dialect with the Flash numbers of model.md 1.1, on four layers.
Json ReleaseConfig() {
  return Json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
    "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
    "compress_ratios": [0, 0, 4, 128, 0], "compress_rope_theta": 160000, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "max_position_embeddings": 1048576, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
    "n_routed_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "num_hash_layers": 3, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu", "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
    "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "bfloat16", "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                            "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
  })");
}

// The same model as transformers 5.17 writes it.
Json TransformersConfig() {
  Json json = ReleaseConfig();
  for (const char* key : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling"})
    json.erase(key);
  json["layer_types"] = {"sliding_attention", "sliding_attention", "compressed_sparse_attention",
                         "heavily_compressed_attention"};
  json["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  json["mlp_layer_types"] = {"hash_moe", "hash_moe", "hash_moe", "moe"};
  json["partial_rotary_factor"] = 0.125;
  json["rope_parameters"] = Json::parse(R"({
    "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125},
    "compress": {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                 "beta_slow": 1, "rope_theta": 160000, "partial_rotary_factor": 0.125, "attention_factor": 1.0}})");
  return json;
}

ModelConfig Parse(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "config.json");
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message());
  return config ? *config : ModelConfig();
}

std::string ErrorOf(const Json& json) {
  const auto config = ParseModelConfig(json.dump(), "config.json");
  if (config) return "no error";
  EXPECT_EQ(config.error().code(), StatusCode::kInvalidArgument);
  return config.error().message();
}

std::string ErrorWith(const char* key, const Json& value) {
  Json json = ReleaseConfig();
  json[key] = value;
  return ErrorOf(json);
}

TEST(ModelConfig, ThetaMayStandInAFlatSection) {
  const ModelConfig release = Parse(ReleaseConfig());
  Json flat = ReleaseConfig();
  flat["rope_parameters"] = flat["rope_scaling"];
  flat["rope_parameters"]["rope_type"] = "yarn";
  flat["rope_parameters"]["rope_theta"] = flat["rope_theta"];
  flat.erase("rope_scaling");
  Json both = flat;
  flat.erase("rope_theta");
  for (const Json& json : {flat, both}) {
    const ModelConfig config = Parse(json);
    EXPECT_EQ(config.rope, release.rope);
    EXPECT_EQ(config.compress_rope, release.compress_rope);
  }
  both["rope_theta"] = 5000;
  EXPECT_THAT(ErrorOf(both), HasSubstr("rope_theta"));
}

TEST(ModelConfig, TheNameOfAQuantisationToolDecidesNothing) {
  for (const char* method : {"quark", "auto-round", "compressed-tensors", "modelopt", "mine"}) {
    Json json = ReleaseConfig();
    json["quantization_config"] = {{"quant_method", method}, {"config_groups", Json::object()}};
    EXPECT_EQ(Parse(json).quantization.quant_method, method);
  }
}

TEST(ModelConfig, ReadsTheReleaseDialect) {
  const ModelConfig config = Parse(ReleaseConfig());
  ASSERT_EQ(config.layers.size(), 4U);  // The drafter's tail entry is dropped.
  EXPECT_EQ(AttentionName(config.layers[1]), "swa");
  EXPECT_EQ(AttentionName(config.layers[2]), "csa");
  EXPECT_EQ(config.layers[2].ratio, 4);
  EXPECT_EQ(config.layers[2].overlap, 2);
  EXPECT_EQ(AttentionName(config.layers[3]), "hca");
  EXPECT_EQ(config.layers[2].router, RouterKind::kTokenIds);
  EXPECT_EQ(config.layers[3].router, RouterKind::kScores);
  EXPECT_FALSE(config.rope.yarn);
  EXPECT_TRUE(config.compress_rope.yarn);
  EXPECT_EQ(config.compress_rope.original_max_position_embeddings, 65536);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(config.layers[0].rope, RopeKind::kPlain);
  EXPECT_EQ(config.compress_rope.theta, 160000);
  EXPECT_EQ(config.layers[3].rope, RopeKind::kCompressed);
  EXPECT_EQ(config.hc_mix(), 24);
  EXPECT_EQ(config.hc_dim(), 16384);
  EXPECT_EQ(config.o_group_dim(), 4096);
  EXPECT_EQ(config.nope_head_dim(), 448);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1));
  EXPECT_EQ(config.quantization.weight_block_cols, 128);
}

TEST(ModelConfig, BothDialectsDescribeTheSameModel) {
  const ModelConfig release = Parse(ReleaseConfig());
  const ModelConfig transformers = Parse(TransformersConfig());
  EXPECT_EQ(transformers.qk_rope_head_dim, release.qk_rope_head_dim);
  EXPECT_EQ(transformers.rope, release.rope);
  EXPECT_EQ(transformers.compress_rope, release.compress_rope);
  for (size_t i = 0; i < release.layers.size(); ++i) {
    EXPECT_EQ(transformers.layers[i], release.layers[i]) << i;
  }
}

TEST(ModelConfig, TransformersRatesMayDifferFromTheRelease) {
  Json json = TransformersConfig();
  json["compress_rates"] = {{"compressed_sparse_attention", 8}, {"heavily_compressed_attention", 16}};
  const ModelConfig config = Parse(json);
  EXPECT_EQ(AttentionName(config.layers[2]), "csa");
  EXPECT_EQ(config.layers[2].ratio, 8);
  EXPECT_EQ(config.layers[3].ratio, 16);
}

TEST(ModelConfig, DialectsThatContradictEachOtherAreRefused) {
  Json json = TransformersConfig();
  json["compress_ratios"] = {0, 0, 4, 128};
  json["num_hash_layers"] = 3;
  json["qk_rope_head_dim"] = 64;
  Parse(json);
  json["compress_ratios"] = {0, 0, 128, 4};
  EXPECT_THAT(ErrorOf(json), HasSubstr("compress_ratios[2]: holds 128, wanted 4"));
  json.erase("compress_ratios");
  json["num_hash_layers"] = 2;
  EXPECT_THAT(ErrorOf(json), HasSubstr("num_hash_layers"));
  json.erase("num_hash_layers");
  json["qk_rope_head_dim"] = 32;
  EXPECT_THAT(ErrorOf(json), HasSubstr("qk_rope_head_dim: holds 32, wanted 64"));
}

TEST(ModelConfig, RotaryDimSurvivesARoundedFactor) {
  Json json = TransformersConfig();
  json["head_dim"] = 96;
  json["partial_rotary_factor"] = 1.0 / 3.0;
  EXPECT_EQ(Parse(json).qk_rope_head_dim, 32);
  json["partial_rotary_factor"] = 0.3;
  EXPECT_THAT(ErrorOf(json), HasSubstr("a whole number of the 96 head dims"));
}

TEST(ModelConfig, RecognisesDraftAndVisionKeysAndTokenLists) {
  Json json = ReleaseConfig();
  json["dspark_block_size"] = 5;
  json["dspark_noise_token_id"] = 3;
  json["dspark_markov_rank"] = 8;
  json["dspark_target_layer_ids"] = {1};
  json["vision_n_layers"] = 32;
  json["eos_token_id"] = {1, 7};
  json["bos_token_id"] = nullptr;
  json["compress_ratios"] = {0, 0, 4, 128, 0, 0, 0};
  const ModelConfig config = Parse(json);
  ASSERT_TRUE(config.dspark.has_value()) << config.dspark_fault;
  EXPECT_EQ(config.dspark->block_size, 5);
  EXPECT_TRUE(config.has_vision);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 7));
  EXPECT_TRUE(config.bos_token_ids.empty());
}

TEST(ModelConfig, AFaultOfADrafterIsNoneOfTheModel) {
  Json json = ReleaseConfig();
  json["dspark_block_size"] = 5;
  const ModelConfig config = Parse(json);
  EXPECT_FALSE(config.dspark.has_value());
  EXPECT_THAT(config.dspark_fault, HasSubstr("dspark_noise_token_id: missing"));
}

TEST(ModelConfig, RefusesOtherArchitecturesByName) {
  // V4's keys are none of V4.1's.
  Json json = ReleaseConfig();
  json["model_type"] = "deepseek_v41";
  json["architectures"] = {"DeepseekV41ForCausalLM"};
  EXPECT_THAT(ErrorOf(json), HasSubstr("kv_source_layer_ids: missing"));
  EXPECT_THAT(ErrorOf(Json{{"model_type", "deepseek_v41"}, {"text_config", Json::object()}}),
              HasSubstr("vocab_size: missing"));
  EXPECT_THAT(ErrorWith("kv_source_layer_ids", {2, 3}), HasSubstr("index_source_layer_ids: missing"));
  EXPECT_THAT(ErrorWith("model_type", "llama"), HasSubstr("wanted deepseek_v4 ("));
  EXPECT_THAT(ErrorWith("architectures", {"LlamaForCausalLM"}), HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(ErrorOf(Json::object()), HasSubstr("model_type: missing"));
  EXPECT_THAT(ErrorOf(Json::array()), HasSubstr("not a JSON object"));
}

TEST(ModelConfig, EveryAbsurdValueIsANamedError) {
  EXPECT_THAT(ErrorWith("hidden_size", 0), HasSubstr("hidden_size: holds 0, wanted an integer from 1"));
  EXPECT_THAT(ErrorWith("hidden_size", -4), HasSubstr("hidden_size"));
  EXPECT_THAT(ErrorWith("hidden_size", 4096.5), HasSubstr("hidden_size"));
  EXPECT_THAT(ErrorWith("hidden_size", "4096"), HasSubstr("hidden_size"));
  EXPECT_THAT(ErrorWith("hidden_size", nullptr), HasSubstr("hidden_size: missing"));
  EXPECT_THAT(ErrorWith("vocab_size", 18446744073709551615ULL), HasSubstr("vocab_size"));
  EXPECT_THAT(ErrorWith("num_hidden_layers", 5000000000LL), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(ErrorWith("num_hidden_layers", 6),
              HasSubstr("compress_ratios: a list of 5 entries, wanted at least 6"));
  EXPECT_THAT(ErrorWith("compress_ratios", {0, 0, 4, -1}), HasSubstr("compress_ratios[3]"));
  EXPECT_THAT(ErrorWith("compress_ratios", {0, 0, 4, "x"}), HasSubstr("compress_ratios[3]"));
  EXPECT_THAT(ErrorWith("compress_ratios", nullptr),
              HasSubstr("compress_ratios: missing, and so is layer_types"));
  EXPECT_THAT(ErrorWith("layer_types", {"a", "b", "c", "d"}), HasSubstr("layer_types[0]"));
  EXPECT_THAT(ErrorWith("num_hash_layers", nullptr), HasSubstr("num_hash_layers: missing"));
  EXPECT_THAT(ErrorWith("o_groups", 7), HasSubstr("a divisor of num_attention_heads 64"));
  EXPECT_THAT(ErrorWith("num_experts_per_tok", 257), HasSubstr("at most n_routed_experts 256"));
  EXPECT_THAT(ErrorWith("qk_rope_head_dim", 63), HasSubstr("an even number"));
  EXPECT_THAT(ErrorWith("qk_rope_head_dim", 514), HasSubstr("an even number from 2 to head_dim 512"));
  EXPECT_THAT(ErrorWith("index_head_dim", 32), HasSubstr("at least qk_rope_head_dim"));
  EXPECT_THAT(ErrorWith("rope_theta", 0), HasSubstr("rope_theta"));
  EXPECT_THAT(ErrorWith("rms_norm_eps", -1), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(ErrorWith("rms_norm_eps", 0), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(ErrorWith("rms_norm_eps", 1e-320), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(ErrorWith("swiglu_limit", 1e-320), HasSubstr("swiglu_limit"));
  EXPECT_THAT(ErrorWith("routed_scaling_factor", "1.5"), HasSubstr("routed_scaling_factor"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "linear"}}), HasSubstr("yarn or default"));
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "yarn"}, {"factor", 0}}),
              HasSubstr("rope_scaling: key factor"));
  EXPECT_THAT(ErrorWith("scoring_func", "softmax"), HasSubstr("sqrtsoftplus"));
  EXPECT_THAT(ErrorWith("n_group", 8), HasSubstr("n_group"));
  EXPECT_THAT(ErrorWith("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(ErrorWith("eos_token_id", 129280), HasSubstr("eos_token_id"));
  EXPECT_THAT(ErrorWith("quantization_config", {{"weight_block_size", {128}}}), HasSubstr("[rows, columns]"));
  EXPECT_THAT(ErrorWith("quantization_config", {{"weight_block_size", {0, 128}}}),
              HasSubstr("weight_block_size[0]"));
}

TEST(ModelConfig, NumbersJsonCannotHoldAreRefused) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999"}) {
    std::string text = ReleaseConfig().dump();
    const std::string key = "\"swiglu_limit\":";
    const size_t at = text.find(key) + key.size();
    text.replace(at, text.find(',', at) - at, number);
    EXPECT_FALSE(ParseModelConfig(text, "config.json").has_value()) << number;
  }
}

TEST(LoadModelConfig, NamesTheFile) {
  EXPECT_THAT(LoadModelConfig("/nonexistent").error().message(), HasSubstr("/nonexistent/config.json"));
}

}  // namespace
}  // namespace dsv4::model
