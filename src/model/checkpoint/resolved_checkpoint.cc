// Resolution of the tensor table against a checkpoint's names, in every dialect, with missing and extra
// tensors named.
#include "model/checkpoint/resolved_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "model/config/dspark_config.h"

namespace dsv4::model {
namespace {

constexpr int64_t kMaxDsparkStages = 16;

// Faults of one kind: all counted, the first few named.
// Whether `expert_dtype` of a config.json says this format.
bool IsStoredAs(WeightFormat format, std::string_view expert_dtype) {
  if (expert_dtype == "fp4") return format == WeightFormat::kMxFp4 || format == WeightFormat::kNvFp4;
  if (expert_dtype == "fp8") return format == WeightFormat::kFp8Block;
  return expert_dtype.empty() || format == WeightFormat::kPlain;
}

class FaultList {
 public:
  void Add(std::string fault) {
    constexpr size_t kMaxNamed = 5;
    ++count_;
    if (named_.size() < kMaxNamed) named_.push_back(std::move(fault));
  }
  int64_t count() const { return count_; }
  // "2 missing (a; b)".
  std::string Summary(std::string_view kind) const {
    return fmt::format("{} {} ({}{})", count_, kind, fmt::join(named_, "; "),
                       count_ > static_cast<int64_t>(named_.size()) ? "; ..." : "");
  }

 private:
  int64_t count_ = 0;
  std::vector<std::string> named_;
};

// The spellings of one row and the one this checkpoint was last seen to use, tried first and quoted in
// errors.
struct Spelling {
  std::vector<std::string> names;
  std::optional<size_t> used;
};

std::string WithExpert(std::string name, int64_t expert) {
  if (const size_t hash = name.find('#'); hash != std::string::npos)
    name.replace(hash, 1, std::to_string(expert));
  return name;
}

class Resolver {
 public:
  Resolver(const io::Checkpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint), config_(config), used_(checkpoint.tensors().size(), false) {
    for (const TensorRow& row : config_.tensors) spellings_[Index(row.id)].names = ExpandNames(row.names);
  }

  Result<ResolvedCheckpoint> Run() {
    ResolvedCheckpoint resolved;
    // Layers first: they show how this checkpoint spells names, should one of the model's own be missing.
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      resolved.layers.push_back(ResolveLayer(i));
      // Numbers of a config.json alone would take memory and time otherwise.
      constexpr int64_t kEnough = 10'000;
      if (missing_.count() > kEnough) return Error(Summary().WithContext(fmt::format("up to layer {}", i)));
    }
    for (const TensorRow& row : config_.tensors) {
      if (row.scope == TensorScope::kModel)
        resolved.model[Index(row.id)] = ResolveModelTensor(row, resolved.head_is_tied);
    }
    SkipOrReportTheRest(resolved);
    if (missing_.count() + misshapen_.count() + extra_.count() > 0) return Error(Summary());
    CompareWithConfig(resolved);
    ResolveMtp(resolved);
    return resolved;
  }

  Result<ResolvedDspark> RunDspark(const DsparkConfig& dspark) {
    dspark_ = &dspark;
    int64_t num_stages = 0;
    for (const io::StoredTensor& tensor : checkpoint_.tensors())
      num_stages = std::max(num_stages, StageOf(tensor.name) + 1);
    if (num_stages == 0 || num_stages > kMaxDsparkStages) {
      return Error(InvalidArgument(fmt::format("{}: tensors of {} DSpark stages (mtp.<N>.*), wanted 1 to {}",
                                               checkpoint_.directory(), num_stages, kMaxDsparkStages)));
    }
    ResolvedDspark resolved;
    const LayerPlan layer = DsparkStagePlan(dspark, -1, 0);
    for (int64_t i = 0; i < num_stages; ++i) {
      const std::string scope = fmt::format("mtp.{}.", i);
      ResolvedLayer& stage = resolved.stages.emplace_back();
      for (const TensorRow& row : config_.tensors) {
        if (row.scope != TensorScope::kExpert && IsOfDspark(row, i == 0, i + 1 == num_stages))
          stage.tensors[Index(row.id)] = ResolveTensor(row, scope, layer);
      }
      stage.experts = ResolveExperts(scope, layer);
    }
    if (missing_.count() + misshapen_.count() > 0) return Error(Summary());
    return resolved;
  }

 private:
  // N of "mtp.N.", with or without "model." in front; -1 of other tensors.
  static int64_t StageOf(std::string_view name) {
    constexpr std::string_view kModel = "model.", kMtp = "mtp.";
    if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
    if (!name.starts_with(kMtp)) return -1;
    name.remove_prefix(kMtp.size());
    int64_t stage = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), stage);
    const bool is_stage = error == std::errc() && stage >= 0 && stage < kMaxDsparkStages &&
                          end != name.data() + name.size() && *end == '.';
    return is_stage ? stage : kMaxDsparkStages;
  }

  static size_t Index(TensorId id) { return static_cast<size_t>(id); }

  const io::StoredTensor* Take(const std::string& name) {
    const io::StoredTensor* tensor = checkpoint_.Find(name);
    if (tensor != nullptr) used_[static_cast<size_t>(tensor - checkpoint_.tensors().data())] = true;
    return tensor;
  }

  // Calls try_name(full name) over the row's spellings, the last successful one first, until it returns true.
  template <typename TryName>
  bool TrySpellings(const TensorRow& row, const std::string& scope, int64_t expert, TryName try_name) {
    Spelling& spelling = spellings_[Index(row.id)];
    const size_t count = spelling.names.size();
    for (size_t attempt = 0; attempt < 2 * count; ++attempt) {
      const size_t i = (spelling.used.value_or(0) + attempt) % count;
      // The prefix in use is tried over all spellings before the other one.
      const bool with_prefix = (attempt < count) == model_prefix_;
      if (try_name((with_prefix ? "model." : "") + scope + WithExpert(spelling.names[i], expert))) {
        spelling.used = i;
        if (!scope.empty()) model_prefix_ = with_prefix;
        if (i + 1 == count && count > 1) transformers_style_ = true;
        return true;
      }
    }
    return false;
  }

  // How this checkpoint would spell a tensor it lacks.
  std::string ExpectedName(const TensorRow& row, const std::string& scope, int64_t expert) const {
    const Spelling& spelling = spellings_[Index(row.id)];
    const size_t i = spelling.used.value_or(transformers_style_ ? spelling.names.size() - 1 : 0);
    const bool with_prefix = model_prefix_ && row.id != TensorId::kHead;
    return (with_prefix ? "model." : "") + scope + WithExpert(spelling.names[i], expert);
  }

  const io::StoredTensor* FindTensor(const TensorRow& row, const std::string& scope) {
    const io::StoredTensor* tensor = nullptr;
    TrySpellings(row, scope, 0, [&](const std::string& name) { return (tensor = Take(name)) != nullptr; });
    return tensor;
  }

  // The tensors of a linear, before anything is said about their shapes.
  struct FoundLinear {
    const io::StoredTensor* weight = nullptr;
    const io::StoredTensor* scale = nullptr;
    const io::StoredTensor* multiplier = nullptr;
    const io::StoredTensor* divisor = nullptr;
  };

  // `fused`: parameters of a module may also be joined by "_" and the elements bear the bare name.
  std::optional<FoundLinear> FindLinear(const TensorRow& row, const std::string& scope, int64_t expert,
                                        bool fused) {
    FoundLinear found;
    std::string base;
    TrySpellings(row, scope, expert, [&](const std::string& name) {
      base = name;
      for (const char* suffix : {".weight", ".weight_packed"}) {
        if (found.weight == nullptr) found.weight = Take(name + suffix);
      }
      if (fused && found.weight == nullptr) found.weight = Take(name);
      return found.weight != nullptr;
    });
    if (found.weight == nullptr) return std::nullopt;
    const auto take_sibling = [&](std::initializer_list<std::string_view> suffixes) {
      const io::StoredTensor* sibling = nullptr;
      for (const std::string_view suffix : suffixes) {
        for (const char* joint : {".", "_"}) {
          if (*joint == '_' && !fused) continue;
          const io::StoredTensor* candidate = checkpoint_.Find(fmt::format("{}{}{}", base, joint, suffix));
          // A second spelling of the same part stays unused and is reported as extra.
          if (candidate != nullptr && sibling == nullptr) sibling = Take(candidate->name);
        }
      }
      return sibling;
    };
    found.scale = take_sibling({"scale", "weight_scale", "weight_scale_inv", "scale_inv"});
    found.multiplier = take_sibling({"weight_scale_2", "scale_2"});
    found.divisor = take_sibling({"weight_global_scale", "global_scale"});
    take_sibling({"input_scale"});
    take_sibling({"input_global_scale"});
    return found;
  }

  StoredLinear Describe(const LinearParts& parts, Shape shape, const QuantizationConfig& quantization) {
    Result<StoredLinear> stored = DescribeLinear(parts, shape[0], shape[1], quantization);
    if (stored) return *std::move(stored);
    misshapen_.Add(stored.error().message());
    return {};
  }

  Shape ShapeOf(const TensorRow& row, const LayerPlan& layer) const {
    return row.shape == nullptr ? DsparkShape(row.id, config_, *dspark_) : row.shape(config_, layer);
  }

  StoredLinear ResolveLinear(const TensorRow& row, const std::string& scope, const LayerPlan& layer,
                             int64_t expert) {
    const std::optional<FoundLinear> found = FindLinear(row, scope, expert, /*fused=*/false);
    if (!found) {
      missing_.Add(ExpectedName(row, scope, expert) + ".weight");
      return {};
    }
    const LinearParts parts = {TensorPart::Whole(found->weight), TensorPart::Whole(found->scale),
                               TensorPart::Whole(found->multiplier), TensorPart::Whole(found->divisor)};
    // Scales of a table are those of one row.
    const QuantizationConfig of_rows{.weight_block_rows = 1, .weight_block_cols = kMxFp4Block};
    StoredLinear stored =
        Describe(parts, ShapeOf(row, layer), row.kind == TensorKind::kTable ? of_rows : config_.quantization);
    if (row.kind == TensorKind::kEmbedding && stored.found() && stored.format != WeightFormat::kPlain) {
      misshapen_.Add(fmt::format("tensor {}: stored as {}, an embedding wants F32, F16 or BF16",
                                 found->weight->name, stored.FormatName()));
    }
    return stored;
  }

  const io::StoredTensor* ResolvePlainTensor(const TensorRow& row, const std::string& scope,
                                             const LayerPlan& layer) {
    const io::StoredTensor* tensor = FindTensor(row, scope);
    if (tensor == nullptr) {
      missing_.Add(ExpectedName(row, scope, 0));
      return nullptr;
    }
    const Shape wanted = ShapeOf(row, layer);
    std::vector<int64_t> dims;
    for (int i = 0; i < wanted.rank(); ++i) dims.push_back(wanted[i]);
    const bool is_one_number = wanted.num_elements() == 1 && tensor->dims.empty();
    if (tensor->dims != dims && !is_one_number) {
      misshapen_.Add(fmt::format("tensor {}: shape {}, config wants {}", tensor->name, tensor->ShapeString(),
                                 wanted.ToString()));
    }
    const std::optional<DType> dtype = tensor->dtype;
    const bool dtype_fits = row.kind == TensorKind::kExpertIds
                                ? dtype == DType::kI64 || dtype == DType::kI32
                                : dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
    if (!dtype_fits) {
      misshapen_.Add(fmt::format("tensor {}: dtype {}, wanted {}", tensor->name, tensor->dtype_name,
                                 row.kind == TensorKind::kExpertIds ? "I64 or I32" : "F32, BF16 or F16"));
    }
    return tensor;
  }

  ResolvedTensor ResolveTensor(const TensorRow& row, const std::string& scope, const LayerPlan& layer) {
    const bool is_table = row.kind == TensorKind::kTable;
    if (is_table || row.kind == TensorKind::kLinear || row.kind == TensorKind::kEmbedding) {
      return {.linear = ResolveLinear(row, scope, layer, 0), .tensor = nullptr, .is_table = is_table};
    }
    return {.linear = {}, .tensor = ResolvePlainTensor(row, scope, layer)};
  }

  ResolvedTensor ResolveModelTensor(const TensorRow& row, bool& head_is_tied) {
    if (row.id == TensorId::kHead && config_.tie_word_embeddings) {
      const bool present = TrySpellings(row, "", 0, [&](const std::string& name) {
        return checkpoint_.Find(name + ".weight") != nullptr ||
               checkpoint_.Find(name + ".weight_packed") != nullptr;
      });
      if (!present) {
        head_is_tied = true;
        return {};
      }
      if (!HeadIsEmbedding(row)) {
        misshapen_.Add(
            fmt::format("tensor {}.weight: another one than the embedding's, and config.json has "
                        "tie_word_embeddings true; wanted the same, or false",
                        ExpectedName(row, "", 0)));
      }
    }
    return ResolveTensor(row, "", LayerPlan());
  }

  // A head that is there although the embedding should serve as one.
  bool HeadIsEmbedding(const TensorRow& head) {
    const auto find = [&](const TensorRow& row) {
      const io::StoredTensor* tensor = nullptr;
      TrySpellings(row, "", 0, [&](const std::string& name) {
        return (tensor = checkpoint_.Find(name + ".weight")) != nullptr;
      });
      return tensor;
    };
    const io::StoredTensor* a = find(head);
    const io::StoredTensor* b = find(RowOf(config_, TensorId::kEmbed));
    return a != nullptr && b != nullptr && a->dtype_name == b->dtype_name && a->dims == b->dims &&
           std::ranges::equal(a->bytes, b->bytes);
  }

  ResolvedLayer ResolveLayer(int64_t index) {
    const LayerPlan& layer = config_.layers[static_cast<size_t>(index)];
    const std::string scope = fmt::format("layers.{}.", index);
    ResolvedLayer resolved;
    for (const TensorRow& row : config_.tensors) {
      if (row.scope != TensorScope::kExpert && LayerHas(row, layer)) {
        resolved.tensors[Index(row.id)] = ResolveTensor(row, scope, layer);
      }
    }
    if (config_.has_vision) SkipVisionBiases(scope, layer);
    resolved.experts = ResolveExperts(scope, layer);
    return resolved;
  }

  // Last of all: its faults are no faults of the model's.
  void ResolveMtp(ResolvedCheckpoint& resolved) {
    const auto has = [&](const char* name) {
      return checkpoint_.Find(name) != nullptr || checkpoint_.Find(std::string("model.") + name) != nullptr;
    };
    if (!resolved.skipped.contains("mtp.")) {
      resolved.no_mtp = "the checkpoint has no draft tensors (mtp.*)";
      return;
    }
    if (!HasRow(config_, TensorId::kMtpEProj)) {
      resolved.no_mtp = "this architecture has no draft block (MTP)";
      return;
    }
    if (config_.dspark.has_value() || !config_.dspark_fault.empty() || has("mtp.0.main_norm.weight")) {
      resolved.no_mtp = "the draft tensors are those of DSpark";
      return;
    }
    const std::string scope = "mtp.0.";
    const LayerPlan layer;  // A window, and experts by score.
    ResolvedLayer block;
    for (const TensorRow& row : config_.tensors) {
      if (row.scope != TensorScope::kExpert && IsOfMtp(row))
        block.tensors[Index(row.id)] = ResolveTensor(row, scope, layer);
    }
    block.experts = ResolveExperts(scope, layer);
    if (missing_.count() + misshapen_.count() == 0) {
      resolved.mtp = std::move(block);
    } else {
      resolved.no_mtp = Summary().message();
    }
  }

  // Image tokens are routed with biases of their own, in hash-routed layers too.
  void SkipVisionBiases(const std::string& scope, const LayerPlan& layer) {
    const auto skip = [&](TensorId id) {
      if (const io::StoredTensor* tensor = FindTensor(RowOf(config_, id), scope); tensor != nullptr)
        vision_biases_.push_back(tensor);
    };
    skip(TensorId::kGateBiasVision);
    if (layer.router == RouterKind::kTokenIds) skip(TensorId::kGateBias);
  }

  std::vector<ResolvedExpert> ResolveExperts(const std::string& scope, const LayerPlan& layer) {
    const TensorRow& fused_in_row = RowOf(config_, TensorId::kFusedExpertsW1W3);
    const TensorRow& fused_out_row = RowOf(config_, TensorId::kFusedExpertsW2);
    const std::optional<FoundLinear> fused_in = FindLinear(fused_in_row, scope, 0, /*fused=*/true);
    const std::optional<FoundLinear> fused_out = FindLinear(fused_out_row, scope, 0, /*fused=*/true);
    if (fused_in || fused_out) {
      if (!fused_in) missing_.Add(ExpectedName(fused_in_row, scope, 0));
      if (!fused_out) missing_.Add(ExpectedName(fused_out_row, scope, 0));
      return fused_in && fused_out ? SplitExperts(*fused_in, *fused_out, layer)
                                   : std::vector<ResolvedExpert>();
    }
    const int64_t num_experts = config_.NumExperts(layer);
    std::vector<ResolvedExpert> experts(static_cast<size_t>(num_experts));
    for (int64_t e = 0; e < num_experts; ++e) {
      ResolvedExpert& expert = experts[static_cast<size_t>(e)];
      expert.w1 = ResolveLinear(RowOf(config_, TensorId::kExpertW1), scope, layer, e);
      expert.w2 = ResolveLinear(RowOf(config_, TensorId::kExpertW2), scope, layer, e);
      expert.w3 = ResolveLinear(RowOf(config_, TensorId::kExpertW3), scope, layer, e);
    }
    return experts;
  }

  // One expert's slice of a tensor over all experts. Faults are reported for the first faulty expert only.
  std::optional<LinearParts> SliceParts(const FoundLinear& found, int64_t expert, int64_t num_experts) {
    LinearParts parts;
    const auto slice = [&](const io::StoredTensor* tensor, TensorPart& out) {
      Result<TensorPart> part = TensorPart::Slice(tensor, expert, num_experts);
      if (part) {
        out = *std::move(part);
        return true;
      }
      misshapen_.Add(part.error().message());
      return false;
    };
    const bool sliced = slice(found.weight, parts.weight) && slice(found.scale, parts.scale) &&
                        slice(found.multiplier, parts.multiplier) && slice(found.divisor, parts.divisor);
    return sliced ? std::optional(parts) : std::nullopt;
  }

  // The global scales of w1 and w3 may be two numbers: keeps the first and returns the second.
  static std::span<const std::byte> TakeSecondNumber(TensorPart& part) {
    if (part.dims != std::vector<int64_t>{2}) return {};
    const std::span<const std::byte> second = part.bytes.subspan(part.bytes.size() / 2);
    part.dims = {};
    part.bytes = part.bytes.first(part.bytes.size() / 2);
    return second;
  }

  std::vector<ResolvedExpert> SplitExperts(const FoundLinear& fused_in, const FoundLinear& fused_out,
                                           const LayerPlan& layer) {
    const int64_t num_experts = config_.NumExperts(layer);
    std::vector<ResolvedExpert> experts(static_cast<size_t>(num_experts));
    const Shape in_shape = RowOf(config_, TensorId::kFusedExpertsW1W3).shape(config_, layer);
    const Shape out_shape = RowOf(config_, TensorId::kFusedExpertsW2).shape(config_, layer);
    for (int64_t e = 0; e < num_experts; ++e) {
      std::optional<LinearParts> in_parts = SliceParts(fused_in, e, num_experts);
      const std::optional<LinearParts> out_parts = SliceParts(fused_out, e, num_experts);
      if (!in_parts || !out_parts) return {};
      const std::span<const std::byte> w3_global_scale =
          TakeSecondNumber(in_parts->multiplier.tensor != nullptr ? in_parts->multiplier : in_parts->divisor);
      const StoredLinear in = Describe(*in_parts, in_shape, config_.quantization);
      ResolvedExpert& expert = experts[static_cast<size_t>(e)];
      expert.w2 = Describe(*out_parts, out_shape, config_.quantization);
      if (!in.found() || !expert.w2.found()) return {};
      Result<StoredLinear> w1 = in.Rows(0, config_.moe_intermediate_size);
      Result<StoredLinear> w3 = in.Rows(config_.moe_intermediate_size, 2 * config_.moe_intermediate_size);
      if (!w1 || !w3) {
        misshapen_.Add((w1 ? w3 : w1).error().message());
        return {};
      }
      expert.w1 = *std::move(w1);
      expert.w3 = *std::move(w3);
      if (!w3_global_scale.empty()) expert.w3.global_scale = w3_global_scale;
    }
    return experts;
  }

  void SkipOrReportTheRest(ResolvedCheckpoint& resolved) {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      const io::StoredTensor& tensor = checkpoint_.tensors()[i];
      std::string_view name = tensor.name;
      if (name.starts_with("model.")) name.remove_prefix(6);
      const auto prefix = std::find_if(kSkippedPrefixes.begin(), kSkippedPrefixes.end(),
                                       [&](std::string_view p) { return name.starts_with(p); });
      if (prefix == kSkippedPrefixes.end()) {
        extra_.Add(tensor.name);
      } else {
        Skip(resolved, std::string(*prefix), tensor);
      }
    }
    for (const io::StoredTensor* tensor : vision_biases_) Skip(resolved, "vision router biases", *tensor);
  }

  static void Skip(ResolvedCheckpoint& resolved, const std::string& what, const io::StoredTensor& tensor) {
    ResolvedCheckpoint::Skipped& skipped = resolved.skipped[what];
    ++skipped.num_tensors;
    skipped.num_bytes += static_cast<int64_t>(tensor.bytes.size());
    resolved.skipped_tensors.push_back(&tensor);
  }

  Status Summary() const {
    std::vector<std::string> parts;
    if (missing_.count() > 0) parts.push_back(missing_.Summary("missing"));
    if (misshapen_.count() > 0) parts.push_back(misshapen_.Summary("not as the config wants"));
    if (extra_.count() > 0) parts.push_back(extra_.Summary("extra"));
    // The method's name decides nothing, but where its tensors cannot be read it says more than their names.
    constexpr std::array<std::string_view, 6> kMethods = {"",      "fp8",   "compressed-tensors",
                                                          "mxfp4", "quark", "auto-round"};
    const std::string& method = config_.quantization.quant_method;
    const bool is_known = method.starts_with("modelopt") ||
                          std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
    return InvalidArgument(
        fmt::format("checkpoint {}: {}tensors: {}", checkpoint_.directory(),
                    is_known ? std::string()
                             : fmt::format("quant_method \"{}\", whose formats are not known here; ", method),
                    fmt::join(parts, ", ")));
  }

  // quantization.md 8, check 5. The tensors describe themselves; a config that says otherwise is worth a
  // line, not a refusal.
  void CompareWithConfig(ResolvedCheckpoint& resolved) const {
    FaultList not_promised;
    FaultList not_kept;
    FaultList other_experts;
    bool any_as_written = false;
    const QuantizationConfig& quantization = config_.quantization;
    const bool nvfp4_promised =
        quantization.quant_algo == "NVFP4" || quantization.moe_quant_algo == "NVFP4" ||
        quantization.quant_method == "compressed-tensors" || !quantization.quantized_layers.empty();
    const auto in_quantized_layers = [&](std::string_view name) {
      return std::any_of(quantization.quantized_layers.begin(), quantization.quantized_layers.end(),
                         [&](const std::string& module) { return name.starts_with(module + "."); });
    };
    const auto compare = [&](const StoredLinear& linear) {
      if (!linear.found()) return;
      const std::string& name = linear.weight_tensor->name;
      const bool nvfp4 = linear.format == WeightFormat::kNvFp4;
      if (nvfp4 && !nvfp4_promised) not_promised.Add(name);
      if (!nvfp4 && in_quantized_layers(name)) not_kept.Add(name);
    };
    for (const ResolvedLayer& layer : resolved.layers) {
      for (const ResolvedTensor& tensor : layer.tensors) compare(tensor.linear);
      for (const ResolvedExpert& expert : layer.experts) {
        for (const StoredLinear* linear : {&expert.w1, &expert.w2, &expert.w3}) {
          compare(*linear);
          if (!linear->found()) continue;
          if (IsStoredAs(linear->format, config_.expert_dtype)) {
            any_as_written = true;
          } else {
            other_experts.Add(linear->weight_tensor->name);
          }
        }
      }
    }
    if (!any_as_written && other_experts.count() > 0)
      resolved.disagreements.push_back(other_experts.Summary(
          fmt::format("experts that are not what expert_dtype \"{}\" says", config_.expert_dtype)));
    if (not_promised.count() > 0)
      resolved.disagreements.push_back(
          not_promised.Summary("NVFP4 linears that quantization_config does not announce"));
    if (not_kept.count() > 0)
      resolved.disagreements.push_back(
          not_kept.Summary("linears that quantized_layers calls NVFP4 and that are not"));
  }

  const io::Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const DsparkConfig* dspark_ = nullptr;  // Config of RunDspark.
  std::vector<bool> used_;
  std::array<Spelling, kNumTensorIds> spellings_;
  bool model_prefix_ = false;
  bool transformers_style_ = false;
  std::vector<const io::StoredTensor*> vision_biases_;
  FaultList missing_;
  FaultList misshapen_;
  FaultList extra_;
};

}  // namespace

Result<ResolvedCheckpoint> ResolveCheckpoint(const io::Checkpoint& checkpoint, const ModelConfig& config) {
  return Resolver(checkpoint, config).Run();
}

Result<ResolvedDspark> ResolveDspark(const io::Checkpoint& checkpoint, const ModelConfig& config,
                                     const DsparkConfig& dspark) {
  return Resolver(checkpoint, config).RunDspark(dspark);
}

}  // namespace dsv4::model
