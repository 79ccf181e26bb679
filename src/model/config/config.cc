#include "model/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json.h"
#include "io/mapped_file.h"
#include "model/config/dspark_config.h"

namespace dsv4::model {
namespace {

// Bounds that no real model nears and that keep every product of two or three sizes inside int64.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxHeadDim = 1 << 14;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kMaxCompressRatio = 1 << 16;
// Smaller ones are 0 once they are floats that an op squares or divides by.
constexpr double kSmallestEpsilon = 1e-30;
constexpr double kSmallestLimit = 1e-6;
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();  // Positions are int32 in the ops.

// Reads typed values out of one JSON object. The first fault sticks in status(); later reads do nothing, so that the
// caller checks once. A null value counts as absent.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string place, Status& status)
      : object_(object), place_(std::move(place)), status_(status) {}

  const Json* Find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  void Fail(std::string_view key, std::string_view got, std::string_view wanted) {
    if (status_.ok())
      status_ = InvalidArgument(fmt::format("{}: key {}: {}, wanted {}", place_, key, got, wanted));
  }
  void FailValue(std::string_view key, const Json& got, std::string_view wanted) {
    constexpr size_t kMaxShown = 80;
    std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
    Fail(key, "holds " + text, wanted);
  }

  int64_t Int(std::string_view key, int64_t min, int64_t max) {
    const Json* value = Require(key);
    return value == nullptr ? min : IntOf(key, *value, min, max);
  }
  int64_t IntOr(std::string_view key, int64_t min, int64_t max, int64_t absent) {
    const Json* value = Find(key);
    return value == nullptr ? absent : IntOf(key, *value, min, max);
  }
  int64_t IntOf(std::string_view key, const Json& value, int64_t min, int64_t max) {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max)) &&
                      value.get<int64_t>() >= min && value.get<int64_t>() <= max;
    if (fits) return value.get<int64_t>();
    FailValue(key, value, fmt::format("an integer from {} to {}", min, max));
    return min;
  }
  double Number(std::string_view key, double min, double max) {
    const Json* value = Require(key);
    return value == nullptr ? min : NumberOf(key, *value, min, max);
  }
  double NumberOr(std::string_view key, double min, double max, double absent) {
    const Json* value = Find(key);
    return value == nullptr ? absent : NumberOf(key, *value, min, max);
  }
  // NaN and infinity fail every comparison with the bounds.
  double NumberOf(std::string_view key, const Json& value, double min, double max) {
    if (value.is_number()) {
      const double number = value.get<double>();
      if (number >= min && number <= max) return number;
    }
    FailValue(key, value, fmt::format("a number from {} to {}", min, max));
    return min;
  }
  bool BoolOr(std::string_view key, bool absent) {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (value->is_boolean()) return value->get<bool>();
    FailValue(key, *value, "true or false");
    return absent;
  }
  std::string StringOr(std::string_view key, std::string_view absent) {
    const Json* value = Find(key);
    if (value == nullptr) return std::string(absent);
    if (value->is_string()) return value->get<std::string>();
    FailValue(key, *value, "a string");
    return std::string(absent);
  }
  std::vector<std::string> Strings(std::string_view key) {
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
  const Json* Object(std::string_view key) {
    const Json* value = Find(key);
    if (value == nullptr || value->is_object()) return value;
    FailValue(key, *value, "an object");
    return nullptr;
  }
  const Json* Array(std::string_view key, size_t min_size) {
    const Json* value = Find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) {
      FailValue(key, *value, "a list");
    } else if (value->size() < min_size) {
      Fail(key, fmt::format("a list of {} entries", value->size()),
           fmt::format("at least {} (num_hidden_layers)", min_size));
    } else {
      return value;
    }
    return nullptr;
  }
  const Json* Require(std::string_view key) {
    const Json* value = Find(key);
    if (value == nullptr) Fail(key, "missing", "a value");
    return value;
  }
  const std::string& place() const { return place_; }
  Status& status() { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  const Json& object_;
  std::string place_;
  Status& status_;
};

constexpr std::string_view kSupported =
    "this engine reads model_type deepseek_v4 (DeepseekV4ForCausalLM: V4 Flash, Pro and models of their "
    "shape)";

// Which model this is, before anything else: the keys of other architectures would only give confusing errors.
void CheckArchitecture(ObjectReader& reader) {
  const std::string model_type = reader.StringOr("model_type", "");
  const std::vector<std::string> architectures = reader.Strings("architectures");
  const auto is_v41 = [](std::string_view name) {
    return name.starts_with("deepseek_v41") || name.starts_with("DeepseekV41");
  };
  if (!reader.ok()) return;
  if (is_v41(model_type) || std::any_of(architectures.begin(), architectures.end(), is_v41) ||
      reader.Has("kv_source_layer_ids") || reader.Has("engram_layer_ids")) {
    reader.Fail("model_type", fmt::format("\"{}\" is DeepSeek-V4.1, another architecture", model_type),
                kSupported);
  } else if (!model_type.empty() && model_type != "deepseek_v4") {
    reader.Fail("model_type", fmt::format("\"{}\"", model_type), kSupported);
  } else if (!architectures.empty() && std::find(architectures.begin(), architectures.end(),
                                                 "DeepseekV4ForCausalLM") == architectures.end()) {
    reader.Fail("architectures", fmt::format("\"{}\"", architectures.front()), kSupported);
  } else if (model_type.empty() && architectures.empty()) {
    reader.Fail("model_type", "missing, and so is architectures", kSupported);
  }
}

// Switches whose other values no V4 release uses and no op implements.
void CheckFixedChoices(ObjectReader& reader) {
  const auto require_string = [&](std::string_view key, std::string_view wanted) {
    if (const std::string got = reader.StringOr(key, wanted); got != wanted) {
      reader.Fail(key, fmt::format("holds \"{}\"", got), fmt::format("\"{}\"", wanted));
    }
  };
  const auto require_bool = [&](std::string_view key, bool wanted) {
    if (reader.BoolOr(key, wanted) != wanted)
      reader.Fail(key, fmt::format("holds {}", !wanted), fmt::format("{}", wanted));
  };
  require_string("scoring_func", "sqrtsoftplus");
  require_string("topk_method", "noaux_tc");
  require_string("hidden_act", "silu");
  require_bool("norm_topk_prob", true);
  require_bool("attention_bias", false);
  require_bool("mlp_bias", false);
  reader.IntOr("num_key_value_heads", 1, 1, 1);
  reader.IntOr("n_shared_experts", 1, 1, 1);
  reader.IntOr("n_group", 1, 1, 1);
  reader.IntOr("topk_group", 1, 1, 1);
}

// Layer kinds from `compress_ratios` (release) or `layer_types` with `compress_rates` (transformers).
void ReadLayerKinds(ObjectReader& reader, ModelConfig& config) {
  const auto num_layers = static_cast<size_t>(config.num_hidden_layers);
  const Json* types = reader.Array("layer_types", num_layers);
  const Json* ratios = reader.Array("compress_ratios", num_layers);
  if (!reader.ok()) return;
  if (types == nullptr && ratios == nullptr) {
    return reader.Fail("compress_ratios", "missing, and so is layer_types", "one of them");
  }
  int64_t csa_rate = 4;
  int64_t hca_rate = 128;
  if (const Json* rates = reader.Object("compress_rates"); rates != nullptr) {
    ObjectReader rate_reader(*rates, reader.place() + ": compress_rates", reader.status());
    csa_rate = rate_reader.IntOr("compressed_sparse_attention", 1, kMaxCompressRatio, csa_rate);
    hca_rate = rate_reader.IntOr("heavily_compressed_attention", 1, kMaxCompressRatio, hca_rate);
  }
  for (size_t i = 0; i < num_layers && reader.ok(); ++i) {
    LayerConfig& layer = config.layers[i];
    if (types != nullptr) {
      const std::string key = fmt::format("layer_types[{}]", i);
      const Json& type = (*types)[i];
      if (type == "sliding_attention") {
        layer = {.kind = LayerKind::kSwa};
      } else if (type == "compressed_sparse_attention") {
        layer = {.kind = LayerKind::kCsa, .compress_ratio = csa_rate};
      } else if (type == "heavily_compressed_attention") {
        layer = {.kind = LayerKind::kHca, .compress_ratio = hca_rate};
      } else {
        reader.FailValue(key, type,
                         "sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
      }
    }
    if (ratios != nullptr) {
      const std::string key = fmt::format("compress_ratios[{}]", i);
      const int64_t ratio = reader.IntOf(key, (*ratios)[i], 0, kMaxCompressRatio);
      if (types == nullptr) {
        constexpr int64_t kReleaseCsaRatio = 4;
        layer.kind = ratio == 0                  ? LayerKind::kSwa
                     : ratio == kReleaseCsaRatio ? LayerKind::kCsa
                                                 : LayerKind::kHca;
        layer.compress_ratio = ratio;
      } else if (ratio != layer.compress_ratio) {
        reader.Fail(key, fmt::format("holds {}", ratio),
                    fmt::format("{}, as layer_types and compress_rates say", layer.compress_ratio));
      }
    }
  }
}

// Hash-routed layers from `num_hash_layers` (release: the first ones) or `mlp_layer_types` (transformers: a list).
void ReadRouterKinds(ObjectReader& reader, ModelConfig& config) {
  const Json* types = reader.Array("mlp_layer_types", config.layers.size());
  if (!reader.ok()) return;
  if (types == nullptr) {
    // The draft tail may count too, so the number can exceed the layers; there is no reason for it to be huge.
    const int64_t num_hash = reader.Int("num_hash_layers", 0, kMaxLayers);
    for (size_t i = 0; i < config.layers.size(); ++i)
      config.layers[i].hash_routed = static_cast<int64_t>(i) < num_hash;
    return;
  }
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const Json& type = (*types)[i];
    if (type != "hash_moe" && type != "moe") {
      return reader.FailValue(fmt::format("mlp_layer_types[{}]", i), type, "hash_moe or moe");
    }
    config.layers[i].hash_routed = type == "hash_moe";
  }
  const int64_t num_hash =
      std::count_if(config.layers.begin(), config.layers.end(), [](const auto& l) { return l.hash_routed; });
  if (const Json* written = reader.Find("num_hash_layers"); written != nullptr && *written != num_hash) {
    reader.FailValue("num_hash_layers", *written, fmt::format("{}, as mlp_layer_types says", num_hash));
  }
}

constexpr double kMaxTheta = 1e12;

// The YaRN half of a rope section. `section` may be a release rope_scaling or one of transformers' rope_parameters.
void ReadYarn(ObjectReader& section, RopeConfig& rope) {
  const std::string type = section.StringOr("rope_type", section.StringOr("type", "default"));
  if (type == "default") return;
  if (type != "yarn") return section.Fail("rope_type", fmt::format("holds \"{}\"", type), "yarn or default");
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
}

void ReadRope(ObjectReader& reader, ModelConfig& config) {
  const Json* parameters = reader.Object("rope_parameters");
  const Json* scaling = reader.Object("rope_scaling");
  if (!reader.ok()) return;
  const auto nested = [&](std::string_view name) {
    if (parameters == nullptr) return static_cast<const Json*>(nullptr);
    const auto found = parameters->find(name);
    return found != parameters->end() && found->is_object() ? &*found : nullptr;
  };
  // transformers 5 keeps it in the section, and some tools in both places.
  const auto read_theta = [&](std::string_view key) {
    for (const auto& [section, name] :
         {std::pair{parameters, "rope_parameters"}, std::pair{scaling, "rope_scaling"}}) {
      if (section == nullptr || !section->contains(key) || (*section)[key].is_null()) continue;
      ObjectReader inner(*section, fmt::format("{}: {}", reader.place(), name), reader.status());
      const double theta = inner.Number(key, 1 + 1e-6, kMaxTheta);
      if (reader.Has(key) && reader.Number(key, 1 + 1e-6, kMaxTheta) != theta)
        inner.Fail(key, fmt::format("holds {}", theta),
                   fmt::format("what {} holds beside it", reader.place()));
      return theta;
    }
    return reader.Number(key, 1 + 1e-6, kMaxTheta);
  };
  const Json* main = nested("main");
  const Json* compress = nested("compress");
  if (main != nullptr && compress != nullptr) {
    for (auto& [section, rope, name] :
         {std::tuple{main, &config.rope, "main"}, std::tuple{compress, &config.compress_rope, "compress"}}) {
      ObjectReader section_reader(*section, fmt::format("{}: rope_parameters.{}", reader.place(), name),
                                  reader.status());
      rope->theta = section_reader.Number("rope_theta", 1 + 1e-6, kMaxTheta);
      ReadYarn(section_reader, *rope);
    }
    return;
  }
  config.rope.theta = read_theta("rope_theta");
  const bool any_compressed =
      std::any_of(config.layers.begin(), config.layers.end(), [](const auto& l) { return l.compressed(); });
  if (!any_compressed && !reader.Has("compress_rope_theta")) return;
  config.compress_rope.theta = read_theta("compress_rope_theta");
  // transformers before nesting wrote the release's rope_scaling under the name rope_parameters.
  if (const Json* section = scaling != nullptr ? scaling : parameters; section != nullptr) {
    ObjectReader section_reader(
        *section,
        fmt::format("{}: {}", reader.place(), scaling != nullptr ? "rope_scaling" : "rope_parameters"),
        reader.status());
    ReadYarn(section_reader, config.compress_rope);
  }
}

void ReadRotaryDim(ObjectReader& reader, ModelConfig& config) {
  std::optional<int64_t> from_factor;
  if (const Json* factor = reader.Find("partial_rotary_factor"); factor != nullptr) {
    const double dim =
        reader.NumberOf("partial_rotary_factor", *factor, 0, 1) * static_cast<double>(config.head_dim);
    // The factor is a quotient of two integers, rounded; an exact floor could fall one short.
    from_factor = std::llround(dim);
    if (std::abs(dim - static_cast<double>(*from_factor)) > 1e-6 * static_cast<double>(config.head_dim)) {
      reader.FailValue("partial_rotary_factor", *factor,
                       fmt::format("a whole number of the {} head dims", config.head_dim));
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

std::vector<int64_t> ReadTokenIds(ObjectReader& reader, std::string_view key, int64_t vocab_size) {
  std::vector<int64_t> ids;
  const Json* value = reader.Find(key);
  if (value == nullptr) return ids;
  if (!value->is_array()) return {reader.IntOf(key, *value, 0, vocab_size - 1)};
  for (const Json& id : *value) ids.push_back(reader.IntOf(key, id, 0, vocab_size - 1));
  return ids;
}

void ReadQuantization(ObjectReader& reader, ModelConfig& config) {
  config.expert_dtype = reader.StringOr("expert_dtype", "");
  const Json* section = reader.Object("quantization_config");
  if (section == nullptr) return;
  ObjectReader quantization(*section, reader.place() + ": quantization_config", reader.status());
  QuantizationConfig& out = config.quantization;
  out.quant_method = quantization.StringOr("quant_method", "");
  out.quant_algo = quantization.StringOr("quant_algo", "");
  out.moe_quant_algo = quantization.StringOr("moe_quant_algo", "");
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
}

void ReadSizes(ObjectReader& reader, ModelConfig& config) {
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

void ReadIndexer(ObjectReader& reader, ModelConfig& config) {
  const bool needed = std::any_of(config.layers.begin(), config.layers.end(),
                                  [](const LayerConfig& layer) { return layer.kind == LayerKind::kCsa; });
  if (!needed && !reader.Has("index_topk")) return;
  config.index_n_heads = reader.Int("index_n_heads", 1, kMaxHeads);
  config.index_head_dim = reader.Int("index_head_dim", 2, kMaxHeadDim);
  config.index_topk = reader.Int("index_topk", 1, kMaxWidth);
  if (config.index_head_dim < config.qk_rope_head_dim) {
    reader.Fail("index_head_dim", fmt::format("holds {}", config.index_head_dim),
                fmt::format("at least qk_rope_head_dim {}", config.qk_rope_head_dim));
  }
}

void ReadDraftAndVision(ObjectReader& reader, ModelConfig& config) {
  config.num_nextn_predict_layers = reader.IntOr("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config.has_vision = reader.IntOr("vision_n_layers", 0, kMaxLayers, 0) > 0;
}

}  // namespace

std::string_view LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return "swa";
    case LayerKind::kCsa:
      return "csa";
    case LayerKind::kHca:
      return "hca";
  }
  return "unknown";
}

Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(const Json root, ParseJson(json, what));
  if (!root.is_object()) return Error(InvalidArgument(fmt::format("{}: not a JSON object", what)));
  Status status;
  ObjectReader reader(root, std::string(what), status);
  ModelConfig config;
  CheckArchitecture(reader);
  CheckFixedChoices(reader);
  ReadSizes(reader, config);
  DSV4_TRY(status);  // Below, sizes are used as sizes.

  config.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  ReadLayerKinds(reader, config);
  ReadRouterKinds(reader, config);
  ReadRotaryDim(reader, config);
  ReadRope(reader, config);
  ReadIndexer(reader, config);
  ReadQuantization(reader, config);
  ReadDraftAndVision(reader, config);
  config.bos_token_ids = ReadTokenIds(reader, "bos_token_id", config.vocab_size);
  config.eos_token_ids = ReadTokenIds(reader, "eos_token_id", config.vocab_size);
  if (config.num_attention_heads % config.o_groups != 0) {
    reader.Fail("o_groups", fmt::format("holds {}", config.o_groups),
                fmt::format("a divisor of num_attention_heads {}", config.num_attention_heads));
  }
  if (config.num_experts_per_tok > config.n_routed_experts) {
    reader.Fail("num_experts_per_tok", fmt::format("holds {}", config.num_experts_per_tok),
                fmt::format("at most n_routed_experts {}", config.n_routed_experts));
  }
  DSV4_TRY(status);
  if (auto dspark = ParseDsparkConfig(json, what, config); dspark) {
    config.dspark = *std::move(dspark);
  } else {
    config.dspark_fault = dspark.error().message();
  }
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  DSV4_ASSIGN_OR_RETURN(const std::string json, io::ReadTextFile(path));
  return ParseModelConfig(json, path);
}

}  // namespace dsv4::model
