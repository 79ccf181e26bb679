// Counts of block scales by range and saturation, and complaints about those that no quantiser writes.
#include "diag/checks/tensors/scale_survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "base/text.h"
#include "diag/statistics.h"
#include "formats/number_formats.h"

namespace dsv4::diag {
namespace {

constexpr int64_t kMinBlocks = 64;
constexpr uint8_t kHighestE4m3 = 0x7E;  // 448
constexpr size_t kNumSubnormalsE4m3 = 8;
constexpr uint8_t kHighestE8m0 = 0xFE;
// Shares of all blocks. A quantiser scales the largest block to the top of e4m3's range, or some way below,
// and the others follow. Blocks of one tensor do not span the 15 binades that lie between.
constexpr double kMaxCutOff = 0.25;
constexpr double kMaxLowest = 0.5;
constexpr double kMaxZero = 0.5;
// Elements at the largest code, per block of 16. A block that fits has one or two, or three of evenly spread
// values; one that was cut to half its size has seven.
constexpr double kMaxSaturated = 6;
// The largest block against the median one. Outliers of trained weights are a hundred times their neighbours,
// not this.
constexpr double kMaxSpread = 1024;
// The largest block against the next largest. Outliers come in several.
constexpr double kMaxLead = 16;

double Share(int64_t part, int64_t count) { return static_cast<double>(part) / static_cast<double>(count); }

std::string Percent(int64_t part, int64_t count) {
  return part == 0 ? "0" : fmt::format("{:.2g}%", 100 * Share(part, count));
}

double Global(const Weight& weight) {
  if (weight.format != WeightFormat::kNvFp4) return 1;
  return weight.global_scale_divides ? 1 / static_cast<double>(weight.global_scale) : weight.global_scale;
}

// The decoded scales and how often each comes: one-byte scales have at most 256.
std::map<double, int64_t> CountScales(const Weight& weight, ScaleStatistics& statistics) {
  std::map<double, int64_t> counts;
  const TensorView& scale = weight.scale;
  statistics.count = scale.num_elements();
  const auto count = static_cast<size_t>(statistics.count);
  if (scale.dtype == DType::kF8E4M3 || scale.dtype == DType::kF8E8M0) {
    const bool e4m3 = scale.dtype == DType::kF8E4M3;
    std::array<int64_t, 256> codes = {};
    for (size_t i = 0; i < count; ++i) ++codes[scale.as<const uint8_t>()[i]];
    for (size_t code = 0; code < codes.size(); ++code) {
      if (codes[code] == 0) continue;
      const auto byte = static_cast<uint8_t>(code);
      counts[e4m3 ? FloatFromE4m3(byte) : FloatFromE8m0(byte)] += codes[code];
    }
    for (size_t code = 1; e4m3 && code < kNumSubnormalsE4m3; ++code) statistics.num_lowest += codes[code];
    statistics.num_highest = codes[e4m3 ? kHighestE4m3 : kHighestE8m0];
    return counts;
  }
  for (size_t i = 0; i < count; ++i) {
    float value = 0;
    if (scale.dtype == DType::kF32) {
      std::memcpy(&value, scale.as<const float>() + i, sizeof(value));
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, scale.as<const uint16_t>() + i, sizeof(bits));
      value = FloatFromBf16(bits);
    }
    ++counts[value];
  }
  return counts;
}

// Quantisers give blocks of zeros whatever scale they like, 1 for one, so a large scale counts where
// something was scaled.
bool HoldsValuesOf(const Weight& weight, double scale) {
  // Share of the largest code: no quantiser leaves the largest element of a block below half of the range.
  const double least = scale / 4 * (weight.format == WeightFormat::kFp8Block ? 448 : 6);
  std::vector<float> row(static_cast<size_t>(weight.cols));
  for (int64_t i = 0; i < weight.rows; ++i) {
    DequantizeRow(weight, i, row.data());
    if (MaxAbs(row) >= least) return true;
  }
  return false;
}

// Elements at +-6 in an NVFP4 block whose scale is 448, on average.
double Saturated(const Weight& weight) {
  const auto* scales = weight.scale.as<const uint8_t>();
  const auto* codes = weight.data.as<const uint8_t>();
  constexpr size_t kBytes = kNvFp4Block / 2;
  int64_t num_blocks = 0;
  int64_t count = 0;
  for (size_t block = 0; block < static_cast<size_t>(weight.scale.num_elements()); ++block) {
    if (scales[block] != kHighestE4m3) continue;
    ++num_blocks;
    for (size_t i = block * kBytes; i < (block + 1) * kBytes; ++i)
      count += ((codes[i] & 0x07) == 0x07 ? 1 : 0) + ((codes[i] & 0x70) == 0x70 ? 1 : 0);
  }
  return num_blocks == 0 ? 0 : static_cast<double>(count) / static_cast<double>(num_blocks);
}

}  // namespace

ScaleStatistics MeasureScales(const Weight& weight) {
  ScaleStatistics statistics;
  if (weight.format == WeightFormat::kPlain || weight.scale.num_elements() == 0) return statistics;
  std::map<double, int64_t> counts = CountScales(weight, statistics);
  // e8m0 has no zero; its lowest number stands for it.
  const double nothing = weight.scale.dtype == DType::kF8E8M0 ? FloatFromE8m0(0) : 0;
  if (const auto zero = counts.find(nothing); zero != counts.end()) {
    statistics.num_zero = zero->second;
    counts.erase(zero);
  }
  if (counts.empty()) return statistics;
  const double global = Global(weight);
  statistics.lowest = counts.begin()->first * global;
  statistics.highest = counts.rbegin()->first * global;
  if (counts.rbegin()->second > 1) {
    statistics.next = statistics.highest;
  } else if (counts.size() > 1) {
    statistics.next = std::next(counts.rbegin())->first * global;
  }
  int64_t below = 0;
  for (const auto& [value, count] : counts) {
    below += count;
    statistics.median = value * global;
    if (2 * below >= statistics.count - statistics.num_zero) break;
  }
  return statistics;
}

std::string ScaleComplaint(const Weight& weight, const ScaleStatistics& scales) {
  if (scales.count < kMinBlocks) return {};
  if (Share(scales.num_zero, scales.count) > kMaxZero) {
    return fmt::format("has a scale of zero in {} of {}", scales.num_zero, Counted(scales.count, "block"));
  }
  if (scales.highest > kMaxSpread * scales.median && HoldsValuesOf(weight, scales.highest)) {
    return fmt::format("has a block scale of {:.3g}, {:.3g} times the median one: damaged?", scales.highest,
                       scales.highest / scales.median);
  }
  if (scales.next > 0 && scales.highest >= kMaxLead * scales.next && HoldsValuesOf(weight, scales.highest)) {
    return fmt::format("has a block scale of {:.3g}, {:.3g} times the next: was a bit flipped?",
                       scales.highest, scales.highest / scales.next);
  }
  if (weight.format != WeightFormat::kNvFp4) return {};
  if (Share(scales.num_highest, scales.count) > kMaxCutOff && Saturated(weight) > kMaxSaturated) {
    return fmt::format(
        "has the largest possible scale, 448, in {} of {}: its global scale is too small, and larger "
        "blocks were cut off",
        scales.num_highest, Counted(scales.count, "block"));
  }
  if (Share(scales.num_lowest, scales.count) > kMaxLowest) {
    return fmt::format(
        "has subnormal scales in {} of {}: its global scale is too large, and little precision is "
        "left",
        scales.num_lowest, Counted(scales.count, "block"));
  }
  return {};
}

void ScaleSurvey::AddTo(Sums& sums, const Weight& weight, const ScaleStatistics& scales) {
  const std::string format(WeightFormatName(weight.format));
  if (sums.formats.find(format) == std::string::npos)
    sums.formats += (sums.formats.empty() ? "" : ", ") + format;
  ++sums.num_tensors;
  sums.count += scales.count;
  sums.num_zero += scales.num_zero;
  sums.num_lowest += scales.num_lowest;
  sums.num_highest += scales.num_highest;
  if (scales.highest == 0) return;  // All zero.
  sums.lowest = sums.medians.empty() ? scales.lowest : std::min(sums.lowest, scales.lowest);
  sums.highest = std::max(sums.highest, scales.highest);
  sums.medians.push_back(scales.median);
}

void ScaleSurvey::Add(int layer, const std::string& module, const Weight& weight,
                      const ScaleStatistics& scales) {
  if (scales.count == 0) return;
  AddTo(modules_[module], weight, scales);
  if (module.starts_with("ffn.experts.")) AddTo(experts_[layer], weight, scales);
}

Table ScaleSurvey::ModuleTable() const {
  Table table{.title = "block scales",
              .columns = {"module", "formats", "tensors", "blocks", "zero", "at the format's lowest",
                          "at its highest", "lowest", "median of medians", "highest"}};
  for (const auto& [module, sums] : modules_) {
    table.rows.push_back({module, sums.formats, std::to_string(sums.num_tensors), std::to_string(sums.count),
                          Percent(sums.num_zero, sums.count), Percent(sums.num_lowest, sums.count),
                          Percent(sums.num_highest, sums.count), fmt::format("{:.3g}", sums.lowest),
                          fmt::format("{:.3g}", Median(sums.medians)), fmt::format("{:.3g}", sums.highest)});
  }
  return table;
}

Plot ScaleSurvey::ExpertPlot() const {
  Plot plot{.title = "Block scales of the routed experts",
            .reading =
                "Lowest, median and highest of each layer, global scales multiplied in. A layer that leaves "
                "its neighbours "
                "was quantised, or read, in another way.",
            .x_label = "layer",
            .y_label = "scale",
            .log_y = true};
  if (experts_.empty()) return plot;
  plot.series = {
      {.name = "highest", .color = 1}, {.name = "median", .color = 0}, {.name = "lowest", .color = 2}};
  for (const auto& [layer, sums] : experts_) {
    plot.series[0].Add(layer, sums.highest);
    plot.series[1].Add(layer, Median(sums.medians));
    plot.series[2].Add(layer, sums.lowest);
  }
  return plot;
}

}  // namespace dsv4::diag
