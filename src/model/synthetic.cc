#include "model/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "formats/number_formats.h"
#include "formats/weight.h"
#include "io/safetensors_writer.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace dsv4::model {
namespace {

// --- shapes -----------------------------------------------------------------------------------------------------------

struct ModelShape {
  std::string_view name;
  int64_t vocab_size, hidden_size, num_layers, num_heads, head_dim, rope_dim, q_lora_rank, o_groups,
      o_lora_rank;
  int64_t sliding_window, index_n_heads, index_head_dim, index_topk, num_experts, experts_per_token,
      moe_width;
  int64_t num_hash_layers;
  double routed_scaling_factor;
  int64_t first_ratio;  // Of layers 0 and 1; from layer 2 on, 4 and 128 alternate.
};

constexpr std::array<ModelShape, 4> kShapes = {{
    {"tiny", 512, 128, 4, 4, 128, 64, 128, 2, 64, 128, 8, 64, 16, 8, 2, 128, 1, 1.5, 0},
    {"mini", 32768, 2048, 16, 32, 512, 64, 512, 8, 512, 128, 32, 128, 512, 32, 6, 1024, 3, 1.5, 0},
    {"flash", 129280, 4096, 43, 64, 512, 64, 1024, 8, 1024, 128, 64, 128, 512, 256, 6, 2048, 3, 1.5, 0},
    {"pro", 129280, 7168, 61, 128, 512, 64, 1536, 16, 1024, 128, 64, 128, 1024, 384, 6, 3072, 3, 2.5, 128},
}};

constexpr std::array<std::string_view, kShapes.size()> kShapeNames = [] {
  std::array<std::string_view, kShapes.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kShapes[i].name;
  return names;
}();

constexpr std::array<std::pair<SyntheticFormat, std::string_view>, 8> kFormatNames = {
    {{SyntheticFormat::kBf16, "bf16"},
     {SyntheticFormat::kF32, "f32"},
     {SyntheticFormat::kFp8, "fp8"},
     {SyntheticFormat::kFp8Base, "fp8-base"},
     {SyntheticFormat::kRelease, "release"},
     {SyntheticFormat::kNvFp4Experts, "nvfp4-experts"},
     {SyntheticFormat::kNvFp4, "nvfp4"},
     {SyntheticFormat::kNvFp4Ct, "nvfp4-ct"}}};

constexpr int64_t kFp8Block = 128;

bool IsNvFp4Everywhere(SyntheticFormat format) {
  return format == SyntheticFormat::kNvFp4 || format == SyntheticFormat::kNvFp4Ct;
}

Json QuantizationSection(SyntheticFormat format, int64_t num_layers) {
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
                  {"weight_block_size", {kFp8Block, kFp8Block}}};
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

// --- random numbers ---------------------------------------------------------------------------------------------------

// Normal numbers of one standard deviation, encoded once; tensors are filled with random pieces of such a table, which is
// as fast as copying memory. The table is long enough that no two rows of a layer are alike in practice.
class CodeTable {
 public:
  static constexpr size_t kElements = size_t{1} << 16;

  // `element_bits` 4 packs two codes a byte.
  template <typename Encode>
  CodeTable(int element_bits, Encode encode) {
    std::mt19937_64 generator(0x5eed);
    // Box-Muller by hand: std::normal_distribution may differ between libraries, and checkpoints must not.
    std::vector<float> values(kElements);
    for (size_t i = 0; i < kElements; i += 2) {
      const double u = (static_cast<double>(generator() >> 11) + 1) * 0x1p-53;
      const double angle = 2 * 3.14159265358979323846 * static_cast<double>(generator() >> 11) * 0x1p-53;
      const double radius = std::sqrt(-2 * std::log(u));
      values[i] = static_cast<float>(radius * std::cos(angle));
      values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
    if (element_bits == 4) {
      for (size_t i = 0; i < kElements; i += 2) {
        bytes_.push_back(static_cast<std::byte>(
            PackE2m1(static_cast<uint8_t>(encode(values[i])), static_cast<uint8_t>(encode(values[i + 1])))));
      }
      return;
    }
    const size_t element_bytes = static_cast<size_t>(element_bits) / 8;
    bytes_.resize(kElements * element_bytes);
    for (size_t i = 0; i < kElements; ++i) {
      const auto code = encode(values[i]);
      static_assert(std::is_trivially_copyable_v<decltype(code)>);
      DSV4_CHECK(sizeof(code) == element_bytes) << sizeof(code);
      std::memcpy(bytes_.data() + i * element_bytes, &code, element_bytes);
    }
  }

  void Fill(std::span<std::byte> out, std::mt19937_64& generator) const {
    constexpr size_t kPiece = 512;
    for (size_t done = 0; done < out.size();) {
      const size_t offset = generator() % (bytes_.size() / 8) * 8;
      const size_t count = std::min({kPiece, bytes_.size() - offset, out.size() - done});
      std::memcpy(out.data() + done, bytes_.data() + offset, count);
      done += count;
    }
  }

 private:
  std::vector<std::byte> bytes_;
};

uint64_t SeedOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325U ^ (seed * 0x9e3779b97f4a7c15U);
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;  // FNV-1a.
  return hash;
}

// --- tensors ----------------------------------------------------------------------------------------------------------

// How the elements of one tensor come about.
enum class Fill : uint8_t {
  kNormal,       // Normal numbers, mean 0.
  kOnes,         //
  kConstant,     // One F32 number, `sigma`.
  kE8m0Scales,   // 2^k with k or k - 1, about sigma.
  kF32Scales,    // sigma or half of it.
  kNvFp4Scales,  // e4m3 numbers from 16 to 30.
  kExpertIds,    // Rows of different ids below `limit`.
};

struct SyntheticTensor {
  io::TensorSpec spec;
  Fill fill = Fill::kNormal;
  double sigma = 1;  // Standard deviation of what the elements, before their scale, stand for.
  bool four_bit = false;
  int64_t limit = 0;  // kExpertIds.
  int64_t row = 1;    // kExpertIds: ids in a row.
};

constexpr double kFp8Sigma = 64;    // Elements stay below 448 to seven standard deviations.
constexpr double kFp4Sigma = 2;     // Three standard deviations reach the largest element.
constexpr double kNvFp4Scale = 23;  // The mean of kNvFp4Scales.

class Plan {
 public:
  Plan(const ModelConfig& config, SyntheticFormat format) : config_(config), format_(format) {
    for (const TensorRow& row : TensorTable()) {
      if (row.scope == TensorScope::kModel) Add(row, "", LayerConfig());
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
      for (const TensorRow& row : TensorTable()) {
        if (LayerHas(row, config.layers[i])) Add(row, fmt::format("layers.{}.", i), config.layers[i]);
      }
    }
  }

  std::vector<SyntheticTensor>& tensors() { return tensors_; }

 private:
  void Add(const TensorRow& row, const std::string& scope, const LayerConfig& layer) {
    const std::string name = scope + ExpandNames(row.names).front();
    if (row.scope != TensorScope::kExpert) return AddNamed(row, name, layer);
    const size_t hash = name.find('#');
    for (int64_t e = 0; e < config_.n_routed_experts; ++e) {
      AddNamed(row, name.substr(0, hash) + std::to_string(e) + name.substr(hash + 1), layer);
    }
  }

  void AddNamed(const TensorRow& row, const std::string& name, const LayerConfig& layer) {
    const Shape shape = row.shape(config_, layer);
    std::vector<int64_t> dims;
    for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
    const bool f32 = format_ == SyntheticFormat::kF32;
    switch (row.kind) {
      case TensorKind::kLinear:
        return AddLinear(row, name, shape);
      case TensorKind::kEmbedding:
        tensors_.push_back({.spec = {name + ".weight", f32 ? DType::kF32 : DType::kBF16, dims}});
        return;
      case TensorKind::kExpertIds:
        tensors_.push_back({.spec = {name, DType::kI64, dims},
                            .fill = Fill::kExpertIds,
                            .limit = config_.n_routed_experts,
                            .row = config_.num_experts_per_tok});
        return;
      case TensorKind::kVector: {
        const bool is_norm = name.ends_with("norm.weight");
        // Mixing matrices read hc_mult * hidden_size numbers of size 1; the other vectors are small offsets.
        const double sigma =
            dims.size() == 2 && name.ends_with("_fn") ? 1 / std::sqrt(static_cast<double>(dims[1])) : 0.1;
        const Fill fill = is_norm ? Fill::kOnes : name.ends_with("_scale") ? Fill::kConstant : Fill::kNormal;
        tensors_.push_back({.spec = {name, is_norm && !f32 ? DType::kBF16 : DType::kF32, dims},
                            .fill = fill,
                            .sigma = fill == Fill::kConstant ? 0.5 : sigma});
        return;
      }
      case TensorKind::kVision:
        return;
    }
  }

  WeightFormat FormatOf(const TensorRow& row) const {
    if (format_ == SyntheticFormat::kBf16 || format_ == SyntheticFormat::kF32 || row.id == TensorId::kHead) {
      return WeightFormat::kPlain;
    }
    if (IsNvFp4Everywhere(format_)) return WeightFormat::kNvFp4;
    if (row.scope == TensorScope::kExpert) {
      if (format_ == SyntheticFormat::kRelease) return WeightFormat::kMxFp4;
      if (format_ == SyntheticFormat::kNvFp4Experts) return WeightFormat::kNvFp4;
      return WeightFormat::kFp8Block;
    }
    switch (row.id) {
      case TensorId::kWqA:
      case TensorId::kWqB:
      case TensorId::kWkv:
      case TensorId::kWoA:
      case TensorId::kWoB:
      case TensorId::kIndexerWqB:
      case TensorId::kSharedW1:
      case TensorId::kSharedW2:
      case TensorId::kSharedW3:
        return WeightFormat::kFp8Block;
      default:
        return WeightFormat::kPlain;
    }
  }

  void AddLinear(const TensorRow& row, const std::string& name, Shape shape) {
    const int64_t rows = shape[0];
    const int64_t cols = shape[1];
    const double sigma = 1 / std::sqrt(static_cast<double>(cols));
    const bool compressed_tensors = format_ == SyntheticFormat::kNvFp4Ct;
    switch (FormatOf(row)) {
      case WeightFormat::kPlain: {
        const DType dtype = format_ == SyntheticFormat::kF32 ? DType::kF32 : DType::kBF16;
        tensors_.push_back({.spec = {name + ".weight", dtype, {rows, cols}}, .sigma = sigma});
        return;
      }
      case WeightFormat::kFp8Block: {
        const bool f32_scales = format_ == SyntheticFormat::kFp8Base;
        // What a power-of-two scale cannot express of sigma is left to the elements.
        const double scale =
            f32_scales ? sigma / kFp8Sigma : std::exp2(std::round(std::log2(sigma / kFp8Sigma)));
        const std::vector<int64_t> grid = {(rows + kFp8Block - 1) / kFp8Block,
                                           (cols + kFp8Block - 1) / kFp8Block};
        tensors_.push_back(
            {.spec = {name + ".weight", DType::kF8E4M3, {rows, cols}}, .sigma = sigma / scale});
        tensors_.push_back({.spec = {name + ".scale", f32_scales ? DType::kF32 : DType::kF8E8M0, grid},
                            .fill = f32_scales ? Fill::kF32Scales : Fill::kE8m0Scales,
                            .sigma = scale});
        return;
      }
      case WeightFormat::kMxFp4: {
        const double scale = std::exp2(std::round(std::log2(sigma / kFp4Sigma)));
        tensors_.push_back({.spec = {name + ".weight", DType::kI8, {rows, cols / 2}},
                            .sigma = sigma / scale,
                            .four_bit = true});
        tensors_.push_back({.spec = {name + ".scale", DType::kF8E8M0, {rows, cols / kMxFp4Block}},
                            .fill = Fill::kE8m0Scales,
                            .sigma = scale});
        return;
      }
      case WeightFormat::kNvFp4: {
        const double global = sigma / kFp4Sigma / kNvFp4Scale;
        tensors_.push_back({.spec = {name + (compressed_tensors ? ".weight_packed" : ".weight"),
                                     DType::kU8,
                                     {rows, cols / 2}},
                            .sigma = kFp4Sigma,
                            .four_bit = true});
        tensors_.push_back({.spec = {name + ".weight_scale", DType::kF8E4M3, {rows, cols / kNvFp4Block}},
                            .fill = Fill::kNvFp4Scales});
        tensors_.push_back({.spec = {name + (compressed_tensors ? ".weight_global_scale" : ".weight_scale_2"),
                                     DType::kF32,
                                     {}},
                            .fill = Fill::kConstant,
                            .sigma = compressed_tensors ? 1 / global : global});
        if (!compressed_tensors) {
          tensors_.push_back(
              {.spec = {name + ".input_scale", DType::kF32, {}}, .fill = Fill::kConstant, .sigma = 1});
        }
        return;
      }
    }
  }

  const ModelConfig& config_;
  SyntheticFormat format_;
  std::vector<SyntheticTensor> tensors_;
};

// Produces a tensor's bytes piece by piece.
class Generator {
 public:
  explicit Generator(uint64_t seed) : seed_(seed) {}

  Status Write(const SyntheticTensor& tensor, io::SafetensorsWriter& writer) {
    std::mt19937_64 random(SeedOf(seed_, tensor.spec.name));
    constexpr int64_t kPieceBytes = int64_t{1} << 20;
    for (int64_t remaining = tensor.spec.num_bytes(); remaining > 0;) {
      // Pieces hold whole rows of expert ids; all other tensors have no structure wider than eight bytes.
      const int64_t unit = tensor.fill == Fill::kExpertIds ? tensor.row * 8 : 8;
      const int64_t count = std::min(remaining, kPieceBytes / unit * unit);
      piece_.resize(static_cast<size_t>(count));
      FillPiece(tensor, random);
      DSV4_RETURN_IF_ERROR(writer.Append(piece_));
      remaining -= count;
    }
    return {};
  }

 private:
  template <typename T, typename Next>
  void ForEach(Next next) {
    for (size_t at = 0; at + sizeof(T) <= piece_.size(); at += sizeof(T)) {
      const T value = next();
      std::memcpy(piece_.data() + at, &value, sizeof(T));
    }
  }

  void FillPiece(const SyntheticTensor& tensor, std::mt19937_64& random) {
    const auto sigma = static_cast<float>(tensor.sigma);
    switch (tensor.fill) {
      case Fill::kNormal:
        return TableFor(tensor).Fill(piece_, random);
      case Fill::kOnes:
        if (tensor.spec.dtype == DType::kF32) return ForEach<float>([] { return 1.0F; });
        return ForEach<uint16_t>([] { return Bf16FromFloat(1.0F); });
      case Fill::kConstant:
        return ForEach<float>([&] { return sigma; });
      case Fill::kE8m0Scales: {
        const int exponent = static_cast<int>(std::lround(std::log2(tensor.sigma)));
        return ForEach<uint8_t>(
            [&] { return static_cast<uint8_t>(exponent + kE8m0Bias - static_cast<int>(random() & 1)); });
      }
      case Fill::kF32Scales:
        return ForEach<float>([&] { return (random() & 1) != 0 ? sigma : sigma / 2; });
      case Fill::kNvFp4Scales:
        return ForEach<uint8_t>(
            [&] { return E4m3FromFloat(16.0F + 2.0F * static_cast<float>(random() % 8)); });
      case Fill::kExpertIds: {
        // Evenly spread ids from a random first one: a row never names an expert twice.
        const int64_t stride = std::max<int64_t>(1, tensor.limit / tensor.row);
        int64_t first = 0;
        int64_t column = 0;
        return ForEach<int64_t>([&] {
          if (column == 0) first = static_cast<int64_t>(random() % static_cast<uint64_t>(tensor.limit));
          const int64_t id = (first + column * stride) % tensor.limit;
          column = (column + 1) % tensor.row;
          return id;
        });
      }
    }
  }

  const CodeTable& TableFor(const SyntheticTensor& tensor) {
    const auto sigma = static_cast<float>(tensor.sigma);
    const auto key = std::tuple(tensor.spec.dtype, tensor.four_bit, sigma);
    const auto found = tables_.find(key);
    if (found != tables_.end()) return found->second;
    const auto make = [&] {
      if (tensor.four_bit) return CodeTable(4, [&](float z) { return E2m1FromFloat(z * sigma); });
      switch (tensor.spec.dtype) {
        case DType::kF32:
          return CodeTable(32, [&](float z) { return z * sigma; });
        case DType::kBF16:
          return CodeTable(16, [&](float z) { return Bf16FromFloat(z * sigma); });
        default:
          return CodeTable(8, [&](float z) { return E4m3FromFloat(z * sigma); });
      }
    };
    return tables_.emplace(key, make()).first->second;
  }

  uint64_t seed_;
  std::vector<std::byte> piece_;
  std::map<std::tuple<DType, bool, float>, CodeTable> tables_;
};

// --- files ------------------------------------------------------------------------------------------------------------

// Tensors in order, cut where a shard would grow past the limit.
std::vector<std::vector<SyntheticTensor>> CutIntoShards(std::vector<SyntheticTensor> tensors,
                                                        int64_t max_bytes) {
  std::vector<std::vector<SyntheticTensor>> shards(1);
  int64_t bytes = 0;
  for (SyntheticTensor& tensor : tensors) {
    if (bytes > 0 && bytes + tensor.spec.num_bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.spec.num_bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

Status WriteShards(const std::string& directory, std::vector<std::vector<SyntheticTensor>> shards,
                   const SyntheticOptions& options) {
  int64_t total = 0;
  for (const auto& shard : shards) {
    for (const SyntheticTensor& tensor : shard) total += tensor.spec.num_bytes();
  }
  Generator generator(options.seed);
  std::string weight_map;
  int64_t written = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<io::TensorSpec> specs;
    std::unordered_map<std::string, const SyntheticTensor*> by_name;
    for (const SyntheticTensor& tensor : shards[i]) {
      specs.push_back(tensor.spec);
      by_name.emplace(tensor.spec.name, &tensor);
      weight_map += fmt::format("{}\n    {}: \"{}\"", weight_map.empty() ? "" : ",",
                                Json(tensor.spec.name).dump(), file);
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(
        io::SafetensorsWriter writer,
        io::SafetensorsWriter::Create(fmt::format("{}/{}", directory, file), std::move(specs)));
    for (const io::TensorSpec& spec : writer.specs()) {
      DSV4_RETURN_IF_ERROR(generator.Write(*by_name.at(spec.name), writer));
      written += spec.num_bytes();
      if (options.progress) options.progress(written, total);
    }
    DSV4_RETURN_IF_ERROR(writer.Finish());
  }
  if (shards.size() == 1) return {};
  return io::WriteTextFile(
      directory + "/model.safetensors.index.json",
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", total,
                  weight_map));
}

Result<const ModelShape*> FindShape(const SyntheticOptions& options) {
  const auto shape = std::find_if(kShapes.begin(), kShapes.end(),
                                  [&](const ModelShape& s) { return s.name == options.shape; });
  if (shape == kShapes.end()) {
    return Error(
        InvalidArgument(fmt::format("shape {}: unknown, wanted tiny, mini, flash or pro", options.shape)));
  }
  const int64_t num_layers = options.num_layers.value_or(shape->num_layers);
  if (num_layers < 1 || num_layers > shape->num_layers) {
    return Error(InvalidArgument(
        fmt::format("layers: {}, shape {} has 1 to {}", num_layers, shape->name, shape->num_layers)));
  }
  return &*shape;
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

Result<std::string> SyntheticConfig(const SyntheticOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const ModelShape* found, FindShape(options));
  const ModelShape& shape = *found;
  const int64_t num_layers = options.num_layers.value_or(shape.num_layers);
  std::vector<int64_t> ratios;
  for (int64_t i = 0; i < num_layers; ++i) ratios.push_back(i < 2 ? shape.first_ratio : i % 2 == 0 ? 4 : 128);
  const bool quantised = options.format != SyntheticFormat::kBf16 && options.format != SyntheticFormat::kF32;
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
      {"num_nextn_predict_layers", 0},
      {"tie_word_embeddings", false},
      {"attention_bias", false},
      {"bos_token_id", 0},
      {"eos_token_id", 1},
      {"torch_dtype", options.format == SyntheticFormat::kF32 ? "float32" : "bfloat16"},
  };
  if (quantised) {
    const bool fp8_experts =
        options.format == SyntheticFormat::kFp8 || options.format == SyntheticFormat::kFp8Base;
    config["expert_dtype"] = fp8_experts ? "fp8" : "fp4";
    config["quantization_config"] = QuantizationSection(options.format, num_layers);
  }
  return config.dump(2) + "\n";
}

Status WriteSyntheticCheckpoint(const std::string& directory, const SyntheticOptions& options) {
  namespace fs = std::filesystem;
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string config_json, SyntheticConfig(options));
  DSV4_ASSIGN_OR_RETURN_STATUS(const ModelConfig config,
                               ParseModelConfig(config_json, "synthetic config.json"));

  const std::string partial = fs::path(directory + "/").parent_path().string() + ".partial";
  std::error_code error;
  const bool occupied =
      fs::exists(directory, error) && !(fs::is_directory(directory, error) && fs::is_empty(directory, error));
  if (occupied) return InvalidArgument(fmt::format("{}: exists and is not an empty directory", directory));
  if (fs::exists(partial, error)) {
    return InvalidArgument(fmt::format("{}: exists, left by an interrupted run? Remove it first", partial));
  }
  if (!fs::create_directories(partial, error)) {
    return InvalidArgument(fmt::format("{}: cannot create: {}", partial, error.message()));
  }
  Plan plan(config, options.format);
  Status status = io::WriteTextFile(partial + "/config.json", config_json);
  if (status.ok()) {
    status = WriteShards(partial, CutIntoShards(std::move(plan.tensors()), options.max_shard_bytes), options);
  }
  if (status.ok()) {
    fs::rename(partial, directory, error);  // Replaces an empty directory.
    if (error)
      status =
          InvalidArgument(fmt::format("{}: cannot rename from {}: {}", directory, partial, error.message()));
  }
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

}  // namespace dsv4::model
