// Arithmetic of every placement of N ranks: weights, state, exchanges and time a token, and the planner's
// choice.
#include "model/planning/forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/text.h"
#include "model/checkpoint/stages.h"
#include "model/config/cache_geometry.h"

namespace dsv4::model {
namespace {

// The part of `count` units that the first shard, which has most, gets.
double FirstShare(int64_t count, int64_t unit, int num_shards) {
  if (count == 0) return 1;
  return static_cast<double>(PartOf(count, unit, 0, num_shards).size()) / static_cast<double>(count);
}

// Rows that stay together when a linear is divided (weights.cc).
int64_t RowUnit(const StoredLinear& linear) { return std::lcm(linear.row_unit(), int64_t{16}); }

double RowShare(const StoredLinear& linear, int num_shards) {
  return FirstShare(linear.rows, RowUnit(linear), num_shards);
}

// Share of the shared expert's width, where w2 is divided by columns.
double HiddenShare(const ResolvedLayer& layer, int num_shards) {
  const StoredLinear& w1 = layer[TensorId::kSharedW1].linear;
  const StoredLinear& w2 = layer[TensorId::kSharedW2].linear;
  int64_t unit = std::lcm(RowUnit(w1), w2.column_unit());
  if (w2.format == WeightFormat::kFp8Block || w2.format == WeightFormat::kMxFp4)
    unit = std::lcm(unit, kActivationBlock);
  return FirstShare(w1.rows, unit, num_shards);
}

// Share that the first shard has of a layer's tensor, experts apart.
double ShareOf(TensorId id, const ResolvedLayer& layer, const ModelConfig& config,
               const Placement& placement) {
  const int num_shards = placement.layer_parts();
  const bool by_columns = placement.experts == ExpertPlacement::kByColumns;
  switch (id) {
    case TensorId::kWqB:
    case TensorId::kWoA:
    case TensorId::kAttnSink:
      return FirstShare(config.o_groups, 1, num_shards);
    case TensorId::kWoB:
      return by_columns ? FirstShare(config.o_groups, 1, num_shards) : RowShare(layer[id].linear, num_shards);
    case TensorId::kSharedW1:
    case TensorId::kSharedW2:
    case TensorId::kSharedW3:
      return by_columns ? HiddenShare(layer, num_shards) : RowShare(layer[id].linear, num_shards);
    default:
      return 1;
  }
}

int64_t StoredBytes(const ResolvedTensor& tensor) {
  if (tensor.tensor != nullptr) return static_cast<int64_t>(tensor.tensor->bytes.size());
  return tensor.linear.num_bytes();
}

// The expected largest count when `balls` fall evenly and independently into `bins`.
double ExpectedMost(int64_t balls, int bins) {
  // below[b]: ways, divided by b!, to put b balls into the bins so far with at most `most` in each.
  double expected = 0;
  for (int64_t most = 0; most < balls; ++most) {
    std::vector<double> below(static_cast<size_t>(balls) + 1, 0.0);
    below[0] = 1;
    for (int bin = 0; bin < bins; ++bin) {
      for (int64_t b = balls; b > 0; --b) {
        double factorial = 1;
        for (int64_t k = 1; k <= std::min(most, b); ++k) {
          factorial *= static_cast<double>(k);
          below[static_cast<size_t>(b)] += below[static_cast<size_t>(b - k)] / factorial;
        }
      }
    }
    const double ways = below[static_cast<size_t>(balls)] * std::tgamma(static_cast<double>(balls) + 1);
    expected += 1 - ways / std::pow(bins, balls);  // The chance of more than `most`.
  }
  return expected;
}

struct LayerCost {
  double weights = 0;  // Bytes that a shard keeps,
  double read = 0;     // and those of them that a token reads.
};

LayerCost WeightsOf(const ResolvedLayer& layer, const ModelConfig& config, const Placement& placement) {
  const int shards = placement.num_shards;
  LayerCost cost;
  for (size_t i = 0; i < layer.tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const auto bytes = static_cast<double>(StoredBytes(layer.tensors[i]));
    // Tables of rows stay in their files.
    if (bytes == 0 || layer.tensors[i].is_table || RowOf(config, id).kind == TensorKind::kVision) continue;
    const double mine = bytes * ShareOf(id, layer, config, placement);
    cost.weights += mine;
    if (RowOf(config, id).kind != TensorKind::kExpertIds)
      cost.read += mine;  // Rows of a table of ids: a token reads one.
  }
  double experts = 0;
  for (const ResolvedExpert& expert : layer.experts)
    experts += static_cast<double>(expert.w1.num_bytes() + expert.w2.num_bytes() + expert.w3.num_bytes());
  const double one = experts / static_cast<double>(config.n_routed_experts);
  if (placement.experts == ExpertPlacement::kByColumns && !layer.experts.empty()) {
    const double share = RowShare(layer.experts.front().w1, shards);
    cost.weights += experts * share;
    cost.read += one * share * static_cast<double>(config.num_experts_per_tok);
  } else {
    cost.weights += experts * FirstShare(config.n_routed_experts, 1, shards);
    cost.read += one * ExpectedMost(config.num_experts_per_tok, shards);
  }
  return cost;
}

// `layout`: of the layer's stage.
double StateRead(const LayerPlan& layer, const ModelConfig& config, const kv::CacheLayout& layout,
                 int64_t context) {
  const auto bytes_of = [&](int64_t entries, kv::PageKind kind) {
    return static_cast<double>(layout.shard.NumRows(entries) * layout.PageRowBytes(layer.entries, kind));
  };
  double bytes = static_cast<double>(std::min(config.sliding_window, context + 1) *
                                     layout.RingRowBytes(layer.window, kv::RingKind::kWindow));
  if (!layer.sees_entries()) return bytes;
  const int64_t entries = (context + 1) / layer.ratio;
  if (!layer.reads_selection()) return bytes + bytes_of(entries, kv::PageKind::kEntries);
  bytes += bytes_of(std::min(entries, config.index_topk), kv::PageKind::kEntries);
  if (entries > config.index_topk) bytes += bytes_of(entries, kv::PageKind::kIndexerKeys);
  return bytes;
}

// Collectives of a layer among shards, as attention.cc, indexer.cc, moe.cc and routed.cc call them one after
// another.
int ExchangesOf(const LayerPlan& layer, const Placement& placement) {
  if (placement.num_shards == 1) return 0;
  // Sequences: the tokens and their routing to all, terms to the tokens.
  if (placement.divide_sequences) return 3;
  // Columns: a sum of attention's parts, and one of the experts'. Else attention's two gathers, the shared
  // expert's, and the terms.
  int exchanges = placement.experts == ExpertPlacement::kByColumns ? 2 : 7;
  if (placement.divide_entries && layer.sees_entries()) exchanges += layer.reads_selection() ? 3 : 2;
  return exchanges;
}

std::string Size(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.1f} GB", bytes / 1e9);
}

}  // namespace

double Forecast::Tokens(double memory) const {
  return std::max(0.0, (memory - static_cast<double>(weights + fixed)) / std::max(per_token, 1e-9));
}

Forecast MakeForecast(const ResolvedCheckpoint& resolved, const ModelConfig& config,
                      const Placement& placement, const ForecastRequest& request) {
  constexpr int64_t kPassTokens = 512;
  constexpr int64_t kRewindTokens = 64;
  Forecast forecast{.placement = placement};
  const std::vector<Range> stages = StageLayers(resolved, config, request.num_layers, placement.num_stages);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    double weights = 0;
    if (stage == 0) {
      const StoredLinear& head = resolved[resolved.head_is_tied ? TensorId::kEmbed : TensorId::kHead].linear;
      const double mine = static_cast<double>(head.num_bytes()) * RowShare(head, placement.num_shards);
      const auto embed = static_cast<double>(resolved[TensorId::kEmbed].linear.num_bytes());
      weights = embed + (resolved.head_is_tied ? 0 : mine);
      forecast.read += mine;
      forecast.exchanges += placement.num_shards > 1 ? 1 : 0;
    }
    const std::vector<LayerPlan> layers = PlansOfStage(config.layers, stages[stage]);
    kv::CacheLayout layout =
        CacheGeometry(config, layers, request.numerics, request.cache_rows, kPassTokens, kRewindTokens);
    if (placement.divide_entries) layout.shard = {0, placement.num_shards};
    for (const LayerPlan& layer : layers) {
      const LayerCost cost = WeightsOf(resolved.layers[static_cast<size_t>(layer.number)], config, placement);
      weights += cost.weights;
      forecast.read += cost.read + StateRead(layer, config, layout, request.context);
      forecast.exchanges += ExchangesOf(layer, placement);
    }
    forecast.weights = std::max(forecast.weights, static_cast<int64_t>(weights));
    forecast.fixed = std::max(forecast.fixed, kv::StateBytes(layout, 0));
    // In data-parallel attention a rank has some sequences.
    const double share = placement.divide_sequences ? placement.num_shards : 1;
    forecast.per_token = std::max(forecast.per_token, kv::BytesPerToken(layout) / share);
  }
  // Streams from stage to stage, and the last's rows back to the head.
  if (placement.num_stages > 1) forecast.exchanges += placement.num_stages;
  return forecast;
}

std::vector<Placement> AllPlacements(int num_ranks, std::span<const LayerPlan> layers, bool divides) {
  std::vector<Placement> placements;
  for (int stages = 1; stages <= num_ranks; ++stages) {
    if (num_ranks % stages != 0 || stages > MostStages(layers)) continue;
    const int shards = num_ranks / stages;
    if (shards == 1) {
      placements.push_back({.num_stages = stages, .num_shards = 1});
      continue;
    }
    placements.push_back({stages, shards, ExpertPlacement::kById, false});
    if (divides) placements.push_back({stages, shards, ExpertPlacement::kById, true});
    placements.push_back({stages, shards, ExpertPlacement::kById, false, true});
    placements.push_back({stages, shards, ExpertPlacement::kByColumns, false});
    if (divides) placements.push_back({stages, shards, ExpertPlacement::kByColumns, true});
  }
  return placements;
}

PlacementChoice ChoosePlacement(const std::vector<Forecast>& forecasts, const RankKind& ranks,
                                int64_t context) {
  DSV4_CHECK(!forecasts.empty()) << "no placement to choose from";
  const auto need = [&](const Forecast& forecast) {
    return static_cast<double>(forecast.weights + forecast.fixed) +
           forecast.per_token * static_cast<double>(context);
  };
  const auto seconds = [&](const Forecast& forecast) {
    return forecast.Seconds(ranks.bytes_per_second, ranks.seconds_per_exchange);
  };
  const auto better = [&](const Forecast& a, const Forecast& b) {
    const bool a_fits = need(a) <= ranks.memory;
    const bool b_fits = need(b) <= ranks.memory;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? seconds(a) < seconds(b) : need(a) < need(b);
  };
  const auto best = std::min_element(forecasts.begin(), forecasts.end(), better);
  PlacementChoice choice{.index = static_cast<size_t>(best - forecasts.begin()), .why = {}};
  const auto fits = std::count_if(forecasts.begin(), forecasts.end(),
                                  [&](const Forecast& forecast) { return need(forecast) <= ranks.memory; });
  if (fits == 0) {
    choice.why = fmt::format("none fits: even this one wants {} a rank for weights and {}, of {}",
                             Size(need(*best)), Counted(context, "token"), Size(ranks.memory));
    return choice;
  }
  choice.why = fmt::format(
      "of {} {} fit in {} a rank; a token reads {} one after another and waits {} for "
      "others, {:.2f} ms "
      "here",
      Counted(forecasts.size(), "placement"), fits, Size(ranks.memory), Size(best->read),
      Counted(best->exchanges, "time"), 1e3 * seconds(*best));
  return choice;
}

}  // namespace dsv4::model
