// Reader of V4.1's config.json, nested or flat, with switches that no release uses refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "model/arch/v41/v41.h"
#include "model/config/config_reader.h"

namespace dsv4::model {
namespace {

// Names of inference/config.json, and those of config.json.
constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kFlatNames = {{
    {"dim", "hidden_size"},
    {"n_layers", "num_hidden_layers"},
    {"n_heads", "num_attention_heads"},
    {"rope_head_dim", "qk_rope_head_dim"},
    {"window_size", "sliding_window"},
    {"norm_eps", "rms_norm_eps"},
    {"kv_source_layers", "kv_source_layer_ids"},
    {"index_source_layers", "index_source_layer_ids"},
    {"candidate_source_layer", "candidate_source_layer_id"},
    {"n_activated_experts", "num_experts_per_tok"},
    {"moe_inter_dim", "moe_intermediate_size"},
    {"score_func", "scoring_func"},
    {"route_scale", "routed_scaling_factor"},
    {"engram_pad_id", "engram_pad_token_id"},
    {"n_mtp_layers", "num_nextn_predict_layers"},
    {"dspark_n_activated_experts", "dspark_num_experts_per_tok"},
    {"max_seq_len", "max_position_embeddings"},
}};

// Keys that `text_config` and the document around it may have with other values, and those where the outer one counts.
constexpr std::array<std::string_view, 5> kOfEither = {"model_type", "architectures", "transformers_version",
                                                       "dtype", "torch_dtype"};
constexpr std::array<std::string_view, 2> kOuterCounts = {"bos_token_id", "eos_token_id"};

bool Named(const Json& root) {
  const auto is_v41 = [](const Json& name) {
    return name.is_string() && (name.get<std::string>().starts_with("deepseek_v41") ||
                                name.get<std::string>().starts_with("DeepseekV41"));
  };
  const auto type = root.find("model_type");
  if (type != root.end() && is_v41(*type)) return true;
  const auto names = root.find("architectures");
  return names != root.end() && names->is_array() && std::any_of(names->begin(), names->end(), is_v41);
}

// inference/config.json has the numbers of YaRN one by one.
void GatherYarn(Json& flat) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kNames = {
      {{"rope_factor", "factor"},
       {"original_seq_len", "original_max_position_embeddings"},
       {"beta_fast", "beta_fast"},
       {"beta_slow", "beta_slow"}}};
  if (!flat.contains("rope_factor") || flat.contains("rope_scaling") || flat.contains("rope_parameters"))
    return;
  Json scaling = {{"rope_type", "yarn"}};
  for (const auto& [flat_name, name] : kNames) {
    if (!flat.contains(flat_name)) continue;
    scaling[name] = flat[flat_name];
    flat.erase(flat_name);
  }
  flat["rope_scaling"] = std::move(scaling);
}

// The release names no longest context; it is what YaRN stretches the first one to.
Json WithContextLength(Json flat) {
  if (flat.contains("max_position_embeddings") && !flat["max_position_embeddings"].is_null()) return flat;
  const auto scaling = flat.find("rope_scaling");
  if (scaling == flat.end() || !scaling->is_object()) return flat;
  const auto number = [&](const char* key) {
    const auto found = scaling->find(key);
    return found != scaling->end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const double length = number("factor") * number("original_max_position_embeddings");
  if (length >= 1 && length <= static_cast<double>(kMaxPositions))
    flat["max_position_embeddings"] = static_cast<int64_t>(length);
  return flat;
}

void ReadCandidates(ConfigReader& reader, ModelConfig& config) {
  // Without a source the others have no meaning.
  for (const char* key : {"candidate_topk_blocks", "candidate_block_size"}) reader.Has(key);
  if (std::ranges::none_of(config.layers, &LayerPlan::makes_candidates)) return;
  config.candidate_topk_blocks = reader.IntOr("candidate_topk_blocks", 1, kMaxWidth, 2048);
  config.candidate_block_size = reader.IntOr("candidate_block_size", 1, kMaxWidth, 8);
}

// The release's grids.
void SetRows(ModelConfig& config) {
  constexpr int64_t kGroup = 32;
  constexpr int64_t kEntryGroup = 16;
  config.activation_block = kGroup;
  config.hadamard_keys = false;
  config.norm_query_heads = false;
  config.delays_mix = true;
  config.window_rows = CacheFormat::Fp8(config.head_dim, kGroup);
  config.entry_rows = CacheFormat::Fp4WithE4m3Scales(config.head_dim, kEntryGroup);
  config.key_rows = CacheFormat::Fp4(config.index_head_dim, kGroup);
}

void ReadEngram(ConfigReader& reader, ModelConfig& config) {
  for (const char* key :
       {"engram_vocab_size", "engram_num_embeddings", "engram_max_ngram_size", "engram_n_heads",
        "engram_head_dim", "engram_pad_token_id", "engram_compressed_vocab_size"})
    reader.Has(key);
  const Json* layers = reader.Array("engram_layer_ids", 0);
  if (layers == nullptr || layers->empty()) return;
  EngramConfig& engram = config.engram.emplace();
  for (size_t i = 0; i < layers->size(); ++i)
    engram.layer_ids.push_back(
        reader.IntOf(fmt::format("engram_layer_ids[{}]", i), (*layers)[i], 0, config.num_hidden_layers - 1));
  if (!std::ranges::is_sorted(engram.layer_ids, std::less_equal<>()))
    reader.FailValue("engram_layer_ids", *layers, "layers that ascend");
  constexpr int64_t kMostRows = int64_t{1} << 40;
  constexpr int64_t kMostSizes = 64;
  constexpr int64_t kMostHeads = 1024;
  engram.vocab_size = reader.Int("engram_vocab_size", 2, kMostRows);
  engram.max_ngram_size = reader.Int("engram_max_ngram_size", 2, kMostSizes);
  engram.n_heads = reader.Int("engram_n_heads", 1, kMostHeads);
  engram.head_dim = reader.Int("engram_head_dim", 1, kMaxHeadDim);
  engram.pad_token_id = reader.IntOr("engram_pad_token_id", 0, config.vocab_size - 1, 2);
  engram.compressed_vocab_size = reader.IntOr("engram_compressed_vocab_size", 1, config.vocab_size, 0);
  if (const Json* rows = reader.Require("engram_num_embeddings");
      rows != nullptr && reader.Array("engram_num_embeddings", 0) != nullptr) {
    if (rows->size() != layers->size())
      reader.FailValue("engram_num_embeddings", *rows,
                       fmt::format("one number for each of {} engram_layer_ids", layers->size()));
    for (size_t i = 0; i < rows->size(); ++i)
      engram.num_embeddings.push_back(
          reader.IntOf(fmt::format("engram_num_embeddings[{}]", i), (*rows)[i], 1, kMostRows));
  }
}

}  // namespace

bool IsV41Config(const Json& root) {
  const auto has = [&](const char* key) { return root.contains(key) && !root[key].is_null(); };
  if (Named(root) || has("kv_source_layer_ids") || has("kv_source_layers") || has("engram_layer_ids"))
    return true;
  return has("text_config") && root["text_config"].is_object() && IsV41Config(root["text_config"]);
}

Result<Json> FlattenV41Config(const Json& root, std::string_view what) {
  const auto has = [](const Json& object, std::string_view key) {
    const auto found = object.find(key);
    return found != object.end() && !found->is_null();
  };
  const auto differ = [&](std::string_view key, const Json& got, const Json& wanted, std::string_view says) {
    return Error(InvalidArgument(fmt::format("{}: key {}: holds {}, wanted {}, as {} says", what, key,
                                             got.dump(), wanted.dump(), says)));
  };
  Json flat = root;
  if (has(root, "text_config") && root["text_config"].is_object()) {
    flat = root["text_config"];
    for (const auto& [key, value] : root.items()) {
      if (key == "text_config" || value.is_null()) continue;
      const bool is_in_both = has(flat, key) && flat[key] != value;
      if (is_in_both && std::ranges::find(kOfEither, key) != kOfEither.end()) continue;
      if (is_in_both && std::ranges::find(kOuterCounts, key) == kOuterCounts.end())
        return differ(key, value, flat[key], "text_config");
      flat[key] = value;
    }
  }
  for (const auto& [flat_name, name] : kFlatNames) {
    if (!has(flat, flat_name)) continue;
    const Json value = flat[std::string(flat_name)];
    if (has(flat, name) && flat[std::string(name)] != value)
      return differ(flat_name, value, flat[std::string(name)], name);
    flat.erase(std::string(flat_name));
    flat[std::string(name)] = value;
  }
  if (has(flat, "quantization_config") && flat["quantization_config"].is_object() &&
      has(flat["quantization_config"], "expert_dtype")) {
    const Json dtype = flat["quantization_config"]["expert_dtype"];
    if (has(flat, "expert_dtype") && flat["expert_dtype"] != dtype)
      return differ("expert_dtype", flat["expert_dtype"], dtype, "quantization_config");
    flat["expert_dtype"] = dtype;
  }
  GatherYarn(flat);
  return WithContextLength(std::move(flat));
}

Result<ModelConfig> ParseV41Config(const Json& root, std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(Json flat, FlattenV41Config(root, what));
  // A context that nothing tells is refused behind the numbers that should have told it.
  constexpr const char* kContext = "max_position_embeddings";
  const bool has_context = flat.contains(kContext) && !flat[kContext].is_null();
  if (!has_context) flat[kContext] = 1;
  Status status;
  ConfigReader reader(flat, std::string(what), status);
  ModelConfig config;
  config.tensors = V41Tensors();
  config.trunk = &V41Trunk();
  CheckFixedChoices(reader);
  ReadSizes(reader, config);
  config.rms_norm_eps = reader.NumberOr("rms_norm_eps", kSmallestEpsilon, 1, 1e-20);
  config.gate_temp = reader.NumberOr("gate_temp", 1e-6, 1e6, 1);
  config.router_eps = 1e-20;
  config.norm_topk_prob = reader.BoolOr("norm_topk_prob", true);
  config.norm_single_expert = false;
  DSV4_TRY(status);  // Below, sizes are used as sizes.

  ReadEngram(reader, config);
  DSV4_TRY(status);
  ReadV41Plans(reader, config);
  for (const char* key : {"num_hash_layers", "n_hash_layers"}) reader.RequireInt(key, 0);
  ReadRotaryDim(reader, config);
  ReadRope(reader, config);
  if (!has_context) reader.Fail(kContext, "missing", "a value");
  ReadIndexer(reader, config);
  ReadCandidates(reader, config);
  SetRows(config);
  ReadQuantization(reader, config);
  // The flat dialect names no blocks.
  if (!config.quantization.weight_block_rows.has_value())
    config.quantization.weight_block_rows = config.quantization.weight_block_cols = config.activation_block;
  config.num_nextn_predict_layers = reader.IntOr("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config.has_vision =
      true;  // Every release has biases for images, and the flat dialect says nothing else of them.
  config.drafter_taps_inputs = true;
  return FinishConfig(reader, flat, what, status, std::move(config));
}

}  // namespace dsv4::model
