// Shapes, formats and names of synthetic checkpoints, and their config.json.
#include "model/synthetic/synthetic_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/json.h"
#include "formats/weight.h"
#include "model/synthetic/synthetic_shape41.h"

namespace dsv4::model {
namespace {

struct ModelShape {
  std::string_view name;
  int64_t vocab_size, hidden_size, num_layers, num_heads, head_dim, rope_dim, q_lora_rank, o_groups,
      o_lora_rank;
  int64_t sliding_window, index_n_heads, index_head_dim, index_topk, num_experts, experts_per_token,
      moe_width;
  int64_t num_hash_layers;
  double routed_scaling_factor;
  int64_t first_ratio;  // Ratio of layers 0 and 1; from layer 2 on, 4 and 128 alternate.
};

constexpr std::array<ModelShape, 4> kShapes = {{
    {"tiny", 512, 128, 4, 4, 128, 64, 128, 2, 64, 128, 8, 64, 16, 8, 2, 128, 1, 1.5, 0},
    {"mini", 32768, 2048, 16, 32, 512, 64, 512, 8, 512, 128, 32, 128, 512, 32, 6, 1024, 3, 1.5, 0},
    {"flash", 129280, 4096, 43, 64, 512, 64, 1024, 8, 1024, 128, 64, 128, 512, 256, 6, 2048, 3, 1.5, 0},
    {"pro", 129280, 7168, 61, 128, 512, 64, 1536, 16, 1024, 128, 64, 128, 1024, 384, 6, 3072, 3, 2.5, 128},
}};

constexpr std::array<std::string_view, kShapes.size() + kShapeNames41.size()> kShapeNames = [] {
  std::array<std::string_view, kShapes.size() + kShapeNames41.size()> names;
  for (size_t i = 0; i < kShapes.size(); ++i) names[i] = kShapes[i].name;
  for (size_t i = 0; i < kShapeNames41.size(); ++i) names[kShapes.size() + i] = kShapeNames41[i];
  return names;
}();

bool IsShape41(std::string_view name) {
  return std::ranges::find(kShapeNames41, name) != kShapeNames41.end();
}

constexpr std::array<std::pair<SyntheticFormat, std::string_view>, 8> kFormatNames = {
    {{SyntheticFormat::kBf16, "bf16"},
     {SyntheticFormat::kF32, "f32"},
     {SyntheticFormat::kFp8, "fp8"},
     {SyntheticFormat::kFp8Base, "fp8-base"},
     {SyntheticFormat::kRelease, "release"},
     {SyntheticFormat::kNvFp4Experts, "nvfp4-experts"},
     {SyntheticFormat::kNvFp4, "nvfp4"},
     {SyntheticFormat::kNvFp4Ct, "nvfp4-ct"}}};

// `block`: rows and columns of weights that share a scale in FP8.
Json QuantizationSection(SyntheticFormat format, int64_t num_layers, int64_t block) {
  if (format == SyntheticFormat::kNvFp4) {
    return {{"quant_method", "modelopt"},
            {"quant_algo", "NVFP4"},
            {"group_size", kNvFp4Block},
            {"ignore", {"head", "embed"}}};
  }
  if (format == SyntheticFormat::kNvFp4Ct) {
    return {{"quant_method", "compressed-tensors"},
            {"format", "nvfp4-pack-quantized"},
            {"ignore", {"head", "embed"}}};
  }
  Json section = {{"quant_method", "fp8"},
                  {"activation_scheme", "dynamic"},
                  {"fmt", "e4m3"},
                  {"weight_block_size", {block, block}}};
  if (format != SyntheticFormat::kFp8Base) section["scale_fmt"] = "ue8m0";
  if (format == SyntheticFormat::kNvFp4Experts) {
    section["moe_quant_algo"] = "NVFP4";
    section["quant_algo"] = "MIXED_PRECISION";
    section["group_size"] = kNvFp4Block;
    section["quantized_layers"] = Json::object();
    for (int64_t i = 0; i < num_layers; ++i) {
      section["quantized_layers"][fmt::format("layers.{}.ffn.experts", i)] = {{"quant_algo", "NVFP4"},
                                                                              {"group_size", kNvFp4Block}};
    }
    section["ignore"] = {"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"};
  }
  return section;
}

Result<const ModelShape*> FindShape(const SyntheticOptions& options) {
  const auto shape = std::find_if(kShapes.begin(), kShapes.end(),
                                  [&](const ModelShape& s) { return s.name == options.shape; });
  if (shape == kShapes.end()) {
    return Error(InvalidArgument(
        fmt::format("shape {}: unknown, wanted one of {}", options.shape, fmt::join(kShapeNames, ", "))));
  }
  const int64_t num_layers = options.num_layers.value_or(shape->num_layers);
  if (num_layers < 1 || num_layers > shape->num_layers) {
    return Error(InvalidArgument(
        fmt::format("layers: {}, shape {} has 1 to {}", num_layers, shape->name, shape->num_layers)));
  }
  return &*shape;
}

// "a,b" without its first field, which it returns.
std::string_view TakeField(std::string_view& text) {
  const size_t comma = text.find(',');
  const std::string_view field = text.substr(0, comma);
  text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  return field;
}

}  // namespace

std::span<const std::string_view> SyntheticShapes() { return kShapeNames; }

std::vector<std::string_view> SyntheticFormatNames() {
  std::vector<std::string_view> names;
  for (const auto& [format, name] : kFormatNames) names.push_back(name);
  return names;
}

std::optional<SyntheticFormat> SyntheticFormatFromName(std::string_view name) {
  for (const auto& [format, known] : kFormatNames) {
    if (known == name) return format;
  }
  return std::nullopt;
}

namespace {

// The formats of weights beside the keys of the model.
void AddQuantization(const SyntheticOptions& options, int64_t num_layers, int64_t block, Json& config) {
  if (options.format == SyntheticFormat::kBf16 || options.format == SyntheticFormat::kF32) return;
  const bool fp8_experts =
      options.format == SyntheticFormat::kFp8 || options.format == SyntheticFormat::kFp8Base;
  config["expert_dtype"] = fp8_experts ? "fp8" : "fp4";
  config["quantization_config"] = QuantizationSection(options.format, num_layers, block);
}

}  // namespace

Result<std::string> SyntheticConfig(const SyntheticOptions& options) {
  if (IsShape41(options.shape)) {
    DSV4_ASSIGN_OR_RETURN(Json config, SyntheticConfig41(options));
    AddQuantization(options, config["text_config"]["num_hidden_layers"].get<int64_t>(), kSyntheticFp8Block41,
                    config);
    return config.dump(2) + "\n";
  }
  DSV4_ASSIGN_OR_RETURN(const ModelShape* found, FindShape(options));
  if (options.mtp && options.dspark)
    return Error(InvalidArgument("mtp and dspark: wanted one of them, their tensors have the same names"));
  const ModelShape& shape = *found;
  const int64_t num_layers = options.num_layers.value_or(shape.num_layers);
  std::vector<int64_t> ratios;
  for (int64_t i = 0; i < num_layers; ++i) ratios.push_back(i < 2 ? shape.first_ratio : i % 2 == 0 ? 4 : 128);
  Json config = {
      {"architectures", {"DeepseekV4ForCausalLM"}},
      {"model_type", "deepseek_v4"},
      {"vocab_size", options.vocab_size.value_or(shape.vocab_size)},
      {"hidden_size", shape.hidden_size},
      {"num_hidden_layers", num_layers},
      {"num_attention_heads", shape.num_heads},
      {"num_key_value_heads", 1},
      {"head_dim", shape.head_dim},
      {"qk_rope_head_dim", shape.rope_dim},
      {"q_lora_rank", shape.q_lora_rank},
      {"o_groups", shape.o_groups},
      {"o_lora_rank", shape.o_lora_rank},
      {"sliding_window", shape.sliding_window},
      {"compress_ratios", ratios},
      {"compress_rope_theta", 160000},
      {"rope_theta", 10000},
      {"rope_scaling",
       {{"type", "yarn"},
        {"factor", 16},
        {"original_max_position_embeddings", 65536},
        {"beta_fast", 32},
        {"beta_slow", 1}}},
      {"max_position_embeddings", 1048576},
      {"index_n_heads", shape.index_n_heads},
      {"index_head_dim", shape.index_head_dim},
      {"index_topk", shape.index_topk},
      {"n_routed_experts", shape.num_experts},
      {"num_experts_per_tok", shape.experts_per_token},
      {"n_shared_experts", 1},
      {"moe_intermediate_size", shape.moe_width},
      {"num_hash_layers", std::min(shape.num_hash_layers, num_layers)},
      {"scoring_func", "sqrtsoftplus"},
      {"topk_method", "noaux_tc"},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", shape.routed_scaling_factor},
      {"swiglu_limit", 10.0},
      {"hidden_act", "silu"},
      {"hc_mult", 4},
      {"hc_sinkhorn_iters", 20},
      {"hc_eps", 1e-6},
      {"rms_norm_eps", 1e-6},
      {"num_nextn_predict_layers", options.mtp || options.dspark ? 1 : 0},
      {"tie_word_embeddings", false},
      {"attention_bias", false},
      {"bos_token_id", options.bos_token_id},
      {"eos_token_id", options.eos_token_id},
      {"random_weights", true},  // Ours: `diagnose knowledge` asks such a model nothing.
      {"torch_dtype", options.format == SyntheticFormat::kF32 ? "float32" : "bfloat16"},
  };
  if (options.dspark) AddDspark(num_layers, config);
  AddQuantization(options, num_layers, kSyntheticFp8Block, config);
  return config.dump(2) + "\n";
}

Result<SyntheticOptions> ParseSyntheticName(std::string_view text) {
  constexpr std::string_view kPrefix = "synthetic:";
  constexpr std::string_view kSeed = "seed=";
  const auto error = [&](const std::string& what) {
    return Error(InvalidArgument(fmt::format(
        "{}: {}; wanted synthetic:SHAPE[,FORMAT][,seed=N][,mtp|dspark] with SHAPE one of {} and FORMAT one "
        "of {}",
        text, what, fmt::join(SyntheticShapes(), ", "), fmt::join(SyntheticFormatNames(), ", "))));
  };
  if (!text.starts_with(kPrefix)) return error("does not begin with synthetic:");
  std::string_view rest = text.substr(kPrefix.size());
  SyntheticOptions options;
  options.shape = TakeField(rest);
  if (std::ranges::find(kShapeNames, options.shape) == kShapeNames.end()) {
    return error(fmt::format("unknown shape '{}'", options.shape));
  }
  bool has_format = false;
  bool has_seed = false;
  while (!rest.empty()) {
    const std::string_view field = TakeField(rest);
    if (field.starts_with(kSeed)) {
      const std::string_view digits = field.substr(kSeed.size());
      const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), options.seed);
      const bool whole = code == std::errc() && end == digits.data() + digits.size();
      if (!whole || std::exchange(has_seed, true)) return error(fmt::format("bad field '{}'", field));
      continue;
    }
    if (field == "dspark") {
      if (std::exchange(options.dspark, true)) return error("dspark twice");
      continue;
    }
    if (field == "mtp") {
      if (std::exchange(options.mtp, true)) return error("mtp twice");
      continue;
    }
    const std::optional<SyntheticFormat> format = SyntheticFormatFromName(field);
    if (!format || std::exchange(has_format, true)) return error(fmt::format("bad field '{}'", field));
    options.format = *format;
  }
  if (text.ends_with(',')) return error("ends with a comma");
  if (options.mtp && options.dspark) return error("mtp and dspark, wanted one of them");
  return options;
}

}  // namespace dsv4::model
