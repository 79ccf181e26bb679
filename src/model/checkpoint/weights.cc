// Loader of a model's weights by layer, whole or for a rank's part, with scales checked.
#include "model/checkpoint/weights.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "io/checkpoint.h"
#include "io/content_digest.h"
#include "io/read_ahead.h"
#include "model/checkpoint/dspark_source.h"
#include "model/checkpoint/resolved_checkpoint.h"
#include "model/checkpoint/small_tensors.h"
#include "model/checkpoint/stages.h"
#include "model/checkpoint/stored_linear.h"
#include "model/config/dspark_config.h"
#include "model/config/tensor_rows.h"

namespace dsv4::model {
namespace {

// The experts of which a shard has something.
Range ExpertsOf(const RankPlace& place, int64_t num_experts) {
  if (place.placement.experts == ExpertPlacement::kByColumns) return {0, num_experts};
  return PartOf(num_experts, 1, place.shard(), place.num_shards());
}

// Times of the loading thread by part: the parts that have a name.
struct LoadTimes {
  double numbers = 0;  // Making them (io::NumberSource), and giving their memory back.
  double placing = 0;  // LoadOptions::loaded
};

// Ranges of the numbers of tensors that are loaded together. Whole tensors: a part of most of them is wanted.
class Numbers {
 public:
  Numbers(const io::Checkpoint& checkpoint, const LoadOptions& options, LoadTimes& times)
      : checkpoint_(checkpoint), options_(options), times_(times) {}
  ~Numbers() {
    const AddsSeconds seconds(times_.numbers);
    if (!fetched_ || !options_.numbers_pass) return;
    if (options_.digest != nullptr) options_.digest->Follow(ranges_);
    checkpoint_.Release(ranges_);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  void Add(const StoredLinear& linear) {
    for (const auto& bytes : {linear.data, linear.scale, linear.global_scale}) ranges_.push_back(bytes);
  }
  void Add(const ResolvedTensor& tensor) {
    if (tensor.is_table) {
      ranges_.push_back(tensor.linear.global_scale);
      return;
    }
    Add(tensor.linear);
    if (tensor.tensor != nullptr) ranges_.push_back(tensor.tensor->bytes);
  }
  // `experts_stay`: loading reads their scales only.
  void Add(const ResolvedLayer& layer, const RankPlace& place, bool experts_stay = false) {
    for (const ResolvedTensor& tensor : layer.tensors) Add(tensor);
    const Range mine = ExpertsOf(place, static_cast<int64_t>(layer.experts.size()));
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const ResolvedExpert& expert = layer.experts[static_cast<size_t>(i)];
      for (const StoredLinear* linear : {&expert.w1, &expert.w2, &expert.w3}) {
        if (experts_stay)
          ranges_.push_back(linear->scale);
        else
          Add(*linear);
      }
    }
  }
  void Fetch() {
    if (options_.sizes_only) return;
    const AddsSeconds seconds(times_.numbers);
    checkpoint_.Fetch(ranges_);
    fetched_ = true;
  }
  std::span<const std::span<const std::byte>> ranges() const { return ranges_; }

 private:
  const io::Checkpoint& checkpoint_;
  const LoadOptions& options_;
  LoadTimes& times_;
  std::vector<std::span<const std::byte>> ranges_;
  bool fetched_ = false;
};

// Fills the structs from resolved tensors. The first error sticks; later loads do nothing.
class Loader {
 public:
  Loader(const ModelConfig& config, const LoadOptions& options, const RankPlace& place,
         std::vector<Buffer>& copies)
      : config_(config), options_(options), place_(place), copies_(copies) {}

  // Status of all that was loaded so far, checked.
  const Status& Check() {
    if (Status checked = checks_.Finish(); status_.ok()) status_ = std::move(checked);
    return status_;
  }

  Weight Linear(TensorId id, const StoredLinear& stored) {
    if (!status_.ok()) return {};
    const ActivationQuant activation = ActivationOf(RowOf(config_, id), stored.format);
    return Keep(options_.sizes_only ? LoadSizes(stored, activation, copies_)
                                    : LoadLinear(stored, activation, copies_, checks_));
  }

  // Some rows of a linear.
  Weight LinearRows(TensorId id, const StoredLinear& stored, const Range& rows) {
    if (!status_.ok() || rows == Range{0, stored.rows}) return Linear(id, stored);
    Weight none;
    none.cols = stored.cols;
    return rows.empty() ? none : Linear(id, Keep(stored.RowsFrom(rows.begin, rows.end, copies_)));
  }

  // One part of a linear's rows, divided evenly; how is left in *split.
  Weight LinearPart(TensorId id, const StoredLinear& stored, int part, int num_parts, ColumnSplit* split) {
    if (num_parts == 1) return Linear(id, stored);
    *split = SplitColumns(stored.rows, RowUnit(stored), num_parts);
    return LinearRows(id, stored, split->Of(part));
  }

  // Draft head of the rows that this shard has of the head.
  Weight HeadOfDrafts(const StoredLinear& head, const ColumnSplit& split) {
    if (!status_.ok() || options_.draft_head == DraftHead::kStored) return {};
    const Range rows = split.total() == 0 ? Range{0, head.rows} : split.Of(place_.shard());
    const Weight stored = LinearRows(TensorId::kHead, head, rows);
    if (!Check().ok() || stored.rows == 0) return {};
    return Keep(MakeDraftHead(stored, options_.draft_head, options_.sizes_only, copies_));
  }

  // Small numbers as contiguous F32 of the table's shape.
  TensorView Vector(TensorId id, const io::StoredTensor* tensor, const LayerPlan& layer) {
    if (!status_.ok()) return {};
    return Keep(LoadVector(*tensor, RowOf(config_, id).shape(config_, layer), copies_));
  }

  // Columns [begin, end) of a linear.
  Weight ColumnsOf(TensorId id, const StoredLinear& stored, const Range& columns) {
    if (!status_.ok()) return {};
    return Linear(id, Keep(options_.sizes_only ? stored.SizesOfColumns(columns.begin, columns.end)
                                               : stored.Columns(columns.begin, columns.end, copies_)));
  }

  TensorView ExpertIds(const io::StoredTensor* tensor) {
    if (!status_.ok()) return {};
    return Keep(LoadExpertIds(*tensor, config_, copies_));
  }

  LayerWeights Layer(const ResolvedLayer& resolved, const LayerPlan& layer) {
    const auto linear = [&](TensorId id) { return Linear(id, resolved[id].linear); };
    const auto vector = [&](TensorId id) { return Vector(id, resolved[id].tensor, layer); };
    LayerWeights out;
    out.attn_norm = vector(TensorId::kAttnNorm);
    out.ffn_norm = vector(TensorId::kFfnNorm);
    out.hc_attn = {vector(TensorId::kHcAttnFn), vector(TensorId::kHcAttnBase),
                   vector(TensorId::kHcAttnScale)};
    out.hc_ffn = {vector(TensorId::kHcFfnFn), vector(TensorId::kHcFfnBase), vector(TensorId::kHcFfnScale)};

    out.wq_a = linear(TensorId::kWqA);
    out.q_norm = vector(TensorId::kQNorm);
    const Range groups = PartOf(config_.o_groups, 1, part(), num_parts());
    const int64_t group_heads = config_.num_attention_heads / config_.o_groups;
    const auto group_rows = [&](TensorId id, int64_t rows_of_group) {
      return LinearRows(id, resolved[id].linear, {groups.begin * rows_of_group, groups.end * rows_of_group});
    };
    out.wq_b = group_rows(TensorId::kWqB, group_heads * config_.head_dim);
    out.wkv = linear(TensorId::kWkv);
    out.kv_norm = vector(TensorId::kKvNorm);
    out.attn_sink = vector(TensorId::kAttnSink);
    if (status_.ok()) {
      out.attn_sink = out.attn_sink.Rows(groups.begin * group_heads, groups.end * group_heads);
    }
    out.wo_a = group_rows(TensorId::kWoA, config_.o_lora_rank);
    if (num_parts() > 1) {
      out.splits.o_lora = SplitColumns(config_.o_groups, 1, num_parts(), config_.o_lora_rank);
      out.splits.heads = SplitColumns(config_.o_groups, 1, num_parts(), group_heads * config_.head_dim);
    }
    const StoredLinear& wo_b = resolved[TensorId::kWoB].linear;
    if (by_columns() && config_.o_lora_rank % ColumnUnit(TensorId::kWoB, wo_b) == 0) {
      out.wo_b = LinearColumns(TensorId::kWoB, wo_b,
                               {groups.begin * config_.o_lora_rank, groups.end * config_.o_lora_rank});
    } else {
      out.wo_b = LinearPart(TensorId::kWoB, wo_b, part(), num_parts(), &out.splits.attn_out);
    }
    if (layer.makes_entries()) {
      out.compressor = CompressorWeights{.wkv = linear(TensorId::kCompressorWkv),
                                         .wgate = {},
                                         .ape = {},
                                         .norm = vector(TensorId::kCompressorNorm)};
      if (layer.pooling != Pooling::kSingle) out.compressor->wgate = linear(TensorId::kCompressorWgate);
      if (layer.pooling == Pooling::kBiased) out.compressor->ape = vector(TensorId::kCompressorApe);
    }
    if (layer.selects()) {
      out.indexer = IndexerWeights{linear(TensorId::kIndexerWqB), linear(TensorId::kIndexerWeightsProj)};
    }
    if (layer.has_engram()) {
      out.engram = EngramWeights{.table = WeightOf(resolved[TensorId::kEngramTable].linear),
                                 .wkv = linear(TensorId::kEngramWkv),
                                 .q_weight = vector(TensorId::kEngramQ),
                                 .k_weight = vector(TensorId::kEngramK)};
    }
    if (layer.makes_keys() && layer.key_source == KeySource::kLatents) {
      out.key_latents = KeyWeights{linear(TensorId::kIndexerWk), vector(TensorId::kIndexerKNorm)};
    } else if (layer.makes_keys()) {
      out.key_compressor = CompressorWeights{
          linear(TensorId::kIndexerCompressorWkv), linear(TensorId::kIndexerCompressorWgate),
          vector(TensorId::kIndexerCompressorApe), vector(TensorId::kIndexerCompressorNorm)};
    }

    out.gate = linear(TensorId::kGate);
    if (layer.router == RouterKind::kTokenIds)
      out.tid2eid = ExpertIds(resolved[TensorId::kGateTid2Eid].tensor);
    else
      out.gate_bias = vector(TensorId::kGateBias);
    LoadSharedExpert(resolved, out);
    if (by_columns()) {
      LoadExpertColumns(resolved.experts, out.experts);
    } else {
      const auto num_experts = static_cast<int64_t>(resolved.experts.size());
      const Range mine = ExpertsOf(place_, num_experts);
      if (place_.num_shards() > 1) out.splits.experts = SplitColumns(num_experts, 1, place_.num_shards());
      out.experts.reserve(static_cast<size_t>(mine.size()));
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const ResolvedExpert& expert = resolved.experts[static_cast<size_t>(i)];
        out.experts.push_back({Linear(TensorId::kExpertW1, expert.w1), Linear(TensorId::kExpertW2, expert.w2),
                               Linear(TensorId::kExpertW3, expert.w3)});
      }
    }
    return out;
  }

 private:
  // Part of a layer, its routed experts apart.
  int part() const { return place_.layer_part(); }
  int num_parts() const { return place_.placement.layer_parts(); }

  // Rows that stay together when a linear is divided: whole blocks of scales, and enough for a kernel's tile.
  static int64_t RowUnit(const StoredLinear& stored) {
    constexpr int64_t kTile = 16;
    return std::lcm(stored.row_unit(), kTile);
  }

  // Columns that stay together: whole blocks of scales, and of activations that are rounded together.
  int64_t ColumnUnit(TensorId id, const StoredLinear& stored) const {
    const int64_t group = ActivationGroup(ActivationOf(RowOf(config_, id), stored.format));
    return std::lcm(stored.column_unit(), std::max<int64_t>(1, group));
  }

  // Whether sums may be cut: each shard then has some columns of what gives a layer's outputs.
  bool by_columns() const {
    return place_.placement.experts == ExpertPlacement::kByColumns && place_.num_shards() > 1;
  }

  // Some columns of a linear; no rows at all where it is none.
  Weight LinearColumns(TensorId id, const StoredLinear& stored, const Range& columns) {
    if (!status_.ok() || columns.empty()) return {};
    if (columns == Range{0, stored.cols}) return Linear(id, stored);
    return ColumnsOf(id, stored, columns);
  }

  void LoadSharedExpert(const ResolvedLayer& resolved, LayerWeights& out) {
    const StoredLinear& w1 = resolved[TensorId::kSharedW1].linear;
    const StoredLinear& w2 = resolved[TensorId::kSharedW2].linear;
    const StoredLinear& w3 = resolved[TensorId::kSharedW3].linear;
    int64_t unit = std::lcm(RowUnit(w1), RowUnit(w3));
    if (by_columns()) unit = std::lcm(unit, ColumnUnit(TensorId::kSharedW2, w2));
    const Range hidden = PartOf(config_.moe_intermediate_size, unit, part(), num_parts());
    out.shared_expert.w1 = LinearRows(TensorId::kSharedW1, w1, hidden);
    out.shared_expert.w3 = LinearRows(TensorId::kSharedW3, w3, hidden);
    out.shared_expert.w2 =
        by_columns() ? LinearColumns(TensorId::kSharedW2, w2, hidden)
                     : LinearPart(TensorId::kSharedW2, w2, part(), num_parts(), &out.splits.shared_out);
    if (num_parts() > 1) {
      out.splits.shared_hidden = SplitColumns(config_.moe_intermediate_size, unit, num_parts());
    }
  }

  // This shard's part of every expert; none at all where the parts are fewer than the shards.
  void LoadExpertColumns(const std::vector<ResolvedExpert>& resolved, std::vector<ExpertWeights>& out) {
    int64_t unit = 1;
    for (const ResolvedExpert& expert : resolved) {
      unit = std::lcm(unit, std::lcm(RowUnit(expert.w1), RowUnit(expert.w3)));
      unit = std::lcm(unit, ColumnUnit(TensorId::kExpertW2, expert.w2));
    }
    const Range hidden = PartOf(config_.moe_intermediate_size, unit, place_.shard(), place_.num_shards());
    if (hidden.empty()) return;
    out.reserve(resolved.size());
    for (const ResolvedExpert& expert : resolved) {
      if (!status_.ok()) return;
      out.push_back({LinearRows(TensorId::kExpertW1, expert.w1, hidden),
                     LinearColumns(TensorId::kExpertW2, expert.w2, hidden),
                     LinearRows(TensorId::kExpertW3, expert.w3, hidden)});
    }
  }

  // Release numerics round activations in front of the formats the release multiplies in FP8. NVFP4 takes
  // them as they are: its checkpoints were made from the release afterwards (decisions.md 5).
  ActivationQuant ActivationOf(const TensorRow& row, WeightFormat format) const {
    const bool fp8_operand = format == WeightFormat::kFp8Block || format == WeightFormat::kMxFp4;
    if (options_.numerics != Numerics::kRelease || !row.quantised_activations || !fp8_operand)
      return ActivationQuant::kNone;
    return config_.activation_block == kActivationBlock ? ActivationQuant::kFp8Block
                                                        : ActivationQuant::kFp8Columns32;
  }

  template <typename T>
  T Keep(Result<T> result) {
    if (!result) {
      status_ = std::move(result.error());
      return T();
    }
    return *std::move(result);
  }

  const ModelConfig& config_;
  const LoadOptions& options_;
  const RankPlace& place_;
  std::vector<Buffer>& copies_;
  ScaleChecks checks_;
  Status status_;
};

void LogFindings(const ModelConfig& config, const ResolvedCheckpoint& resolved, bool loads_drafter) {
  std::string skipped;
  for (const auto& [what, counts] : resolved.skipped) {
    if (loads_drafter && what == "mtp.") continue;
    skipped += fmt::format("{}{} {} ({:.1f} MB)", skipped.empty() ? "" : ", ", counts.num_tensors, what,
                           static_cast<double>(counts.num_bytes) / 1e6);
  }
  if (!skipped.empty()) LogInfo(fmt::format("checkpoint: skipped draft and vision tensors: {}", skipped));
  for (const std::string& disagreement : resolved.disagreements) LogWarning("checkpoint: " + disagreement);
  if (!config.unknown_keys.empty()) LogWarning("checkpoint: " + UnknownKeys(config));
}

// Why no drafter can be loaded, or nothing.
std::string WhyNoDrafter(const ModelConfig& config, int64_t num_layers) {
  if (num_layers < config.num_hidden_layers) return "drafts want all layers of the model";
  return {};
}

// Why the MTP block is not loaded, or nothing.
std::string WhyNoMtp(const ResolvedCheckpoint& resolved, const ModelConfig& config, int64_t num_layers) {
  return resolved.mtp.has_value() ? WhyNoDrafter(config, num_layers) : resolved.no_mtp;
}

// A hyper-connection's head whose sigmoids are 0. Each stream then has exactly the weight that op hc_head
// adds to them. The nearest sigmoid to 1/4 would move the many sums that lie in the middle between two
// numbers.
Result<HyperConnectionWeights> MeanOfStreams(const ModelConfig& config, std::vector<Buffer>& copies) {
  const int64_t hc = config.hc_mult;
  const Shape fn = {hc, config.hc_dim()};
  DSV4_ASSIGN_OR_RETURN(
      Buffer buffer, HostMemory().Allocate(static_cast<size_t>(fn.num_elements() + hc + 1) * sizeof(float)));
  auto* const numbers = static_cast<float*>(buffer.data());
  std::fill_n(numbers, fn.num_elements() + hc + 1, 0.0F);
  float* const base = numbers + fn.num_elements();
  constexpr float kSigmoidOfNothing = -200.0F;
  std::fill_n(base, hc, kSigmoidOfNothing);
  copies.push_back(std::move(buffer));
  return HyperConnectionWeights{.fn = TensorView::Contiguous(numbers, DType::kF32, fn),
                                .base = TensorView::Contiguous(base, DType::kF32, {hc}),
                                .scale = TensorView::Contiguous(base + hc, DType::kF32, {1})};
}

Status Place(const LoadOptions& options, ModelWeights& weights, LoadTimes& times) {
  const AddsSeconds seconds(times.placing);
  return options.loaded ? options.loaded(weights) : Status();
}

// The model's head may have gone to a device by now.
Status LoadHeadOfDrafts(const StoredLinear& head, const io::Checkpoint& checkpoint,
                        const LoadOptions& options, Loader& loader, ModelWeights& weights, LoadTimes& times) {
  if (options.draft_head == DraftHead::kStored) return {};
  Numbers numbers(checkpoint, options, times);
  numbers.Add(head);
  numbers.Fetch();
  weights.draft_head = loader.HeadOfDrafts(head, weights.head_split);
  return loader.Check().WithContext(checkpoint.directory());
}

// The DSpark drafter, behind the layers.
Status LoadDspark(const DsparkSource& source, const StoredLinear& head, const io::Checkpoint& trunk,
                  const ModelConfig& config, const LoadOptions& options, Loader& loader,
                  ModelWeights& weights, LoadTimes& times) {
  const std::vector<ResolvedLayer>& stages = source.resolved.stages;
  DsparkWeights& dspark = weights.dspark.emplace();
  dspark.config = source.config;
  dspark.checkpoint = source.checkpoint;
  DSV4_ASSIGN_OR_RETURN_STATUS(dspark.tap, MeanOfStreams(config, weights.copies));
  if (!weights.place.first_stage()) return Place(options, weights, times);
  for (const ResolvedLayer& resolved : stages) {
    Numbers numbers(*source.checkpoint, options, times);
    numbers.Add(resolved, weights.place);
    numbers.Fetch();
    const auto linear = [&](TensorId id) { return loader.Linear(id, resolved[id].linear); };
    const LayerPlan plan = DsparkStagePlan(source.config, -1, 0);
    const auto vector = [&](TensorId id) { return loader.Vector(id, resolved[id].tensor, plan); };
    if (&resolved == &stages.front()) {
      dspark.main_proj = linear(TensorId::kDsparkMainProj);
      dspark.main_norm = vector(TensorId::kDsparkMainNorm);
    }
    if (&resolved == &stages.back()) {
      dspark.norm = vector(TensorId::kNorm);
      if (HasRow(config, TensorId::kHcHeadFn)) {
        dspark.hc_head = {vector(TensorId::kHcHeadFn), vector(TensorId::kHcHeadBase),
                          vector(TensorId::kHcHeadScale)};
      }
    }
    if (&resolved == &stages.back() && weights.place.rank == 0) {
      dspark.markov_w1 = linear(TensorId::kDsparkMarkovW1);
      dspark.markov_w2 = linear(TensorId::kDsparkMarkovW2);
      const StoredLinear& proj = resolved[TensorId::kDsparkConfidence].linear;
      const int64_t width = config.hidden_size;
      dspark.confidence_hidden = loader.ColumnsOf(TensorId::kDsparkConfidence, proj, {0, width});
      dspark.confidence_markov = loader.ColumnsOf(TensorId::kDsparkConfidence, proj, {width, proj.cols});
    }
    dspark.stages.push_back(loader.Layer(resolved, plan));
    DSV4_RETURN_IF_ERROR(loader.Check().WithContext(source.checkpoint->directory()));
  }
  DSV4_RETURN_IF_ERROR(LoadHeadOfDrafts(head, trunk, options, loader, weights, times));
  return Place(options, weights, times);
}

// The MTP block, behind the layers.
Status LoadMtp(const ResolvedLayer& resolved, const StoredLinear& head, const io::Checkpoint& checkpoint,
               const LoadOptions& options, Loader& loader, ModelWeights& weights, LoadTimes& times) {
  MtpWeights& mtp = weights.mtp.emplace();
  if (!weights.place.first_stage()) return {};
  Numbers numbers(checkpoint, options, times);
  numbers.Add(resolved, weights.place);
  numbers.Fetch();
  const auto vector = [&](TensorId id) { return loader.Vector(id, resolved[id].tensor, LayerPlan()); };
  mtp.e_proj = loader.Linear(TensorId::kMtpEProj, resolved[TensorId::kMtpEProj].linear);
  mtp.h_proj = loader.Linear(TensorId::kMtpHProj, resolved[TensorId::kMtpHProj].linear);
  mtp.enorm = vector(TensorId::kMtpENorm);
  mtp.hnorm = vector(TensorId::kMtpHNorm);
  mtp.norm = vector(TensorId::kNorm);
  mtp.hc_head = {vector(TensorId::kHcHeadFn), vector(TensorId::kHcHeadBase), vector(TensorId::kHcHeadScale)};
  mtp.layer = loader.Layer(resolved, LayerPlan());
  DSV4_RETURN_IF_ERROR(loader.Check().WithContext(checkpoint.directory()));
  DSV4_RETURN_IF_ERROR(LoadHeadOfDrafts(head, checkpoint, options, loader, weights, times));
  return Place(options, weights, times);
}

Result<RankPlace> PlaceRank(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                            const LoadOptions& options, int64_t num_layers) {
  const Placement& placement = options.placement;
  if (options.rank < 0 || options.rank >= placement.num_ranks()) {
    return Error(InvalidArgument(fmt::format("placement {}: got rank {}, want less than {}",
                                             ToString(placement), options.rank, placement.num_ranks())));
  }
  DSV4_TRY(CheckPlacement(config, placement, num_layers));
  RankPlace place{.placement = placement, .rank = options.rank};
  place.stage_layers = StageLayers(resolved, config, num_layers, placement.num_stages);
  place.layers = place.stage_layers[static_cast<size_t>(place.stage())];
  DSV4_CHECK(config.num_hidden_layers >= place.layers.end) << place.layers.end;
  return place;
}

// All but the layers.
Status LoadOutside(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                   const io::Checkpoint& checkpoint, const LoadOptions& options, Loader& loader,
                   ModelWeights& weights, LoadTimes& times) {
  const bool first_stage = weights.place.first_stage();
  Numbers numbers(checkpoint, options, times);
  for (const TensorId id : {TensorId::kNorm, TensorId::kEmbed, TensorId::kHead, TensorId::kHcHeadFn,
                            TensorId::kHcHeadBase, TensorId::kHcHeadScale}) {
    if (first_stage || id == TensorId::kNorm) numbers.Add(resolved[id]);
  }
  numbers.Fetch();
  const auto vector = [&](TensorId id) { return loader.Vector(id, resolved[id].tensor, LayerPlan()); };
  weights.norm = vector(TensorId::kNorm);
  if (first_stage) {
    weights.embed = loader.Linear(TensorId::kEmbed, resolved[TensorId::kEmbed].linear);
    const TensorId head = resolved.head_is_tied ? TensorId::kEmbed : TensorId::kHead;
    weights.head = loader.LinearPart(head, resolved[head].linear, weights.place.shard(),
                                     weights.place.num_shards(), &weights.head_split);
    if (HasRow(config, TensorId::kHcHeadFn)) {
      weights.hc_head = {vector(TensorId::kHcHeadFn), vector(TensorId::kHcHeadBase),
                         vector(TensorId::kHcHeadScale)};
    }
  }
  DSV4_RETURN_IF_ERROR(loader.Check().WithContext(checkpoint.directory()));
  return Place(options, weights, times);
}

}  // namespace

Result<ModelWeights> LoadWeights(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelConfig& config,
                                 const LoadOptions& options) {
  const int64_t num_layers = options.max_layers.value_or(config.num_hidden_layers);
  if (num_layers < 1 || num_layers > config.num_hidden_layers) {
    return Error(InvalidArgument(fmt::format("max_layers: {}, wanted 1 to num_hidden_layers {}", num_layers,
                                             config.num_hidden_layers)));
  }
  DSV4_ASSIGN_OR_RETURN(const ResolvedCheckpoint resolved, ResolveCheckpoint(*checkpoint, config));
  LoadTimes times;
  const Stopwatch stopwatch;
  ModelWeights weights;
  std::optional<DsparkSource> dspark;
  if (options.dspark) {
    weights.no_dspark = WhyNoDrafter(config, num_layers);
    if (Result<DsparkSource> source = FindDspark(checkpoint, config); !source) {
      weights.no_dspark = source.error().message();
    } else if (weights.no_dspark.empty()) {
      dspark = *std::move(source);
    }
  }
  if (options.mtp) weights.no_mtp = WhyNoMtp(resolved, config, num_layers);
  // One drafter is enough. A checkpoint's own files have one or the other; a folder beside them is there for
  // its drafter's sake.
  const bool loads_mtp = options.mtp && weights.no_mtp.empty() && !dspark.has_value();
  LogFindings(config, resolved, loads_mtp || (dspark.has_value() && dspark->checkpoint == checkpoint));
  DSV4_ASSIGN_OR_RETURN(weights.place, PlaceRank(resolved, config, options, num_layers));
  const RankPlace& place = weights.place;
  Loader loader(config, options, place, weights.copies);
  io::ReadAhead read_ahead;
  const auto read_layer_ahead = [&](int64_t i) {
    const bool reads = options.numbers_pass || options.experts_from_disk;
    if (!reads || options.sizes_only || i >= place.layers.end) return;
    Numbers numbers(*checkpoint, options, times);
    numbers.Add(resolved.layers[static_cast<size_t>(i)], place, /*experts_stay=*/options.experts_from_disk);
    read_ahead.Add(numbers.ranges());
  };
  read_layer_ahead(place.layers.begin);
  DSV4_TRY(LoadOutside(resolved, config, *checkpoint, options, loader, weights, times));
  for (int64_t i = place.layers.begin; i < place.layers.end; ++i) {
    const auto index = static_cast<size_t>(i);
    Numbers numbers(*checkpoint, options, times);
    numbers.Add(resolved.layers[index], place);
    numbers.Fetch();
    read_layer_ahead(i + 1);
    weights.layers.push_back(loader.Layer(resolved.layers[index], config.layers[index]));
    DSV4_TRY(loader.Check().WithContext(checkpoint->directory()));
    DSV4_TRY(Place(options, weights, times));
    if (options.progress) {
      DSV4_TRY(options.progress({.layers = i + 1 - place.layers.begin,
                                 .num_layers = place.layers.size(),
                                 .bytes_placed = weights.bytes_placed}));
    }
  }
  const StoredLinear& head = resolved[resolved.head_is_tied ? TensorId::kEmbed : TensorId::kHead].linear;
  if (loads_mtp) DSV4_TRY(LoadMtp(*resolved.mtp, head, *checkpoint, options, loader, weights, times));
  if (dspark.has_value())
    DSV4_TRY(LoadDspark(*dspark, head, *checkpoint, config, options, loader, weights, times));
  weights.checkpoint = std::move(checkpoint);
  if (!options.sizes_only) {
    const double all = stopwatch.seconds();
    LogInfo(fmt::format(
        "load: {:.2f} s: {:.2f} s making numbers, {:.2f} s headers and checks, {:.2f} s weights to "
        "their places",
        all, times.numbers, all - times.numbers - times.placing, times.placing));
  }
  return weights;
}

}  // namespace dsv4::model
