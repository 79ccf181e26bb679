// Correlations of gains with rows and columns, over all pairs of layers.
#include "diag/checks/tensors/norm_ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "diag/checks/tensors/profiles.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

using model::LayerWeights;

constexpr size_t kFewestLayers = 4;
constexpr size_t kMostExperts = 16;   // Spread evenly over a layer.
constexpr double kSaysSomething = 3;  // A kind of matrix, by its strength.
constexpr double kTied = 4.5;         // All kinds together.
constexpr double kCrossed = 2;        // Each of two, with the other layer.
constexpr double kAlone = 1.5;        // The one that fits nothing, where all others have
constexpr double kAllTied = 4;        // this and more.
constexpr double kTimesCrossed = 2;   // Distances of two norms of a layer.
constexpr double kGainOfStrength = 0.6;
constexpr double kLeastGain = 8;  // By which both fit better in each other's place.

// Measurement of each layer; one length in all.
using Measure = std::function<Squares(const LayerWeights&)>;

// By layer, without what all have in common. Empty where a layer has another length.
std::vector<Profile> Own(const std::vector<LayerWeights>& layers, const Measure& measure) {
  std::vector<std::vector<double>> logs;
  for (const LayerWeights& layer : layers) {
    logs.push_back(measure(layer));
    if (logs.back().empty() || logs.back().size() != logs.front().size()) return {};
    std::vector<double>& values = logs.back();
    for (double& value : values) value = std::log(value + 1e-24);
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    for (double& value : values) value -= mean;
  }
  for (size_t i = 0; i < logs.front().size(); ++i) {
    double mean = 0;
    for (const std::vector<double>& values : logs) mean += values[i] / static_cast<double>(logs.size());
    for (std::vector<double>& values : logs) values[i] -= mean;
  }
  std::vector<Profile> profiles;
  for (std::vector<double>& values : logs) profiles.push_back(StandardLogs(std::move(values)));
  return profiles;
}

// Row i, column j: the norm of layer i with the matrices of layer j.
using Fits = std::vector<std::vector<double>>;

// Upper quarter of the layers' own: two that are exchanged and some that say nothing do not reach it. Negative where large gains meet small
// matrices.
double Strength(const Fits& fits) {
  std::vector<double> own;
  for (size_t i = 0; i < fits.size(); ++i) own.push_back(fits[i][i]);
  std::ranges::sort(own);
  const size_t upper = own.size() * 3 / 4;
  const double high = own[upper];
  const double low = own[own.size() - 1 - upper];
  return std::abs(high) > std::abs(low) ? high : low;
}

// Kinds of matrices together, each as much as it says and with its sign.
Fits FitsOf(const std::vector<Profile>& norms, const std::vector<std::vector<Profile>>& kinds) {
  const size_t count = norms.size();
  Fits sum(count, std::vector<double>(count));
  double squares = 0;
  for (const std::vector<Profile>& kind : kinds) {
    if (kind.size() != count) continue;
    Fits fits = sum;
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < count; ++j) fits[i][j] = Tie(norms[i], kind[j]);
    const double strength = Strength(fits);
    if (std::abs(strength) < kSaysSomething) continue;
    squares += strength * strength;
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < count; ++j) sum[i][j] += strength * fits[i][j];
  }
  for (std::vector<double>& row : sum)
    for (double& value : row) value /= std::sqrt(std::max(squares, 1e-9));
  return sum;
}

// The one layer between the first and the last whose subject fits nothing of its own, where all others' do.
void LookForOneAlone(const Fits& fits, const char* subject, const char* readers, std::vector<Hole>& found) {
  size_t alone = 0;
  double others = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < fits.size(); ++i) {
    if (fits[i][i] < fits[alone][alone]) alone = i;
  }
  for (size_t i = 0; i < fits.size(); ++i) {
    if (i != alone) others = std::min(others, fits[i][i]);
  }
  if (alone == 0 || alone + 1 == fits.size() || fits[alone][alone] > kAlone || others < kAllTied) return;
  found.push_back(
      {static_cast<int>(alone), fmt::format("layers.{}.{}", alone, subject),
       fmt::format("does not go along with its {} ({:.1f} standard deviations from chance, {:.1f} "
                   "and more in all other layers): it is of another place, or out of order",
                   readers, fits[alone][alone], others)});
}

void LookAt(const char* subject, const std::vector<Profile>& profiles, const char* readers,
            const std::vector<std::vector<Profile>>& kinds, std::vector<Hole>& found) {
  if (profiles.empty()) return;
  const Fits fits = FitsOf(profiles, kinds);
  const double strength = Strength(fits);
  if (strength < kTied) return;
  const size_t num_found = found.size();
  for (size_t i = 0; i < fits.size(); ++i) {
    for (size_t j = i + 1; j < fits.size(); ++j) {
      const double gain = fits[i][j] + fits[j][i] - fits[i][i] - fits[j][j];
      if (gain < std::max(kLeastGain, kGainOfStrength * strength) ||
          std::min(fits[i][j], fits[j][i]) < kCrossed)
        continue;
      found.push_back(
          {static_cast<int>(i), fmt::format("layers.{}.{}", i, subject),
           fmt::format(
               "and layers.{}.{} go along with each other's {} ({:.1f} and {:.1f} standard deviations "
               "from chance), and less with their own ({:.1f} and {:.1f}): they or these matrices "
               "are exchanged",
               j, subject, readers, fits[i][j], fits[j][i], fits[i][i], fits[j][j])});
    }
  }
  if (found.size() == num_found) LookForOneAlone(fits, subject, readers, found);
}

// Distance of the logarithms of a layer's gains from the median of all other layers'.
double Distance(const std::vector<std::vector<double>>& logs, size_t layer,
                const std::vector<double>& gains) {
  double sum = 0;
  for (size_t i = 0; i < gains.size(); ++i) {
    std::vector<double> others;
    for (size_t j = 0; j < logs.size(); ++j) {
      if (j != layer) others.push_back(logs[j][i]);
    }
    const double difference = gains[i] - Median(std::move(others));
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(gains.size()));
}

// Two norms of one layer, each of which is more like the other's kind in all other layers.
void LookForTwoOfALayer(const std::vector<LayerWeights>& layers, const char* first_name,
                        TensorView LayerWeights::*first, const char* second_name,
                        TensorView LayerWeights::*second, std::vector<Hole>& found) {
  std::vector<std::vector<double>> a;
  std::vector<std::vector<double>> b;
  for (const LayerWeights& layer : layers) {
    for (const auto& [logs, norm] : {std::pair(&a, &(layer.*first)), std::pair(&b, &(layer.*second))}) {
      logs->push_back(NumberSquares(*norm, 0, norm->num_elements()));
      for (double& square : logs->back()) square = std::log(square + 1e-24) / 2;
    }
    if (a.back().size() != b.back().size() || a.back().size() != a.front().size()) return;
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const double own = Distance(a, i, a[i]) + Distance(b, i, b[i]);
    const double crossed = Distance(a, i, b[i]) + Distance(b, i, a[i]);
    if (!(own > kTimesCrossed * crossed)) continue;
    found.push_back({static_cast<int>(i), fmt::format("layers.{}.{}", i, first_name),
                     fmt::format("is {:.2g} times as far from all other layers' as from their {}, and {} the "
                                 "other way round: the two are exchanged",
                                 own / crossed, second_name, second_name)});
  }
}

// Sums over the rows or columns of all heads.
Squares Folded(const Squares& squares, size_t width) {
  Squares sums(width);
  for (size_t i = 0; i < squares.size(); ++i) sums[i % width] += squares[i];
  return sums;
}

Measure Gains(TensorView LayerWeights::*norm) {
  return [norm](const LayerWeights& layer) {
    return NumberSquares(layer.*norm, 0, (layer.*norm).num_elements());
  };
}

Measure Rows(Weight LayerWeights::*weight) {
  return [weight](const LayerWeights& layer) { return RowSquares(layer.*weight); };
}

Measure Columns(Weight LayerWeights::*weight) {
  return [weight](const LayerWeights& layer) { return ColumnSquares(layer.*weight); };
}

// Columns of the gates or ups of a layer's experts together.
Measure ExpertColumns(Weight ops::ExpertWeights::*weight) {
  return [weight](const LayerWeights& layer) {
    const size_t count = std::min(kMostExperts, layer.experts.size());
    Squares sums;
    for (size_t i = 0; i < count; ++i) {
      const Weight& matrix = layer.experts[i * layer.experts.size() / count].*weight;
      const Squares squares = ColumnSquares(matrix, kSampledRows / static_cast<int64_t>(kMostExperts));
      sums.resize(squares.size());
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += squares[j];
    }
    return sums;
  };
}

}  // namespace

std::vector<Hole> LookForExchangedNorms(const std::vector<LayerWeights>& layers) {
  std::vector<Hole> found;
  if (layers.size() < kFewestLayers) return found;
  LookForTwoOfALayer(layers, "attn_norm", &LayerWeights::attn_norm, "ffn_norm", &LayerWeights::ffn_norm,
                     found);
  LookForTwoOfALayer(layers, "attn.q_norm", &LayerWeights::q_norm, "attn.kv_norm", &LayerWeights::kv_norm,
                     found);
  const auto own = [&](const Measure& measure) { return Own(layers, measure); };
  const std::vector<Profile> attn_norm = own(Gains(&LayerWeights::attn_norm));
  const std::vector<Profile> wkv = own(Columns(&LayerWeights::wkv));
  LookAt("attn_norm", attn_norm, "attn.wq_a and attn.wkv", {own(Columns(&LayerWeights::wq_a)), wkv}, found);
  LookAt("ffn_norm", own(Gains(&LayerWeights::ffn_norm)), "experts",
         {own(ExpertColumns(&ops::ExpertWeights::w1)), own(ExpertColumns(&ops::ExpertWeights::w3))}, found);
  LookAt("attn.q_norm", own(Gains(&LayerWeights::q_norm)), "attn.wq_a and attn.wq_b",
         {own(Rows(&LayerWeights::wq_a)), own(Columns(&LayerWeights::wq_b))}, found);
  const auto width = static_cast<size_t>(layers.front().kv_norm.num_elements());
  const auto folded = [&](const Measure& measure) {
    return own([&](const LayerWeights& layer) { return Folded(measure(layer), width); });
  };
  LookAt("attn.kv_norm", own(Gains(&LayerWeights::kv_norm)), "attn.wkv, attn.wq_b and attn.wo_a",
         {own(Rows(&LayerWeights::wkv)), folded(Rows(&LayerWeights::wq_b)),
          folded(Columns(&LayerWeights::wo_a))},
         found);
  LookAt("attn.wkv", wkv, "attn_norm", {attn_norm}, found);
  LookAt("attn.wo_a", own(Rows(&LayerWeights::wo_a)), "attn.wo_b", {own(Columns(&LayerWeights::wo_b))},
         found);
  return found;
}

}  // namespace dsv4::diag
