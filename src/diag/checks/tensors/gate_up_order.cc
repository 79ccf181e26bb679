// Statistics that tell gate from up projections by their rows' common direction, for layers and single
// experts.
#include "diag/checks/tensors/gate_up_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kMaxRows = 128;
constexpr int64_t kMinRows = 32;
constexpr size_t kMaxExperts = 16;

// How far chance gets. The worst up matrix has rows along one line. Its z is (chi^2 - 1) / sqrt(2) of one
// degree of freedom, which passes 24 once in 3e8 matrices. Four such matrices together pass 12 once in 1e7
// layers; rows in general position never do.
constexpr double kOneZ = 24;
constexpr double kManyZ = 12;
constexpr int kMany = 4;
// The second measure is a weighted sum of signs: beyond 6 once in 1e8 experts, however the weights lie
// (Hoeffding).
constexpr double kAlignedZ = 6;
constexpr double kNoZ = 3;  // Measure that up rows give by chance.

float Dot(const float* a, const float* b, int64_t count) {
  std::array<float, 16> sums = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[static_cast<size_t>(j)] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const float part : sums) sum += part;
  return sum;
}

double LeastZ(const GateUp& group) { return group.num_weights >= kMany ? kManyZ : kOneZ; }

bool IsSwapped(const GateUp& group) {
  return group.up >= LeastZ(group) && group.gate <= std::max(kNoZ, group.up / 3);
}
bool IsInOrder(const GateUp& group) {
  return group.gate >= LeastZ(group) && group.up <= std::max(kNoZ, group.gate / 3);
}

// Up to kMaxRows rows; none when there are too few or one is not finite.
struct Rows {
  explicit Rows(const Weight& weight) : cols(weight.cols) {
    const int64_t rows = std::min(kMaxRows, weight.rows);
    if (rows < kMinRows) return;
    values.resize(static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i)
      DequantizeRow(weight, i * weight.rows / rows, values.data() + i * cols);
    if (AllFinite(values)) count = rows;
  }
  const float* row(int64_t i) const { return values.data() + i * cols; }

  int64_t cols = 0;
  int64_t count = 0;
  std::vector<float> values;
};

double CommonDirection(const Rows& rows) {
  double products = 0;
  double squares = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      const double product = Dot(rows.row(i), rows.row(j), rows.cols);
      products += product;
      squares += product * product;
    }
  }
  // |sum|^2 - E = 2 * products; its variance over the signs is 4 * squares.
  return squares > 0 && std::isfinite(squares) ? products / std::sqrt(squares) : 0;
}

// The unit vector along the sum of the rows; zeros when they have none.
std::vector<float> Direction(const Rows& rows) {
  std::vector<float> sum(static_cast<size_t>(rows.cols));
  for (int64_t i = 0; i < rows.count; ++i) {
    for (int64_t j = 0; j < rows.cols; ++j) sum[static_cast<size_t>(j)] += rows.row(i)[j];
  }
  const double length = std::sqrt(static_cast<double>(sum.size())) * Rms(sum);
  for (float& value : sum) value = length > 0 ? static_cast<float>(value / length) : 0;
  return sum;
}

double Alignment(const Rows& rows, const std::vector<float>& direction) {
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    const double product = Dot(rows.row(i), direction.data(), rows.cols);
    sum += product;
    squares += product * product;
  }
  return squares > 0 && std::isfinite(squares) ? sum / std::sqrt(squares) : 0;
}

// Which of a layer's experts are looked at.
std::vector<size_t> Chosen(size_t num_experts) {
  std::vector<size_t> chosen(std::min(kMaxExperts, num_experts));
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = i * num_experts / chosen.size();
  return chosen;
}

// Experts whose w3 goes along with the gates of their siblings, and whose w1 does not.
std::vector<GateUp> SwappedAlone(int layer, const std::vector<model::ExpertWeights>& experts) {
  const std::vector<size_t> chosen = Chosen(experts.size());
  std::vector<std::vector<float>> directions;
  for (const size_t e : chosen) directions.push_back(Direction(Rows(experts[e].w1)));
  std::vector<GateUp> measured;
  std::vector<double> gates;
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::vector<float> siblings(directions[i].size());
    for (size_t other = 0; other < directions.size(); ++other) {
      for (size_t j = 0; other != i && j < siblings.size(); ++j) siblings[j] += directions[other][j];
    }
    const model::ExpertWeights& expert = experts[chosen[i]];
    measured.push_back({.layer = layer,
                        .expert = static_cast<int>(chosen[i]),
                        .gate = Alignment(Rows(expert.w1), siblings),
                        .up = Alignment(Rows(expert.w3), siblings)});
    gates.push_back(measured.back().gate);
  }
  if (Median(std::move(gates)) < kAlignedZ) return {};
  std::erase_if(measured, [](const GateUp& one) { return one.up < kAlignedZ || std::abs(one.gate) > kNoZ; });
  return measured;
}

}  // namespace

double CommonDirection(const Weight& weight) { return CommonDirection(Rows(weight)); }

GateUpOrder LookAtGateUpOrder(const std::vector<model::LayerWeights>& layers) {
  GateUpOrder order;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<int>(i);
    const std::vector<model::ExpertWeights>& experts = layers[i].experts;
    const std::vector<size_t> chosen = Chosen(experts.size());
    GateUp routed{.layer = layer, .num_weights = static_cast<int>(chosen.size())};
    for (const size_t e : chosen) {
      routed.gate += CommonDirection(experts[e].w1) / std::sqrt(static_cast<double>(chosen.size()));
      routed.up += CommonDirection(experts[e].w3) / std::sqrt(static_cast<double>(chosen.size()));
    }
    const GateUp shared{.layer = layer,
                        .shared = true,
                        .gate = CommonDirection(layers[i].shared_expert.w1),
                        .up = CommonDirection(layers[i].shared_expert.w3)};
    for (const GateUp& group : {routed, shared}) {
      order.groups.push_back(group);
      if (IsSwapped(group)) {
        order.swapped.push_back(group);
      } else {
        ++(IsInOrder(group) ? order.num_in_order : order.num_undecided);
      }
    }
    if (!IsInOrder(routed)) continue;
    const std::vector<GateUp> alone = SwappedAlone(layer, experts);
    order.swapped.insert(order.swapped.end(), alone.begin(), alone.end());
  }
  return order;
}

std::vector<Hole> LookForSwappedCompressors(const std::vector<model::LayerWeights>& layers) {
  std::vector<Hole> found;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, part] : {std::pair("attn.compressor", &layers[i].compressor),
                                     std::pair("attn.indexer.compressor", &layers[i].key_compressor)}) {
      if (!*part || (*part)->wgate.rows == 0) continue;
      const double kv = CommonDirection((*part)->wkv);
      const double gate = CommonDirection((*part)->wgate);
      if (kv < kManyZ || gate > std::max(kNoZ, kv / 3)) continue;
      found.push_back(
          {static_cast<int>(i), fmt::format("layers.{}.{}", i, name),
           fmt::format("the rows of wkv share a direction ({:.3g} standard deviations from chance), "
                       "those of wgate do not ({:.3g}): the two are exchanged",
                       kv, gate)});
    }
  }
  return found;
}

std::string GateUpName(const GateUp& group) {
  if (group.shared) return fmt::format("layers.{}.ffn.shared_experts", group.layer);
  if (group.expert < 0) return fmt::format("layers.{}.ffn.experts", group.layer);
  return fmt::format("layers.{}.ffn.experts.{}", group.layer, group.expert);
}

Plot GateUpPlot(const GateUpOrder& order) {
  Plot plot{.title = "Do the rows share a direction? Gate and up of the experts",
            .reading =
                "Gate rows may, up rows cannot: their signs are free. Up far from 0 with gate near 0 is a "
                "swap of w1 and w3; "
                "both near 0 says nothing.",
            .x_label = "layer",
            .y_label = "standard deviations from chance"};
  plot.series = {{.name = "routed, gate (w1)", .color = 0},
                 {.name = "routed, up (w3)", .style = SeriesStyle::kDashedLine, .color = 0},
                 {.name = "shared, gate (w1)", .color = 1},
                 {.name = "shared, up (w3)", .style = SeriesStyle::kDashedLine, .color = 1}};
  for (const GateUp& group : order.groups) {
    plot.series[group.shared ? 2 : 0].Add(group.layer, group.gate);
    plot.series[group.shared ? 3 : 1].Add(group.layer, group.up);
  }
  return plot;
}

}  // namespace dsv4::diag
