// Judgement of stored activation scales beside those of sibling experts.
#include "diag/checks/tensors/input_scales.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/text.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr std::string_view kMultiplier = ".input_scale";
constexpr std::string_view kDivisor = ".input_global_scale";
constexpr double kLargestCode = 6 * 448;  // e2m1 times e4m3: what a scale of 1 reaches.
constexpr double kMaxAmax = 1e6;
constexpr double kMinAmax = 1e-5;
constexpr double kMaxSpread = 64;
constexpr size_t kShownExperts = 8;

// As a multiplier. NaN for what cannot be one.
double ReadScale(const io::StoredTensor& tensor, size_t index) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof(float), sizeof(float));
  return tensor.name.ends_with(kDivisor) ? 1 / static_cast<double>(value) : value;
}

bool IsInputScale(const io::StoredTensor& tensor) {
  return (tensor.name.ends_with(kMultiplier) || tensor.name.ends_with(kDivisor)) &&
         tensor.dtype == DType::kF32;
}

// The input scale of one expert's linear; one tensor may hold those of all experts.
std::optional<double> ScaleOf(const io::Checkpoint& checkpoint, const model::StoredLinear& linear,
                              size_t expert, size_t num_experts) {
  const std::string& weight = linear.weight_tensor->name;
  const size_t dot = weight.rfind('.');
  // "experts.gate_up_proj" has no suffix, "w1.weight" and "w1.weight_packed" have one.
  const bool has_suffix =
      dot != std::string::npos && std::string_view(weight).substr(dot + 1).starts_with("weight");
  const std::string base = has_suffix ? weight.substr(0, dot) : weight;
  for (const std::string_view suffix : {kMultiplier, kDivisor}) {
    const io::StoredTensor* tensor = checkpoint.Find(base + std::string(suffix));
    if (tensor == nullptr || tensor->dtype != DType::kF32) continue;
    const size_t count = tensor->bytes.size() / sizeof(float);
    if (count == 1) return ReadScale(*tensor, 0);
    if (count == num_experts) return ReadScale(*tensor, expert);
  }
  return std::nullopt;
}

struct ExpertScale {
  size_t expert = 0;
  double value = 0;
};

std::string Numbers(const std::vector<size_t>& experts) {
  const size_t shown = std::min(kShownExperts, experts.size());
  std::string text =
      fmt::format("{}", fmt::join(experts.begin(), experts.begin() + static_cast<int64_t>(shown), ", "));
  if (shown < experts.size()) text += fmt::format(" and {} more", experts.size() - shown);
  return text;
}

// The scales of one linear of all experts of a layer.
void JudgeSiblings(const std::string& place, const std::vector<ExpertScale>& scales, bool same_input,
                   InputScales& found) {
  std::vector<double> calibrated;
  std::vector<size_t> ones;
  for (const ExpertScale& scale : scales) {
    if (scale.value == 1) {
      ones.push_back(scale.expert);
    } else if (std::isfinite(scale.value) && scale.value > 0) {
      calibrated.push_back(scale.value);
    }
  }
  if (calibrated.size() * 2 <= scales.size()) return;  // Not calibrated as a whole, or broken as a whole.
  const double median = Median(calibrated);
  if (!ones.empty()) {
    found.findings.push_back(
        fmt::format("{}: input_scale of expert {} is exactly 1, its siblings' are around {:.3g}: never "
                    "calibrated, no calibration token reached it",
                    place, Numbers(ones), median));
  }
  std::vector<size_t> strange;
  for (const ExpertScale& scale : scales) {
    if (scale.value != 1 && scale.value > 0 &&
        std::max(scale.value / median, median / scale.value) > kMaxSpread)
      strange.push_back(scale.expert);
  }
  if (same_input && !strange.empty()) {
    found.findings.push_back(
        fmt::format("{}: input_scale of expert {} is more than {:g} times off the median {:.3g} of its "
                    "siblings, which read "
                    "the same activations",
                    place, Numbers(strange), kMaxSpread, median));
  }
}

}  // namespace

InputScales LookAtInputScales(const io::Checkpoint& checkpoint, const model::ResolvedCheckpoint& resolved) {
  InputScales found;
  for (const io::StoredTensor& tensor : checkpoint.tensors()) {
    if (!IsInputScale(tensor)) continue;
    // Loading takes no input scale, so it has not been fetched yet. Kept: ScaleOf reads it again.
    checkpoint.Fetch(std::span(&tensor.bytes, 1));
    for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) {
      const double value = ReadScale(tensor, i);
      ++found.count;
      found.num_ones += value == 1 ? 1 : 0;
      const double amax = value * kLargestCode;
      if (!std::isfinite(value) || value <= 0) {
        found.findings.push_back(fmt::format("{} is {:g}, wanted a positive number", tensor.name, value));
      } else if (amax > kMaxAmax || amax < kMinAmax) {
        found.findings.push_back(fmt::format("{} is {:.3g}: activations of up to {:.3g}, which no layer has",
                                             tensor.name, value, amax));
      }
    }
  }
  if (found.count == 0) return found;
  int64_t num_synchronised = 0;
  int64_t num_unequal = 0;
  for (size_t layer = 0; layer < resolved.layers.size(); ++layer) {
    const std::vector<model::ResolvedExpert>& experts = resolved.layers[layer].experts;
    std::array<std::vector<ExpertScale>, 3> scales;  // w1, w2, w3
    for (size_t e = 0; e < experts.size(); ++e) {
      const std::array<const model::StoredLinear*, 3> linears = {&experts[e].w1, &experts[e].w2,
                                                                 &experts[e].w3};
      std::array<std::optional<double>, 3> values;
      for (size_t w = 0; w < linears.size(); ++w) {
        values[w] = ScaleOf(checkpoint, *linears[w], e, experts.size());
        if (values[w]) scales[w].push_back({e, *values[w]});
      }
      num_unequal += values[0] && values[2] && *values[0] != *values[2] ? 1 : 0;
    }
    for (size_t w = 0; w < scales.size(); ++w) {
      JudgeSiblings(fmt::format("layers.{}.ffn.experts.w{}", layer, w + 1), scales[w], w != 1, found);
    }
    const auto differs = [&](const ExpertScale& scale) { return scale.value != scales[0][0].value; };
    if (scales[0].size() > 1 && scales[0][0].value != 1 &&
        std::none_of(scales[0].begin(), scales[0].end(), differs))
      ++num_synchronised;
  }
  if (num_synchronised > 0) {
    found.notes.push_back(
        fmt::format("all experts share one input scale in {}: synchronised after calibration",
                    Counted(num_synchronised, "layer")));
  }
  if (num_unequal > 0) {
    found.notes.push_back(fmt::format("w1 and w3 of {} the same input and have different input scales",
                                      Counted(num_unequal, "expert reads", "experts read")));
  }
  return found;
}

}  // namespace dsv4::diag
