// Check `router`: sizes of all experts' outputs beside the router's logits.
#include "diag/checks/router_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "diag/recording.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kSkippedTokens = 8;  // The first ones are read in a way of their own.
constexpr int64_t kMostTokens = 72;    // Behind them.
constexpr int64_t kMostExperts = 32;   // A layer, evenly spread.
constexpr size_t kFewestLayers = 4;
constexpr double kTypical = 0.3;  // The middle layer's correlation. Small models have 0.42 and 0.62,
constexpr double kLeast = 0.2;    // and at least 0.34; next to a layer that is broken, 0.27.
constexpr double kBroken = 0.15;  // Chance gives 0.1.

struct LayerView {
  int layer = -1;
  double correlation = 0;
};

// Numbers [rows, columns] about the means of their rows and columns.
void Centre(std::vector<double>& values, size_t columns) {
  const size_t rows = values.size() / columns;
  std::vector<double> of_rows(rows);
  std::vector<double> of_columns(columns);
  double all = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    of_rows[i / columns] += values[i] / static_cast<double>(columns);
    of_columns[i % columns] += values[i] / static_cast<double>(rows);
    all += values[i] / static_cast<double>(values.size());
  }
  for (size_t i = 0; i < values.size(); ++i)
    values[i] += all - of_rows[i / columns] - of_columns[i % columns];
}

class Watcher {
 public:
  explicit Watcher(const Subject& subject) : subject_(subject) {}

  OpHooks Hooks() {
    OpHooks hooks;
    hooks.router = [this](const auto& inner, const ops::RouterArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(inner(args));
      logits_.clear();
      layer_ = num_calls_++;  // Once a layer.
      if (layer_ >= subject_.model.num_layers() || !args.hash_table.is_null()) return {};
      DSV4_ASSIGN_OR_RETURN_STATUS(logits_, ToHostFloats(subject_.context(), args.logits));
      return {};
    };
    hooks.routed_experts = [this](const auto& inner, const ops::RoutedExpertsArgs& args) -> Status {
      DSV4_RETURN_IF_ERROR(inner(args));
      return logits_.empty() ? Status() : Watch(inner, args);
    };
    return hooks;
  }

  const std::vector<LayerView>& layers() const { return layers_; }

 private:
  Status Watch(const InnerOp<ops::RoutedExpertsArgs>& inner, const ops::RoutedExpertsArgs& args) {
    ops::OpContext& context = subject_.context();
    Memory& memory = context.memory();
    const auto num_experts = std::ssize(args.experts);
    const TensorView x = args.x.Rows(kSkippedTokens, args.x.shape[0]);
    const int64_t num_tokens = x.shape[0];
    const int64_t dim = x.shape[1];
    const auto make = [&](DType dtype, int64_t columns, Buffer& owner) -> Result<TensorView> {
      DSV4_ASSIGN_OR_RETURN(owner,
                            memory.Allocate(static_cast<size_t>(num_tokens * columns * ElementBytes(dtype))));
      return TensorView::Contiguous(owner.data(), dtype, {num_tokens, columns}, x.device);
    };
    Buffer owners[3];
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView indices, make(DType::kI32, 1, owners[0]));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView weights, make(DType::kF32, 1, owners[1]));
    DSV4_ASSIGN_OR_RETURN_STATUS(const TensorView y, make(DType::kF32, dim, owners[2]));
    const std::vector<float> ones(static_cast<size_t>(num_tokens), 1.0F);
    DSV4_RETURN_IF_ERROR(FromHostFloats(context, ones, weights));
    const int64_t count = std::min(kMostExperts, num_experts);
    std::vector<double> sizes(static_cast<size_t>(num_tokens * count));
    std::vector<double> scores(sizes.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t expert = i * num_experts / count;
      const std::vector<float> chosen(static_cast<size_t>(num_tokens), static_cast<float>(expert));
      DSV4_RETURN_IF_ERROR(FromHostFloats(context, chosen, indices));
      DSV4_RETURN_IF_ERROR(inner({.x = x,
                                  .indices = indices,
                                  .weights = weights,
                                  .experts = args.experts,
                                  .limit = args.limit,
                                  .y = y}));
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<float> output, ToHostFloats(context, y));
      for (int64_t t = 0; t < num_tokens; ++t) {
        const std::span<const float> row(output.data() + t * dim, static_cast<size_t>(dim));
        const auto place = static_cast<size_t>(t * count + i);
        sizes[place] = std::log(Rms(row) + 1e-12);
        scores[place] = logits_[static_cast<size_t>((kSkippedTokens + t) * num_experts + expert)];
      }
    }
    // Sizes, or scores, that are the same everywhere leave rounding errors.
    constexpr double kLeastLengths = 1e-9;
    Centre(sizes, static_cast<size_t>(count));
    Centre(scores, static_cast<size_t>(count));
    layers_.push_back({static_cast<int>(layer_), Correlation(sizes, scores, kLeastLengths)});
    return {};
  }

  const Subject& subject_;
  int64_t num_calls_ = 0;
  int64_t layer_ = 0;
  std::vector<float> logits_;  // The layer at hand has these; none where it routes by token.
  std::vector<LayerView> layers_;
};

}  // namespace

double RouterCheckWork(const model::Model& model) {
  const model::ModelConfig& c = model.config();
  return static_cast<double>(3 * kMostTokens * std::min(kMostExperts, c.n_routed_experts) *
                             model.num_layers()) *
         static_cast<double>(c.hidden_size) * static_cast<double>(c.moe_intermediate_size);
}

Result<CheckReport> CheckRouter(const Subject& subject, std::span<const int32_t> tokens) {
  CheckReport report{.check = "router"};
  const int64_t most = std::min(kSkippedTokens + kMostTokens, subject.model.options().max_chunk_tokens);
  const auto some = tokens.first(std::min(tokens.size(), static_cast<size_t>(most)));
  if (std::ssize(some) <= 2 * kSkippedTokens) {
    return NotApplicable(std::move(report), fmt::format("a pass of {}, wanted more than {}",
                                                        Counted(some.size(), "token"), 2 * kSkippedTokens));
  }
  Watcher watcher(subject);
  {
    const HookedBackend::Scope scope(subject.backend, watcher.Hooks());
    const Result<std::vector<float>> run = RunTokens(subject, some, {}, model::LogitsRows::kAll);
    if (!run) return Error(run.error());
  }
  const std::vector<LayerView>& layers = watcher.layers();
  if (layers.size() < kFewestLayers)
    return NotApplicable(std::move(report),
                         fmt::format("{} by score, wanted {} or more",
                                     Counted(layers.size(), "layer routes", "layers route"), kFewestLayers));
  Table table{.title = "router's logits and sizes of the experts' outputs",
              .columns = {"layer", "correlation"}};
  std::vector<double> all;
  std::vector<LayerView> broken;
  double least = 1;
  for (const LayerView& view : layers) {
    table.rows.push_back({std::to_string(view.layer), fmt::format("{:.2f}", view.correlation)});
    all.push_back(view.correlation);
    if (view.correlation < kBroken) {
      broken.push_back(view);
    } else {
      least = std::min(least, view.correlation);
    }
  }
  report.tables.push_back(std::move(table));
  const double typical = Median(std::move(all));
  report.evidence = {
      fmt::format("{}; correlation about the means of token and expert: {:.2f} in the middle layer, "
                  "by chance 0.1 and less",
                  Counted(some.size(), "token"), typical)};
  if (typical < kTypical || (!broken.empty() && least < kLeast) ||
      broken.size() > std::max<size_t>(2, layers.size() / 8)) {
    return NotApplicable(
        std::move(report),
        fmt::format("routers do not go along with their experts in several layers ({:.2f} in the "
                    "middle one), so none stands out",
                    typical));
  }
  if (broken.empty()) {
    report.headline = fmt::format(
        "every router prefers the experts that answer, by a correlation of {:.2f} and more", least);
    report.rules_out = {"experts in another order, and routers or experts of another layer"};
    report.next_step = "weights within one expert are another question: dsv4 diagnose checkpoint";
    return report;
  }
  std::vector<std::string> complaints;
  for (const LayerView& view : broken) {
    complaints.push_back(fmt::format(
        "layer {}: its router does not prefer the experts that answer (correlation {:.2f}, in other layers "
        "{:.2f} and more): are the experts in another order, or is one of the two of another layer?",
        view.layer, view.correlation, least));
  }
  report.verdict = Verdict::kFinding;
  report.location = Location{broken.front().layer, "ffn.router.logits", "", 0};
  report.headline = complaints.size() == 1
                        ? complaints[0]
                        : fmt::format("{}; and {} more", complaints[0], complaints.size() - 1);
  report.evidence.insert(report.evidence.end(), complaints.begin(), complaints.end());
  report.next_step = "compare ffn.gate and the order of ffn.experts of that layer with the source file";
  return report;
}

}  // namespace dsv4::diag
