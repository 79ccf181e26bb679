// Likeness of the streams' mixing matrices, over all pairs of half-layers.
#include "diag/checks/tensors/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string>

#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr size_t kFewestLayers = 4;
constexpr int64_t kMostNumbers = int64_t{1} << 16;  // Spread evenly over a matrix.
// Weight of a likeness by how many half-layers lie between. The next but one is of the same kind.
constexpr std::array<double, 5> kWeights = {0, 1, 1, 0.5, 0.5};
constexpr double kAlike = 10;        // Mean likeness of neighbours, in standard deviations from chance.
constexpr double kLeastGain = 0.15;  // Share of a half-layer's mean score.

using Likeness = std::vector<std::vector<double>>;

std::vector<float> Sample(const TensorView& matrix) {
  const int64_t count = matrix.num_elements();
  const int64_t stride = (count + kMostNumbers - 1) / kMostNumbers;
  const float* const values = matrix.as<const float>();
  std::vector<float> sample;
  for (int64_t i = 0; i < count; i += stride) sample.push_back(values[i]);
  return sample;
}

// Likeness of one half-layer to the neighbours of a place.
double Score(const Likeness& likeness, size_t half, size_t place, size_t exchanged, size_t with) {
  double score = 0;
  for (size_t other = 0; other < likeness.size(); ++other) {
    const size_t distance = other > place ? other - place : place - other;
    if (distance == 0 || distance >= kWeights.size()) continue;
    const size_t there = other == exchanged ? with : other == with ? exchanged : other;
    score += kWeights[distance] * likeness[half][there];
  }
  return score;
}

double Gain(const Likeness& likeness, size_t i, size_t j) {
  const size_t none = likeness.size();
  return Score(likeness, i, j, i, j) + Score(likeness, j, i, i, j) - Score(likeness, i, i, none, none) -
         Score(likeness, j, j, none, none);
}

std::string Name(size_t half) {
  return fmt::format("layers.{}.{}", half / 2, half % 2 == 0 ? "hc_attn_fn" : "hc_ffn_fn");
}

}  // namespace

std::vector<Hole> LookForExchangedNeighbours(const std::vector<model::LayerWeights>& layers) {
  if (layers.size() < kFewestLayers) return {};
  std::vector<std::vector<float>> halves;
  for (const model::LayerWeights& layer : layers) {
    for (const TensorView* matrix : {&layer.hc_attn.fn, &layer.hc_ffn.fn}) {
      if (matrix->is_null() || matrix->num_elements() == 0) return {};
      halves.push_back(Sample(*matrix));
      if (halves.back().size() != halves.front().size() || !AllFinite(halves.back())) return {};
    }
  }
  const size_t count = halves.size();
  Likeness likeness(count, std::vector<double>(count));
  double beside = 0;
  double all = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      likeness[i][j] = likeness[j][i] =
          Cosine(halves[i], halves[j]) * std::sqrt(static_cast<double>(halves[i].size()));
      if (j + 1 == i) beside += likeness[i][j] / static_cast<double>(count - 1);
    }
  }
  for (size_t i = 0; i < count; ++i) all += Score(likeness, i, i, count, count) / static_cast<double>(count);
  if (beside < kAlike) return {};
  double most = kLeastGain * all;
  std::vector<Hole> found;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j < count; ++j) {
      const double gain = Gain(likeness, i, j);
      if (gain <= most) continue;
      most = gain;
      found = {{static_cast<int>(i / 2), Name(i),
                fmt::format("and {} are more like the half-layers beside the other, by {:.0f} % of what a "
                            "half-layer has: they are exchanged",
                            Name(j), 100 * gain / all)}};
    }
  }
  return found;
}

}  // namespace dsv4::diag
