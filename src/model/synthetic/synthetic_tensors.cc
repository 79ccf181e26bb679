// List of a synthetic checkpoint's tensors with stored forms and distributions.
#include "model/synthetic/synthetic_tensors.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "formats/weight.h"
#include "model/config/dspark_config.h"
#include "model/config/tensor_rows.h"

namespace dsv4::model {
namespace {

bool IsNvFp4Everywhere(SyntheticFormat format) {
  return format == SyntheticFormat::kNvFp4 || format == SyntheticFormat::kNvFp4Ct;
}

constexpr int64_t kDsparkStages = 3;
constexpr double kFp8Sigma = 64;    // Elements stay below 448 to seven standard deviations.
constexpr double kFp4Sigma = 2;     // Three standard deviations reach the largest element.
constexpr double kNvFp4Scale = 23;  // The mean of kNvFp4Scales.

class Plan {
 public:
  Plan(const ModelConfig& config, SyntheticFormat format) : config_(config), format_(format) {
    for (const TensorRow& row : config.tensors) {
      if (row.scope == TensorScope::kModel) Add(row, "", LayerPlan());
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
      for (const TensorRow& row : config.tensors) {
        if (LayerHas(row, config.layers[i])) Add(row, fmt::format("layers.{}.", i), config.layers[i]);
      }
    }
    in_draft_block_ = true;
    const int64_t num_stages = config.dspark.has_value() ? kDsparkStages : 0;
    for (const TensorRow& row : config.tensors) {
      if (num_stages == 0 && config.num_nextn_predict_layers == 1 && IsOfMtp(row))
        Add(row, "mtp.0.", LayerPlan());
      for (int64_t i = 0; i < num_stages; ++i) {
        if (IsOfDspark(row, i == 0, i + 1 == num_stages))
          Add(row, fmt::format("mtp.{}.", i), DsparkStagePlan(*config.dspark, -1, 0));
      }
    }
  }

  std::vector<SyntheticTensor> Take() { return std::move(tensors_); }

 private:
  void Add(const TensorRow& row, const std::string& scope, const LayerPlan& layer) {
    const std::string name = scope + ExpandNames(row.names).front();
    if (row.scope != TensorScope::kExpert) return AddNamed(row, name, layer);
    const size_t hash = name.find('#');
    for (int64_t e = 0; e < config_.NumExperts(layer); ++e) {
      AddNamed(row, name.substr(0, hash) + std::to_string(e) + name.substr(hash + 1), layer);
    }
  }

  void AddNamed(const TensorRow& row, const std::string& name, const LayerPlan& layer) {
    const Shape shape =
        row.shape == nullptr ? DsparkShape(row.id, config_, *config_.dspark) : row.shape(config_, layer);
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
                            .fill = SyntheticFill::kExpertIds,
                            .limit = config_.n_routed_experts,
                            .row = config_.num_experts_per_tok});
        return;
      case TensorKind::kVector: {
        const bool is_norm = name.ends_with("norm.weight");
        // Mixing matrices read hc_mult * hidden_size numbers of size 1; the other vectors are small offsets.
        const double sigma =
            dims.size() == 2 && name.ends_with("_fn") ? 1 / std::sqrt(static_cast<double>(dims[1])) : 0.1;
        const SyntheticFill fill = is_norm                    ? SyntheticFill::kOnes
                                   : name.ends_with("_scale") ? SyntheticFill::kConstant
                                                              : SyntheticFill::kNormal;
        tensors_.push_back({.spec = {name, is_norm && !f32 ? DType::kBF16 : DType::kF32, dims},
                            .fill = fill,
                            .sigma = fill == SyntheticFill::kConstant ? 0.5 : sigma});
        return;
      }
      case TensorKind::kVision:
        return;
      case TensorKind::kTable:
        return AddTable(name, dims);
    }
  }

  // Rows of size 1, which wkv brings to that of other linears' outputs.
  void AddTable(const std::string& name, const std::vector<int64_t>& dims) {
    if (format_ == SyntheticFormat::kBf16 || format_ == SyntheticFormat::kF32) {
      const DType dtype = format_ == SyntheticFormat::kF32 ? DType::kF32 : DType::kBF16;
      tensors_.push_back({.spec = {name + ".weight", dtype, dims}, .sigma = 1});
      return;
    }
    constexpr int64_t kGroup = 32;
    tensors_.push_back({.spec = {name + ".weight", DType::kF8E4M3, dims}, .sigma = kFp8Sigma});
    tensors_.push_back({.spec = {name + ".scale", DType::kF8E8M0, {dims[0], (dims[1] + kGroup - 1) / kGroup}},
                        .fill = SyntheticFill::kE8m0Scales,
                        .sigma = 1 / kFp8Sigma});
  }

  WeightFormat FormatOf(const TensorRow& row) const {
    if (format_ == SyntheticFormat::kBf16 || format_ == SyntheticFormat::kF32 || row.id == TensorId::kHead) {
      return WeightFormat::kPlain;
    }
    if (IsNvFp4Everywhere(format_)) return WeightFormat::kNvFp4;
    if (row.scope == TensorScope::kExpert) {
      const bool nvfp4_trunk = format_ == SyntheticFormat::kNvFp4Experts;
      if (format_ == SyntheticFormat::kRelease || (nvfp4_trunk && in_draft_block_))
        return WeightFormat::kMxFp4;
      if (format_ == SyntheticFormat::kNvFp4Experts) return WeightFormat::kNvFp4;
      return WeightFormat::kFp8Block;
    }
    return IsFp8InRelease(row.id) ? WeightFormat::kFp8Block : WeightFormat::kPlain;
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
        // Part of sigma that a power-of-two scale cannot express is left to the elements.
        const double scale =
            f32_scales ? sigma / kFp8Sigma : std::exp2(std::round(std::log2(sigma / kFp8Sigma)));
        const int64_t block = config_.activation_block;
        const std::vector<int64_t> grid = {(rows + block - 1) / block, (cols + block - 1) / block};
        tensors_.push_back(
            {.spec = {name + ".weight", DType::kF8E4M3, {rows, cols}}, .sigma = sigma / scale});
        tensors_.push_back({.spec = {name + ".scale", f32_scales ? DType::kF32 : DType::kF8E8M0, grid},
                            .fill = f32_scales ? SyntheticFill::kF32Scales : SyntheticFill::kE8m0Scales,
                            .sigma = scale});
        return;
      }
      case WeightFormat::kMxFp4: {
        const double scale = std::exp2(std::round(std::log2(sigma / kFp4Sigma)));
        tensors_.push_back({.spec = {name + ".weight", DType::kI8, {rows, cols / 2}},
                            .sigma = sigma / scale,
                            .four_bit = true});
        tensors_.push_back({.spec = {name + ".scale", DType::kF8E8M0, {rows, cols / kMxFp4Block}},
                            .fill = SyntheticFill::kE8m0Scales,
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
                            .fill = SyntheticFill::kNvFp4Scales});
        tensors_.push_back({.spec = {name + (compressed_tensors ? ".weight_global_scale" : ".weight_scale_2"),
                                     DType::kF32,
                                     {}},
                            .fill = SyntheticFill::kConstant,
                            .sigma = compressed_tensors ? 1 / global : global});
        if (!compressed_tensors) {
          tensors_.push_back({.spec = {name + ".input_scale", DType::kF32, {}},
                              .fill = SyntheticFill::kConstant,
                              .sigma = 1});
        }
        return;
      }
    }
  }

  const ModelConfig& config_;
  SyntheticFormat format_;
  bool in_draft_block_ = false;
  std::vector<SyntheticTensor> tensors_;
};

}  // namespace

std::vector<SyntheticTensor> PlanSyntheticTensors(const ModelConfig& config, SyntheticFormat format) {
  return Plan(config, format).Take();
}

}  // namespace dsv4::model
