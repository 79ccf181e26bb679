// Layers that do not go along with the others.
#include "diag/checks/tensors/stray_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr size_t kMinLayers = 5;
constexpr size_t kBeside = 2;  // Layers on each side that are neighbours.
// A size stands out when it is off by this factor, and by five times as many powers of it as any other layer.
const double kMinSize = std::log(1.65);
constexpr double kTimesOthers = 5;
// The first and the last layer of a model may differ by training; a scale that was lost there is a power of
// two.
constexpr double kNearPower = 0.15;
// Standard deviations from chance by which a layer's profile goes along with the mean of the others'.
constexpr double kAlike = 3.2;
constexpr double kMedianAlike = 4;
constexpr double kUnlike = 1.2;
constexpr int kFirstJudged = 2;   // The first layers read embeddings, and may go their own way.
constexpr double kSigned = 0.7;   // Mean over RMS: 1 for numbers of one sign and size.
constexpr double kMinSpread = 8;  // A bias's, over the next widest.
constexpr int64_t kMostElements = int64_t{96} << 20;

using BySize = std::map<int, double>;

// Logarithm of each layer's value over the median of its neighbours', without `left_out`.
std::map<int, double> Deviations(const BySize& values, int left_out) {
  std::vector<std::pair<int, double>> series;
  for (const auto& value : values) {
    if (value.first != left_out) series.push_back(value);
  }
  std::map<int, double> deviations;
  for (size_t i = 0; i < series.size(); ++i) {
    std::vector<double> beside;
    for (size_t j = i < kBeside ? 0 : i - kBeside; j < std::min(series.size(), i + kBeside + 1); ++j) {
      if (j != i) beside.push_back(std::log(series[j].second));
    }
    // The mean of the two in the middle: of two neighbours none is the better one.
    std::ranges::sort(beside);
    const double middle = (beside[beside.size() / 2] + beside[(beside.size() - 1) / 2]) / 2;
    deviations[series[i].first] = std::log(series[i].second) - middle;
  }
  return deviations;
}

std::pair<int, double> Largest(const std::map<int, double>& deviations) {
  return *std::ranges::max_element(deviations, {}, [](const auto& entry) { return std::abs(entry.second); });
}

std::vector<double> Centred(std::vector<double> logs) {
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size());
  for (double& value : logs) value -= mean;
  return logs;
}

// Correlation in standard deviations of what unlike vectors of this length have.
double Likeness(const std::vector<double>& a, const std::vector<double>& b) {
  return Correlation(a, b) * std::sqrt(static_cast<double>(a.size()));
}

}  // namespace

void StrayLayers::AddSize(int layer, const std::string& module, double rms, bool is_norm) {
  if (rms > 0 && std::isfinite(rms)) (is_norm ? norm_sizes_ : sizes_)[module][layer].push_back(rms);
}

void StrayLayers::AddShape(int layer, const std::string& module, const Weight& weight) {
  if (weight.rows * weight.cols > kMostElements || weight.rows < 16 || weight.cols < 16) return;
  std::vector<double> rows(static_cast<size_t>(weight.rows));
  std::vector<double> columns(static_cast<size_t>(weight.cols));
  std::vector<float> row(columns.size());
  const bool has_blocks = weight.format == WeightFormat::kFp8Block;
  BlockSquares blocks(weight);
  for (size_t i = 0; i < rows.size(); ++i) {
    DequantizeRow(weight, static_cast<int64_t>(i), row.data());
    for (size_t j = 0; j < row.size(); ++j) {
      const double square = static_cast<double>(row[j]) * row[j];
      rows[i] += square;
      columns[j] += square;
    }
    if (has_blocks) blocks.AddRow(row);
  }
  constexpr double kLeast = 1e-30;  // A row of zeros is another check's.
  for (std::vector<double>* sums : {&rows, &columns}) {
    if (!std::ranges::all_of(*sums, [](double sum) { return std::isfinite(sum); })) return;
    for (double& sum : *sums) sum = std::log(sum + kLeast);
  }
  if (has_blocks) odd_blocks_.Add(layer, module, rows, columns, blocks);
  rows_[module][layer] = Centred(std::move(rows));
  columns_[module][layer] = Centred(std::move(columns));
}

void StrayLayers::AddVector(int layer, const std::string& module, std::span<const float> values) {
  constant_vectors_[module][layer] =
      values.size() > 1 && std::ranges::all_of(values, [&](float value) { return value == values.front(); });
}

void StrayLayers::AddProfile(int layer, const std::string& module, std::span<const float> values) {
  constexpr size_t kFewest = 16;
  if (values.size() < kFewest || !AllFinite(values)) return;
  AddSize(layer, module, Rms(values), /*is_norm=*/true);
  profiles_[module][layer] = Centred(std::vector<double>(values.begin(), values.end()));
}

void StrayLayers::AddNorm(int layer, const std::string& module, std::span<const float> values) {
  AddSize(layer, module, Rms(values), /*is_norm=*/true);
  constant_norms_[module][layer] =
      std::ranges::all_of(values, [&](float value) { return value == values.front(); });
}

void StrayLayers::AddBias(int layer, const std::string& module, std::span<const float> values) {
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  const double rms = Rms(values);
  if (!(rms > 0) || !std::isfinite(rms)) return;
  signs_[module][layer] = mean / rms;
  spreads_[module][layer] = std::sqrt(std::max(0.0, rms * rms - mean * mean));
}

bool StrayLayers::trained() const {
  return std::ranges::any_of(constant_norms_, [](const auto& module) {
    return std::ranges::any_of(module.second, [](const auto& layer) { return !layer.second; });
  });
}

void StrayLayers::FindSizes(const std::string& module, const Values& values, bool is_norm,
                            std::vector<StrayLayer>& found) const {
  if (values.size() < kMinLayers) return;
  BySize sizes;
  for (const auto& [layer, all] : values) sizes[layer] = Median(all);
  const auto [worst, deviation] = Largest(Deviations(sizes, -1));
  const double others = std::abs(Largest(Deviations(sizes, worst)).second);
  if (std::abs(deviation) < kMinSize || std::abs(deviation) < kTimesOthers * others) return;
  if (worst == sizes.begin()->first || worst == sizes.rbegin()->first) {
    const double powers = deviation / std::log(2.0);
    if (is_norm || std::abs(powers - std::round(powers)) * std::log(2.0) > kNearPower) return;
  }
  const double factor = std::exp(std::abs(deviation));
  found.push_back({worst, module,
                   fmt::format("is {:.3g} times as {} as in the layers beside it; no other layer is off by "
                               "more than {:.3g}: is a scale wrong?",
                               factor, deviation > 0 ? "large" : "small", std::exp(others))});
}

void StrayLayers::FindShapes(const std::string& module, const Values& profiles, std::string_view side,
                             std::vector<StrayLayer>& found) const {
  if (profiles.size() < kMinLayers) return;
  const size_t length = profiles.begin()->second.size();
  std::vector<double> sum(length);
  for (const auto& [layer, profile] : profiles) {
    if (profile.size() != length) return;
    for (size_t i = 0; i < length; ++i) sum[i] += profile[i];
  }
  std::vector<std::pair<double, int>> alike;
  for (const auto& [layer, profile] : profiles) {
    std::vector<double> others(length);
    for (size_t i = 0; i < length; ++i) others[i] = sum[i] - profile[i];
    alike.emplace_back(Likeness(profile, others), layer);
  }
  std::ranges::sort(alike);
  const auto [least, layer] = alike.front();
  if (least > kUnlike || alike[1].first < kAlike || alike[alike.size() / 2].first < kMedianAlike) return;
  if (std::distance(profiles.begin(), profiles.find(layer)) < kFirstJudged) return;
  found.push_back({layer, module,
                   fmt::format("has its large {0} where no other layer has them ({1:.3g} standard deviations "
                               "from chance, the others {2:.3g} and more): are its {0} in another order, "
                               "is it transposed, or of another layer?",
                               side, least, alike[1].first)});
}

std::vector<StrayLayer> StrayLayers::Find() const {
  std::vector<StrayLayer> found;
  if (!trained()) return found;
  found = odd_blocks_.Find();
  for (const auto& [module, values] : sizes_) FindSizes(module, values, /*is_norm=*/false, found);
  for (const auto& [module, values] : norm_sizes_) FindSizes(module, values, /*is_norm=*/true, found);
  for (const auto& [module, profiles] : rows_) FindShapes(module, profiles, "rows", found);
  for (const auto& [module, profiles] : columns_) FindShapes(module, profiles, "columns", found);
  for (const auto& [module, profiles] : profiles_) FindShapes(module, profiles, "numbers", found);
  for (const auto* constants : {&constant_norms_, &constant_vectors_}) {
    for (const auto& [module, layers] : *constants) {
      if (layers.size() < kMinLayers ||
          std::ranges::count_if(layers, [](const auto& entry) { return entry.second; }) != 1)
        continue;
      const auto stray = std::ranges::find_if(layers, [](const auto& entry) { return entry.second; });
      found.push_back(
          {stray->first, module, "is constant, those of all other layers are not: was it written?"});
    }
  }
  for (const auto& [module, layers] : spreads_) {
    if (layers.size() < kMinLayers) continue;
    std::vector<std::pair<double, int>> spreads;
    for (const auto& [layer, spread] : layers) spreads.emplace_back(spread, layer);
    std::ranges::sort(spreads);
    const auto [widest, layer] = spreads.back();
    const double next = spreads[spreads.size() - 2].first;
    if (next == 0 || widest < kMinSpread * next || layer == layers.begin()->first ||
        layer == layers.rbegin()->first)
      continue;
    found.push_back(
        {layer, module,
         fmt::format("has numbers that lie {:.3g} times as far apart as in any other layer: were they "
                     "multiplied?",
                     widest / next)});
  }
  for (const auto& [module, layers] : signs_) {
    const auto num_positive =
        std::ranges::count_if(layers, [](const auto& entry) { return entry.second > kSigned; });
    const auto num_negative =
        std::ranges::count_if(layers, [](const auto& entry) { return entry.second < -kSigned; });
    if (layers.size() < kMinLayers || std::min(num_positive, num_negative) != 1 ||
        num_positive + num_negative != std::ssize(layers))
      continue;
    const auto stray = std::ranges::find_if(
        layers, [&](const auto& entry) { return (entry.second > kSigned) == (num_positive == 1); });
    found.push_back({stray->first, module, "has the other sign than those of all other layers"});
  }
  return found;
}

}  // namespace dsv4::diag
