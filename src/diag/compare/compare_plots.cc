// Plots of a comparison: error of every tensor, error by layer, other choices, and divergence of the logits.
#include "diag/compare/compare_plots.h"

#include <fmt/format.h>

#include <algorithm>

#include "diag/report/logit_plots.h"

namespace dsv4::diag {
namespace {

double Share(const Compared& compared) {
  return compared.num_rows == 0
             ? 0
             : static_cast<double>(compared.num_flipped) / static_cast<double>(compared.num_rows);
}

// Every tensor in the order of the graph. Bounds differ by tensor, so the picture shows errors as parts of
// their bound.
Plot EveryTensor(const std::vector<Compared>& compared, bool shared_inputs) {
  Plot plot{
      .title = "Error of every tensor, as a part of its bound",
      .reading =
          shared_inputs
              ? "In the order of the graph; each op had the other run's inputs, so each point is an op's own "
                "error. "
                "What lies above the line computes something else."
              : "In the order of the graph; errors add up. The first point above the line is where to look.",
      .x_label = "layer",
      .y_label = "relative error / bound",
      .log_y = true,
      .wide = true};
  plot.bound = 1;
  plot.bound_name = "the bound";
  Series errors{.name = "tensors", .style = SeriesStyle::kPoints, .color = 0};
  int layer = -2;
  for (const Compared& tensor : compared) {
    if (tensor.choice) continue;
    const auto x = static_cast<double>(errors.x.size());
    if (tensor.layer != layer) {
      layer = tensor.layer;
      plot.x_names.push_back({x, layer >= 0 ? std::to_string(layer) : x == 0 ? "in" : "out"});
    }
    const double error = shared_inputs ? tensor.worst_error : tensor.error();
    // A bound of 0 wants equal bits.
    const double part = error == 0 ? 0 : error / tensor.bound;
    errors.Add(x, part,
               fmt::format("{}{} ({}), error {:.3g}, bound {:.3g}",
                           tensor.layer < 0 ? "" : fmt::format("layer {}, ", tensor.layer), tensor.name,
                           tensor.ops.empty() ? "input" : tensor.ops, error, tensor.bound));
  }
  plot.series.push_back(std::move(errors));
  return plot;
}

// Tensors that leave a layer, and the model.
Plot ByLayer(const std::vector<Compared>& compared) {
  Plot plot{
      .title = "Error behind each layer",
      .reading = "How the error grows: a straight climb is rounding adding up, a step is a place to look at.",
      .x_label = "layers passed (half: behind attention)",
      .y_label = "relative error",
      .log_y = true};
  Series all{.name = "all rows", .style = SeriesStyle::kLine, .color = 0};
  Series worst{.name = "worst row", .style = SeriesStyle::kDashedLine, .color = 1, .judged = false};
  for (const Compared& tensor : compared) {
    if (!tensor.name.ends_with("streams") || tensor.layer < 0) continue;
    const double x = tensor.layer + (tensor.name == "attn.streams" ? 0.5 : 1.0);
    all.Add(x, tensor.error());
    worst.Add(x, tensor.worst_error);
    plot.bound = tensor.bound;
    plot.bound_name = fmt::format("bound {:g} on all rows", tensor.bound);
  }
  plot.series = {std::move(all), std::move(worst)};
  return plot;
}

// Without series when all rows chose alike.
Plot Choices(const std::vector<Compared>& compared) {
  Plot plot{
      .title = "Rows that chose otherwise",
      .reading =
          "Experts and compressed entries are choices: rounding flips near-ties, a wrong input flips many.",
      .x_label = "layer",
      .y_label = "share of rows"};
  Series experts{.name = "experts", .style = SeriesStyle::kBars, .color = 0};
  Series entries{.name = "entries", .style = SeriesStyle::kBars, .color = 1};
  for (const Compared& tensor : compared) {
    if (!tensor.choice || tensor.layer < 0) continue;
    (tensor.name == "ffn.router.indices" ? experts : entries).Add(tensor.layer, Share(tensor));
  }
  const auto flipped = [](const Compared& tensor) { return tensor.choice && tensor.num_flipped > 0; };
  if (std::none_of(compared.begin(), compared.end(), flipped)) return plot;
  for (Series* series : {&experts, &entries}) {
    if (!series->x.empty()) plot.series.push_back(std::move(*series));
  }
  return plot;
}

Plot Divergence(const LogitsAgreement& logits) {
  Plot plot{
      .title = "KL of the logits, by position",
      .reading = "KL(other || ours) in nats; where it jumps, the runs begin to disagree about the text.",
      .x_label = "position",
      .y_label = "KL, nats",
      .log_y = true};
  Series series{.name = "KL", .style = SeriesStyle::kLine, .color = 0};
  for (size_t i = 0; i < logits.kl.size(); ++i) series.Add(static_cast<double>(i), logits.kl[i]);
  plot.series.push_back(std::move(series));
  return plot;
}

}  // namespace

std::vector<Plot> ComparePlots(const std::vector<Compared>& compared, const LogitsAgreement& logits,
                               bool shared_inputs) {
  std::vector<Plot> plots = {EveryTensor(compared, shared_inputs)};
  if (Plot choices = Choices(compared); !choices.series.empty()) plots.push_back(std::move(choices));
  if (shared_inputs) return plots;
  if (Plot layers = ByLayer(compared); !layers.series[0].x.empty()) plots.push_back(std::move(layers));
  if (!logits.kl.empty()) {
    plots.push_back(Divergence(logits));
    plots.push_back(MarginPlot({.margin = logits.margin, .top1 = {}, .top5 = {}},
                               {{"ours against the other", logits.change}}));
  }
  return plots;
}

}  // namespace dsv4::diag
