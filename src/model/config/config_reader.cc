// Typed values of a config.json.
#include "model/config/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "base/text.h"
#include "model/config/dspark_config.h"

namespace dsv4::model {

const Json* ConfigReader::Find(std::string_view key) const {
  read_.emplace(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::Fail(std::string_view key, std::string_view got, std::string_view wanted) {
  if (status_.ok())
    status_ = InvalidArgument(fmt::format("{}: key {}: {}, wanted {}", where_, key, got, wanted));
}

void ConfigReader::FailValue(std::string_view key, const Json& got, std::string_view wanted) {
  constexpr size_t kMaxShown = 80;
  std::string text = JsonText(got);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  Fail(key, "holds " + text, wanted);
}

int64_t ConfigReader::Int(std::string_view key, int64_t min, int64_t max) {
  const Json* value = Require(key);
  return value == nullptr ? min : IntOf(key, *value, min, max);
}

int64_t ConfigReader::IntOr(std::string_view key, int64_t min, int64_t max, int64_t absent) {
  const Json* value = Find(key);
  return value == nullptr ? absent : IntOf(key, *value, min, max);
}

int64_t ConfigReader::IntOf(std::string_view key, const Json& value, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max)) &&
                    value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (fits) return value.get<int64_t>();
  FailValue(key, value, fmt::format("an integer from {} to {}", min, max));
  return min;
}

double ConfigReader::Number(std::string_view key, double min, double max) {
  const Json* value = Require(key);
  return value == nullptr ? min : NumberOf(key, *value, min, max);
}

double ConfigReader::NumberOr(std::string_view key, double min, double max, double absent) {
  const Json* value = Find(key);
  return value == nullptr ? absent : NumberOf(key, *value, min, max);
}

// NaN and infinity fail every comparison with the bounds.
double ConfigReader::NumberOf(std::string_view key, const Json& value, double min, double max) {
  if (value.is_number()) {
    const double number = value.get<double>();
    if (number >= min && number <= max) return number;
  }
  FailValue(key, value, fmt::format("a number from {} to {}", min, max));
  return min;
}

bool ConfigReader::BoolOr(std::string_view key, bool absent) {
  const Json* value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  FailValue(key, *value, "true or false");
  return absent;
}

std::string ConfigReader::StringOr(std::string_view key, std::string_view absent) {
  const Json* value = Find(key);
  if (value == nullptr) return std::string(absent);
  if (value->is_string()) return value->get<std::string>();
  FailValue(key, *value, "a string");
  return std::string(absent);
}

std::vector<std::string> ConfigReader::Strings(std::string_view key) {
  std::vector<std::string> strings;
  const Json* value = Find(key);
  if (value == nullptr) return strings;
  if (value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& v) { return v.is_string(); })) {
    for (const Json& item : *value) strings.push_back(item.get<std::string>());
  } else {
    FailValue(key, *value, "a list of strings");
  }
  return strings;
}

// An object, or nullptr when absent or something else (which is a fault).
const Json* ConfigReader::Object(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  FailValue(key, *value, "an object");
  return nullptr;
}

const Json* ConfigReader::Array(std::string_view key, size_t min_size) {
  const Json* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    FailValue(key, *value, "a list");
  } else if (value->size() < min_size) {
    Fail(key, fmt::format("a list of {}", Counted(value->size(), "entry")),
         fmt::format("at least {} (num_hidden_layers)", min_size));
  } else {
    return value;
  }
  return nullptr;
}

const Json* ConfigReader::Require(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) Fail(key, "missing", "a value");
  return value;
}

void ConfigReader::RequireString(std::string_view key, std::string_view wanted) {
  if (const std::string got = StringOr(key, wanted); got != wanted)
    Fail(key, fmt::format("holds \"{}\"", got), fmt::format("\"{}\"", wanted));
}

void ConfigReader::RequireBool(std::string_view key, bool wanted) {
  if (BoolOr(key, wanted) != wanted) Fail(key, fmt::format("holds {}", !wanted), fmt::format("{}", wanted));
}

void ConfigReader::RequireInt(std::string_view key, int64_t wanted) { IntOr(key, wanted, wanted, wanted); }

std::vector<std::string> ConfigReader::Unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    if (!value.is_null() && !read_.contains(key)) keys.push_back(key);
  return keys;
}

namespace {

// The YaRN half of a rope section. `section` may be a release rope_scaling or one of transformers' rope_parameters.
void ReadYarn(ConfigReader& section, RopeConfig& rope) {
  const std::string old_type = section.StringOr("type", "default");
  const std::string type = section.StringOr("rope_type", old_type);
  if (section.Has("type") && old_type != type)
    section.Fail("type", fmt::format("holds \"{}\"", old_type),
                 fmt::format("\"{}\", as rope_type says", type));
  if (type == "yarn") {
    rope.yarn = true;
    rope.factor = section.Number("factor", 1, 1e6);
    rope.original_max_position_embeddings = section.Int("original_max_position_embeddings", 1, kMaxPositions);
    rope.beta_fast = section.NumberOr("beta_fast", 1e-3, 1e6, 32);
    rope.beta_slow = section.NumberOr("beta_slow", 1e-3, 1e6, 1);
    // V4 never scales amplitudes: only the neutral values are accepted.
    section.NumberOr("attention_factor", 1, 1, 1);
    if (!section.BoolOr("truncate", true))
      section.Fail("truncate", "holds false", "true: V4 rounds the YaRN ramp's ends");
    const double mscale = section.NumberOr("mscale", 0, 1e6, 0);
    if (section.NumberOr("mscale_all_dim", 0, 1e6, 0) != mscale) {
      section.Fail("mscale", fmt::format("holds {}", mscale),
                   "the value of mscale_all_dim: V4's rotation has unit amplitude");
    }
  } else if (type != "default") {
    section.Fail("rope_type", fmt::format("holds \"{}\"", type), "yarn or default");
  }
  // Read by ReadRope and ReadRotaryDim.
  for (const char* key : {"rope_theta", "compress_rope_theta", "partial_rotary_factor"}) section.Has(key);
  for (const std::string& key : section.Unread())
    section.FailValue(key, *section.Find(key), "no key of this name: what it changes is not known");
}

}  // namespace

void ReadRope(ConfigReader& reader, ModelConfig& config) {
  const Json* parameters = reader.Object("rope_parameters");
  const Json* scaling = reader.Object("rope_scaling");
  if (!reader.ok()) return;
  const auto nested = [&](std::string_view name) {
    if (parameters == nullptr) return static_cast<const Json*>(nullptr);
    const auto found = parameters->find(name);
    return found != parameters->end() && found->is_object() ? &*found : nullptr;
  };
  // transformers 5 keeps it in the section, and some tools in both.
  const auto read_theta = [&](std::string_view key) {
    for (const auto& [section, name] :
         {std::pair{parameters, "rope_parameters"}, std::pair{scaling, "rope_scaling"}}) {
      if (section == nullptr || !section->contains(key) || (*section)[key].is_null()) continue;
      ConfigReader inner(*section, fmt::format("{}: {}", reader.where(), name), reader.status());
      const double theta = inner.Number(key, 1 + 1e-6, kMaxTheta);
      if (reader.Has(key) && reader.Number(key, 1 + 1e-6, kMaxTheta) != theta)
        inner.Fail(key, fmt::format("holds {}", theta),
                   fmt::format("what {} holds beside it", reader.where()));
      return theta;
    }
    return reader.Number(key, 1 + 1e-6, kMaxTheta);
  };
  const Json* main = nested("main");
  const Json* compress = nested("compress");
  if (main != nullptr && compress != nullptr) {
    for (auto& [section, rope, name] :
         {std::tuple{main, &config.rope, "main"}, std::tuple{compress, &config.compress_rope, "compress"}}) {
      ConfigReader section_reader(*section, fmt::format("{}: rope_parameters.{}", reader.where(), name),
                                  reader.status());
      rope->theta = section_reader.Number("rope_theta", 1 + 1e-6, kMaxTheta);
      ReadYarn(section_reader, *rope);
      const std::string outer = name == std::string_view("main") ? "rope_theta" : "compress_rope_theta";
      if (const Json* value = reader.Find(outer); value != nullptr && *value != rope->theta)
        reader.FailValue(outer, *value, fmt::format("{}, as rope_parameters.{} says", rope->theta, name));
    }
  } else {
    config.rope.theta = read_theta("rope_theta");
    if (std::ranges::none_of(config.layers, &LayerPlan::sees_entries) && !reader.Has("compress_rope_theta"))
      return;
    config.compress_rope.theta = read_theta("compress_rope_theta");
    // transformers before nesting wrote the release's rope_scaling under the name rope_parameters.
    if (parameters != nullptr) {
      ConfigReader section(*parameters, reader.where() + ": rope_parameters", reader.status());
      ReadYarn(section, config.compress_rope);
    }
  }
  if (scaling == nullptr) return;
  ConfigReader section(*scaling, reader.where() + ": rope_scaling", reader.status());
  RopeConfig written = {.theta = config.compress_rope.theta};
  ReadYarn(section, written);
  if (config.compress_rope.yarn && !(written == config.compress_rope))
    reader.FailValue("rope_scaling", *scaling, "what rope_parameters holds");
  config.compress_rope = written;
}

void ReadRotaryDim(ConfigReader& reader, ModelConfig& config) {
  std::optional<int64_t> from_factor;
  if (const Json* factor = reader.Find("partial_rotary_factor"); factor != nullptr) {
    const double dim =
        reader.NumberOf("partial_rotary_factor", *factor, 0, 1) * static_cast<double>(config.head_dim);
    // The factor is a quotient of two integers, rounded; an exact floor could fall one short.
    from_factor = std::llround(dim);
    if (std::abs(dim - static_cast<double>(*from_factor)) > 1e-6 * static_cast<double>(config.head_dim)) {
      reader.FailValue("partial_rotary_factor", *factor,
                       fmt::format("a whole number of the {}", Counted(config.head_dim, "head dim")));
    }
  }
  if (reader.Has("qk_rope_head_dim") || !from_factor) {
    config.qk_rope_head_dim = reader.Int("qk_rope_head_dim", 2, kMaxHeadDim);
    if (from_factor && *from_factor != config.qk_rope_head_dim) {
      reader.Fail("qk_rope_head_dim", fmt::format("holds {}", config.qk_rope_head_dim),
                  fmt::format("{}, as partial_rotary_factor says", *from_factor));
    }
  } else {
    config.qk_rope_head_dim = *from_factor;
  }
  if (config.qk_rope_head_dim < 2 || config.qk_rope_head_dim % 2 != 0 ||
      config.qk_rope_head_dim > config.head_dim) {
    reader.Fail("qk_rope_head_dim", fmt::format("is {}", config.qk_rope_head_dim),
                fmt::format("an even number from 2 to head_dim {}", config.head_dim));
  }
}

void ReadQuantization(ConfigReader& reader, ModelConfig& config) {
  config.expert_dtype = reader.StringOr("expert_dtype", "");
  // Scales of activations are powers of two, and made anew for each token.
  reader.RequireString("scale_fmt", "ue8m0");
  const Json* section = reader.Object("quantization_config");
  if (section == nullptr) return;
  ConfigReader quantization(*section, reader.where() + ": quantization_config", reader.status());
  QuantizationConfig& out = config.quantization;
  out.quant_method = quantization.StringOr("quant_method", "");
  out.quant_algo = quantization.StringOr("quant_algo", "");
  out.moe_quant_algo = quantization.StringOr("moe_quant_algo", "");
  quantization.RequireString("scale_fmt", "ue8m0");
  quantization.RequireString("activation_scheme", "dynamic");
  quantization.RequireString("fmt", "e4m3");
  out.scale_fmt = quantization.StringOr("scale_fmt", "");
  out.ignore = quantization.Strings("ignore");
  if (const Json* block = quantization.Array("weight_block_size", 0); block != nullptr) {
    if (block->size() != 2) {
      quantization.FailValue("weight_block_size", *block, "[rows, columns]");
    } else {
      out.weight_block_rows = quantization.IntOf("weight_block_size[0]", (*block)[0], 1, kMaxWidth);
      out.weight_block_cols = quantization.IntOf("weight_block_size[1]", (*block)[1], 1, kMaxWidth);
    }
  }
  if (const Json* layers = quantization.Object("quantized_layers"); layers != nullptr) {
    for (const auto& [name, spec] : layers->items()) {
      const auto algo = spec.is_object() ? spec.find("quant_algo") : spec.end();
      if (!spec.is_object() || algo == spec.end() || *algo == "NVFP4") out.quantized_layers.push_back(name);
    }
  }
  // The section of the release's own method is known; other tools write more, and the tensors describe themselves.
  if (out.quant_method != "fp8") return;
  for (const char* key :
       {"expert_dtype", "modules_to_not_convert", "producer", "group_size", "config_groups"})
    quantization.Has(key);
  for (const std::string& key : quantization.Unread())
    config.unknown_keys.push_back("quantization_config." + key);
}

void ReadSizes(ConfigReader& reader, ModelConfig& config) {
  config.vocab_size = reader.Int("vocab_size", 1, kMaxVocab);
  config.hidden_size = reader.Int("hidden_size", 1, kMaxWidth);
  config.num_hidden_layers = reader.Int("num_hidden_layers", 1, kMaxLayers);
  config.max_position_embeddings = reader.Int("max_position_embeddings", 1, kMaxPositions);
  config.num_attention_heads = reader.Int("num_attention_heads", 1, kMaxHeads);
  config.head_dim = reader.Int("head_dim", 2, kMaxHeadDim);
  config.q_lora_rank = reader.Int("q_lora_rank", 1, kMaxWidth);
  config.o_groups = reader.Int("o_groups", 1, kMaxHeads);
  config.o_lora_rank = reader.Int("o_lora_rank", 1, kMaxWidth);
  config.sliding_window = reader.Int("sliding_window", 1, kMaxWidth);
  config.n_routed_experts = reader.Int("n_routed_experts", 1, kMaxExperts);
  config.num_experts_per_tok = reader.Int("num_experts_per_tok", 1, 1024);
  config.moe_intermediate_size = reader.Int("moe_intermediate_size", 1, kMaxWidth);
  config.routed_scaling_factor = reader.Number("routed_scaling_factor", 1e-6, 1e6);
  config.swiglu_limit = reader.Number("swiglu_limit", 0, 1e6);
  if (config.swiglu_limit != 0 && config.swiglu_limit < kSmallestLimit) {
    reader.Fail("swiglu_limit", fmt::format("holds {}", config.swiglu_limit),
                fmt::format("0 (no limit) or a number from {} on", kSmallestLimit));
  }
  config.hc_mult = reader.IntOr("hc_mult", 1, 16, 4);
  config.hc_sinkhorn_iters = reader.IntOr("hc_sinkhorn_iters", 1, 1000, 20);
  config.hc_eps = reader.NumberOr("hc_eps", 0, 1, 1e-6);
  config.rms_norm_eps = reader.NumberOr("rms_norm_eps", kSmallestEpsilon, 1, 1e-6);
  config.tie_word_embeddings = reader.BoolOr("tie_word_embeddings", false);
}

void CheckFixedChoices(ConfigReader& reader) {
  reader.RequireString("scoring_func", "sqrtsoftplus");
  reader.RequireString("topk_method", "noaux_tc");
  reader.RequireString("hidden_act", "silu");
  reader.RequireBool("attention_bias", false);
  reader.RequireBool("mlp_bias", false);
  reader.RequireBool("rope_interleave", true);
  for (const char* key : {"num_key_value_heads", "n_shared_experts", "n_group", "topk_group",
                          "n_expert_groups", "n_limited_groups", "moe_layer_freq"})
    reader.RequireInt(key, 1);
  for (const char* key : {"first_k_dense_replace", "n_dense_layers"}) reader.RequireInt(key, 0);
}

void ReadIndexer(ConfigReader& reader, ModelConfig& config) {
  for (const char* key : {"index_n_heads", "index_head_dim"}) reader.Has(key);
  if (std::ranges::none_of(config.layers, &LayerPlan::selects) && !reader.Has("index_topk")) return;
  config.index_n_heads = reader.Int("index_n_heads", 1, kMaxHeads);
  config.index_head_dim = reader.Int("index_head_dim", 2, kMaxHeadDim);
  config.index_topk = reader.Int("index_topk", 1, kMaxWidth);
  if (config.index_head_dim < config.qk_rope_head_dim) {
    reader.Fail("index_head_dim", fmt::format("holds {}", config.index_head_dim),
                fmt::format("at least qk_rope_head_dim {}", config.qk_rope_head_dim));
  }
}

namespace {

// How keys begin that say what a model computes.
constexpr std::string_view kParts =
    "attn attention q_ k_ kv_ v_ o_ qk_ head index candidate compress rope partial_rotary sliding window hc_ "
    "mhc_ "
    "engram ngram dspark mtp nextn n_ num_ moe expert route shared scor topk norm rms_ gate swiglu hidden "
    "logit final_ "
    "embedding residual layer mlp scale use_bidirectional first_";
// Notes of transformers and tools, and keys of training.
constexpr std::string_view kNotes =
    "_ architectures model_type auto_map torch_dtype dtype transformers_version use_cache initializer_range "
    "pad_token_id attn_implementation attention_dropout output_ return_dict router_aux_loss "
    "router_jitter_noise "
    "aux_loss seq_aux ep_size pretraining_tp intermediate_size hidden_dropout num_labels "
    "num_return_sequences num_beam random_weights "
    "tokenizer_class is_ keys_to_ignore vision image max_batch_size";

// Whether it begins with one of the words of a list.
bool BeginsLike(std::string_view key, std::string_view words) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (key.starts_with(words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

std::vector<int64_t> ReadTokenIds(ConfigReader& reader, std::string_view key, int64_t vocab_size) {
  std::vector<int64_t> ids;
  const Json* value = reader.Find(key);
  if (value == nullptr) return ids;
  if (!value->is_array()) return {reader.IntOf(key, *value, 0, vocab_size - 1)};
  for (const Json& id : *value) ids.push_back(reader.IntOf(key, id, 0, vocab_size - 1));
  return ids;
}

// Divisibility of heads, number of experts, and other names of these sizes.
void CheckSizes(ConfigReader& reader, const ModelConfig& config) {
  if (config.num_attention_heads % config.o_groups != 0) {
    reader.Fail("o_groups", fmt::format("holds {}", config.o_groups),
                fmt::format("a divisor of num_attention_heads {}", config.num_attention_heads));
  }
  if (config.num_experts_per_tok > config.n_routed_experts) {
    reader.Fail("num_experts_per_tok", fmt::format("holds {}", config.num_experts_per_tok),
                fmt::format("at most n_routed_experts {}", config.n_routed_experts));
  }
  reader.RequireInt("num_local_experts", config.n_routed_experts);
  reader.RequireInt("v_head_dim", config.head_dim);
  reader.RequireInt("qk_head_dim", config.head_dim);
  reader.RequireInt("qk_nope_head_dim", config.nope_head_dim());
}

// Keys that no reader asked for. One that is named like a part of the model is refused: it may change a number. The
// names of other ones, without notes of tools, become config.unknown_keys.
void CheckUnread(ConfigReader& reader, ModelConfig& config) {
  for (const char* key : kDsparkKeys) reader.Has(key);
  for (const std::string& key : reader.Unread()) {
    if (BeginsLike(key, kNotes)) continue;
    if (BeginsLike(key, kParts))
      reader.FailValue(key, *reader.Find(key), "no key of this name: what it changes is not known");
    config.unknown_keys.push_back(key);
  }
}

}  // namespace

Result<ModelConfig> FinishConfig(ConfigReader& reader, const Json& root, std::string_view what,
                                 const Status& status, ModelConfig config) {
  config.bos_token_ids = ReadTokenIds(reader, "bos_token_id", config.vocab_size);
  config.eos_token_ids = ReadTokenIds(reader, "eos_token_id", config.vocab_size);
  CheckSizes(reader, config);
  CheckUnread(reader, config);
  DSV4_TRY(status);
  DSV4_TRY(CheckPlans(config.layers, what));
  if (auto dspark = ParseDsparkConfig(root, what, config); dspark) {
    config.dspark = *std::move(dspark);
  } else {
    config.dspark_fault = dspark.error().message();
  }
  return config;
}

std::string UnknownKeys(const ModelConfig& config) {
  if (config.unknown_keys.empty()) return "";
  return fmt::format("config.json has keys that are not known and change nothing: {}",
                     fmt::join(config.unknown_keys, ", "));
}

}  // namespace dsv4::model
