// Builder of a small random model with chosen layers, formats and numerics.
#include "tests/graph/toy_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/reference/reference_backend.h"
#include "base/check.h"
#include "formats/number_formats.h"
#include "formats/quantize.h"
#include "model/arch/v4/v4.h"
#include "ops/hadamard_fp4.h"
#include "ops/simulate_fp8.h"

namespace dsv4::test {
namespace {

using model::LayerPlan;
using model::ModelConfig;
using model::ModelWeights;
using model::Numerics;

// The use of a linear layer decides its format and whether activations in front of it are rounded.
enum class Role : uint8_t { kDense, kExpert, kUnrounded };

class Builder {
 public:
  Builder(const ModelConfig& config, const ToyOptions& options, Numerics numerics,
          std::vector<Buffer>& copies)
      : config_(config), options_(options), numerics_(numerics), copies_(copies), random_(options.seed) {}

  std::vector<float> Normal(int64_t count, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(normal(random_));
    return values;
  }
  TensorView Vector(Shape shape, double mean, double deviation) {
    return ToyTensor(Normal(shape.num_elements(), mean, deviation), shape, copies_);
  }
  Weight Linear(int64_t rows, int64_t cols, Role role) {
    const std::vector<float> values = Normal(rows * cols, 0, 1.0 / std::sqrt(static_cast<double>(cols)));
    const WeightFormat format = FormatOf(role);
    const bool fp8_operand = format == WeightFormat::kFp8Block || format == WeightFormat::kMxFp4;
    const bool rounds = numerics_ == Numerics::kRelease && fp8_operand && role != Role::kUnrounded;
    return ToyWeight(values, rows, cols, format,
                     options_.format == ToyFormat::kF32 ? DType::kF32 : DType::kBF16,
                     rounds ? ActivationQuant::kFp8Block : ActivationQuant::kNone);
  }
  model::ExpertWeights Expert(Role role) {
    const int64_t inner = config_.moe_intermediate_size;
    return {Linear(inner, config_.hidden_size, role), Linear(config_.hidden_size, inner, role),
            Linear(inner, config_.hidden_size, role)};
  }
  model::HyperConnectionWeights HyperConnection(int64_t mix, int64_t num_scales) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(config_.hc_dim()));
    return {Vector({mix, config_.hc_dim()}, 0, deviation), Vector({mix}, 0, 0.5),
            Vector({num_scales}, 1, 0.2)};
  }
  model::CompressorWeights Compressor(const LayerPlan& layer, int64_t dim) {
    const int64_t width = layer.overlap * dim;
    return {Linear(width, config_.hidden_size, Role::kUnrounded),
            Linear(width, config_.hidden_size, Role::kUnrounded), Vector({layer.ratio, width}, 0, 1),
            Vector({dim}, 1, 0.1)};
  }
  model::LayerWeights Layer(const LayerPlan& layer);

 private:
  // The release keeps compressors, router and head in BF16.
  WeightFormat FormatOf(Role role) const {
    switch (options_.format) {
      case ToyFormat::kF32:
      case ToyFormat::kBf16:
        return WeightFormat::kPlain;
      case ToyFormat::kNvFp4:
        return WeightFormat::kNvFp4;
      case ToyFormat::kRelease:
      case ToyFormat::kNvFp4Experts:
        break;
    }
    if (role == Role::kUnrounded) return WeightFormat::kPlain;
    if (role == Role::kDense) return WeightFormat::kFp8Block;
    return options_.format == ToyFormat::kRelease ? WeightFormat::kMxFp4 : WeightFormat::kNvFp4;
  }

  const ModelConfig& config_;
  const ToyOptions& options_;
  Numerics numerics_;
  std::vector<Buffer>& copies_;
  std::mt19937 random_;
};

model::LayerWeights Builder::Layer(const LayerPlan& layer) {
  const ModelConfig& c = config_;
  model::LayerWeights w;
  w.attn_norm = Vector({c.hidden_size}, 1, 0.1);
  w.ffn_norm = Vector({c.hidden_size}, 1, 0.1);
  w.hc_attn = HyperConnection(c.hc_mix(), 3);
  w.hc_ffn = HyperConnection(c.hc_mix(), 3);
  w.wq_a = Linear(c.q_lora_rank, c.hidden_size, Role::kDense);
  w.q_norm = Vector({c.q_lora_rank}, 1, 0.1);
  w.wq_b = Linear(c.q_dim(), c.q_lora_rank, Role::kDense);
  w.wkv = Linear(c.head_dim, c.hidden_size, Role::kDense);
  w.kv_norm = Vector({c.head_dim}, 1, 0.1);
  w.attn_sink = Vector({c.num_attention_heads}, 0, 1);
  w.wo_a = Linear(c.o_groups * c.o_lora_rank, c.o_group_dim(), Role::kDense);
  w.wo_a.activation = ActivationQuant::kNone;
  w.wo_b = Linear(c.hidden_size, c.o_groups * c.o_lora_rank, Role::kDense);
  if (layer.makes_entries()) w.compressor = Compressor(layer, c.head_dim);
  if (layer.selects()) {
    w.indexer = model::IndexerWeights{Linear(c.index_n_heads * c.index_head_dim, c.q_lora_rank, Role::kDense),
                                      Linear(c.index_n_heads, c.hidden_size, Role::kUnrounded)};
    w.key_compressor = Compressor(layer, c.index_head_dim);
  }
  w.gate = Linear(c.n_routed_experts, c.hidden_size, Role::kUnrounded);
  if (layer.router == model::RouterKind::kTokenIds) {
    Buffer ids = HostMemory().Allocate(static_cast<size_t>(c.vocab_size * c.num_experts_per_tok) * 4).value();
    for (int64_t token = 0; token < c.vocab_size; ++token) {
      for (int64_t k = 0; k < c.num_experts_per_tok; ++k) {
        static_cast<int32_t*>(ids.data())[token * c.num_experts_per_tok + k] =
            static_cast<int32_t>((token * 3 + k) % c.n_routed_experts);
      }
    }
    w.tid2eid = TensorView::Contiguous(ids.data(), DType::kI32, {c.vocab_size, c.num_experts_per_tok});
    copies_.push_back(ids);
  } else {
    w.gate_bias = Vector({c.n_routed_experts}, 0, 0.2);
  }
  for (int64_t e = 0; e < c.n_routed_experts; ++e) w.experts.push_back(Expert(Role::kExpert));
  w.shared_expert = Expert(Role::kDense);
  return w;
}

}  // namespace

TensorView ToyTensor(std::span<const float> values, Shape shape, std::vector<Buffer>& copies) {
  Buffer buffer = HostMemory().Allocate(values.size_bytes()).value();
  std::memcpy(buffer.data(), values.data(), values.size_bytes());
  copies.push_back(buffer);
  return TensorView::Contiguous(buffer.data(), DType::kF32, shape);
}

Weight ToyWeight(std::span<const float> values, int64_t rows, int64_t cols, WeightFormat format,
                 DType plain_dtype, ActivationQuant activation) {
  Weight weight;
  if (format == WeightFormat::kPlain) {
    const auto num_bytes = static_cast<size_t>(rows * cols * ElementBytes(plain_dtype));
    weight.owner = HostMemory().Allocate(num_bytes).value();
    weight.rows = rows;
    weight.cols = cols;
    weight.data = TensorView::Contiguous(weight.owner.data(), plain_dtype, {rows, cols});
    for (size_t i = 0; i < values.size(); ++i) {
      if (plain_dtype == DType::kF32) {
        weight.data.as<float>()[i] = values[i];
      } else {
        weight.data.as<uint16_t>()[i] = Bf16FromFloat(values[i]);
      }
    }
  } else {
    auto matrix = std::make_shared<QuantizedMatrix>(
        format == WeightFormat::kFp8Block ? QuantizeFp8Block(values, rows, cols, 16, 16)
        : format == WeightFormat::kMxFp4  ? QuantizeMxFp4(values, rows, cols)
                                          : QuantizeNvFp4(values, rows, cols));
    weight = matrix->View();
    weight.owner = Buffer(matrix, matrix->data.size(), {});
  }
  weight.activation = activation;
  return weight;
}

ModelConfig ToyConfig(const ToyOptions& options) {
  ModelConfig c;
  c.tensors = model::V4Tensors();
  c.trunk = &model::V4Trunk();
  c.vocab_size = kToyVocab;
  c.hidden_size = 32;
  c.num_hidden_layers = static_cast<int64_t>(options.ratios.size());
  c.max_position_embeddings = options.max_position_embeddings;
  c.num_attention_heads = 4;
  c.head_dim = 72;
  c.qk_rope_head_dim = 8;
  c.q_lora_rank = 16;
  c.o_groups = 2;
  c.o_lora_rank = 16;
  c.sliding_window = kToyWindow;
  c.index_n_heads = 2;
  c.index_head_dim = 32;
  c.index_topk = 6;
  c.window_rows = c.entry_rows = CacheFormat::Fp8(c.nope_head_dim(), ops::SimulateFp8Args{}.group);
  c.key_rows = CacheFormat::Fp4(c.index_head_dim, ops::kIndexerFp4Group);
  c.n_routed_experts = 6;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 32;
  c.routed_scaling_factor = 1.5;
  c.swiglu_limit = 1.0;
  c.hc_mult = 2;
  c.hc_sinkhorn_iters = 4;
  c.hc_eps = 1e-6;
  c.rms_norm_eps = 1e-6;
  c.rope = {.theta = 10000};
  c.compress_rope = {.theta = 160000,
                     .yarn = true,
                     .factor = 16,
                     .original_max_position_embeddings = 65536,
                     .beta_fast = 32,
                     .beta_slow = 1};
  for (size_t i = 0; i < options.ratios.size(); ++i) {
    const int64_t ratio = options.ratios[i];
    const auto number = static_cast<int>(i);
    LayerPlan plan = model::BlockPlan(number, number);
    if (number < options.num_hash_layers) plan.router = model::RouterKind::kTokenIds;
    plan.ratio = ratio;
    if (ratio > 0) {
      plan.entries = number;
      plan.rope = model::RopeKind::kCompressed;
    }
    if (ratio == 4) {
      plan.keys = plan.selection = number;
      plan.overlap = 2;
    }
    c.layers.push_back(plan);
  }
  return c;
}

ModelWeights ToyWeights(const ModelConfig& config, const ToyOptions& options, Numerics numerics) {
  ModelWeights weights;
  Builder builder(config, options, numerics, weights.copies);
  const auto plain = [&](double deviation) {
    return ToyWeight(builder.Normal(config.vocab_size * config.hidden_size, 0, deviation), config.vocab_size,
                     config.hidden_size, WeightFormat::kPlain, DType::kBF16, ActivationQuant::kNone);
  };
  weights.embed = plain(1);
  weights.head = plain(0.2);
  weights.norm = builder.Vector({config.hidden_size}, 1, 0.1);
  weights.hc_head = builder.HyperConnection(config.hc_mult, 1);
  for (const LayerPlan& layer : config.layers) weights.layers.push_back(builder.Layer(layer));
  return weights;
}

const ops::Backend& ToyBackend() {
  static const ops::Backend backend = backend::MakeReferenceBackend(1);
  return backend;
}

model::ModelOptions ToyModelOptions(Numerics numerics) {
  model::ModelOptions options;
  options.numerics = numerics;
  options.max_chunk_tokens = 64;
  options.max_rewind_tokens = 9;
  return options;
}

std::unique_ptr<model::Model> MakeToyModel(const ToyOptions& options,
                                           const model::ModelOptions& model_options,
                                           const ops::Backend& backend) {
  ModelConfig config = ToyConfig(options);
  ModelWeights weights = ToyWeights(config, options, model_options.numerics);
  if (options.edit) options.edit(config, weights);
  auto made = model::Model::FromWeights(std::move(config), std::move(weights), backend, model_options);
  DSV4_CHECK(made.has_value()) << made.error().ToString();
  return std::move(*made);
}

std::vector<int32_t> RandomTokens(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kToyVocab);
  return tokens;
}

}  // namespace dsv4::test
