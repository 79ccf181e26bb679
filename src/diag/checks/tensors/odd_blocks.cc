// Sizes of blocks beside those of their tensor and of other layers.
#include "diag/checks/tensors/odd_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace dsv4::diag {
namespace {

constexpr const char* kSides[] = {"rows", "columns", "a block"};
constexpr int64_t kMinBlockSize = 16;
// A lead over all others, and over the differences among these.
constexpr size_t kFewestBlocks = 4;
const double kMinLead = std::log(3.5);
// An offset that no other layer has a third of.
constexpr size_t kFewestLayers = 4;
const double kMinOffset = std::log(1.65);
constexpr double kTimesOthers = 3;
constexpr double kNearPower = 0.2;  // Distance from a power of two, in logarithms.

// Each value less the middle of all others in its line.
std::vector<double> LessOthers(const std::vector<double>& values) {
  std::vector<double> less(values.size());
  for (size_t i = 0; i < values.size() && values.size() > 1; ++i) {
    std::vector<double> others;
    for (size_t j = 0; j < values.size(); ++j) {
      if (j != i) others.push_back(values[j]);
    }
    const auto upper = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::ranges::nth_element(others, upper);
    const double below = others.size() % 2 == 1 ? *upper : *std::max_element(others.begin(), upper);
    less[i] = values[i] - (*upper + below) / 2;
  }
  return less;
}

bool IsPowerOfTwo(double offset) {
  const double powers = offset / std::log(2.0);
  return std::abs(powers - std::round(powers)) * std::log(2.0) < kNearPower;
}

}  // namespace

BlockSquares::BlockSquares(const Weight& weight)
    : block_rows(weight.block_rows),
      block_cols(weight.block_cols),
      num_columns(static_cast<size_t>((weight.cols + block_cols - 1) / block_cols)),
      squares(num_columns * static_cast<size_t>((weight.rows + block_rows - 1) / block_rows)) {}

void BlockSquares::AddRow(std::span<const float> row) {
  double* const line = squares.data() + static_cast<size_t>(num_rows_++ / block_rows) * num_columns;
  for (size_t i = 0; i < num_columns; ++i) {
    const size_t first = i * static_cast<size_t>(block_cols);
    const auto block = row.subspan(first, std::min(static_cast<size_t>(block_cols), row.size() - first));
    line[i] += std::inner_product(block.begin(), block.end(), block.begin(), 0.0F);
  }
}

void OddBlocks::AddSide(int layer, const std::string& module, std::span<const double> logs, int64_t size,
                        int side) {
  const auto length = static_cast<size_t>(size);
  if (size < kMinBlockSize || logs.size() < 2 * length) return;
  // Half the mean of the logarithms of squares, which one large row does not move.
  std::vector<double> sizes;
  for (size_t i = 0; i + length <= logs.size(); i += length) {
    const auto block = logs.subspan(i, length);
    sizes.push_back(std::accumulate(block.begin(), block.end(), 0.0) / (2 * static_cast<double>(length)));
  }
  FindLead(layer, module, sizes, size, side);
  Offsets& offsets = sides_[side][module];
  offsets.size = size;
  offsets.by_layer[layer] = LessOthers(sizes);
}

void OddBlocks::FindLead(int layer, const std::string& module, std::span<const double> sizes, int64_t size,
                         int side) {
  const size_t count = sizes.size();
  if (count < kFewestBlocks) return;
  std::vector<std::pair<double, int64_t>> sorted;
  for (const double value : sizes) sorted.emplace_back(value, std::ssize(sorted));
  std::ranges::sort(sorted);
  const double below = sorted[1].first - sorted[0].first;
  const double above = sorted[count - 1].first - sorted[count - 2].first;
  const double lead = std::max(below, above);
  if (lead < kMinLead || lead < sorted[count - 2].first - sorted[1].first) return;
  const int64_t first = (above > below ? sorted.back() : sorted.front()).second * size;
  leads_.push_back(
      {layer, module,
       fmt::format("has {} {}..{} that are {:.3g} times as {} as any others, the size of a block: are its "
                   "scales wrong?",
                   kSides[side], first, first + size - 1, std::exp(lead),
                   above > below ? "large" : "small")});
}

void OddBlocks::Add(int layer, const std::string& module, std::span<const double> rows,
                    std::span<const double> columns, const BlockSquares& blocks) {
  AddSide(layer, module, rows, blocks.block_rows, 0);
  AddSide(layer, module, columns, blocks.block_cols, 1);
  // A single block, less what its row and its column of blocks are of.
  const size_t width = blocks.num_columns;
  const size_t height = blocks.squares.size() / width;
  if (width < 2 || height < 2) return;
  std::vector<double> sizes;
  for (const double square : blocks.squares) sizes.push_back(std::log(square + 1e-30) / 2);
  for (size_t i = 0; i < height; ++i) {
    const auto line = sizes.begin() + static_cast<std::ptrdiff_t>(i * width);
    std::ranges::copy(LessOthers({line, line + static_cast<std::ptrdiff_t>(width)}), line);
  }
  for (size_t j = 0; j < width; ++j) {
    std::vector<double> line;
    for (size_t i = 0; i < height; ++i) line.push_back(sizes[i * width + j]);
    line = LessOthers(line);
    for (size_t i = 0; i < height; ++i) sizes[i * width + j] = line[i];
  }
  sides_[2][module].by_layer[layer] = std::move(sizes);
}

std::vector<StrayLayer> OddBlocks::Find() const {
  std::vector<StrayLayer> found = leads_;
  const auto size = [](double offset) { return std::abs(offset); };
  for (int side = 0; side < 3; ++side) {
    for (const auto& [module, offsets] : sides_[side]) {
      if (offsets.by_layer.size() < kFewestLayers) continue;
      std::vector<std::pair<double, int>> largest;
      for (const auto& [layer, values] : offsets.by_layer)
        largest.emplace_back(size(*std::ranges::max_element(values, {}, size)), layer);
      std::ranges::sort(largest);
      const auto [most, layer] = largest.back();
      const double others = largest[largest.size() - 2].first;
      const bool is_told =
          std::ranges::any_of(found, [stray = layer, &name = module](const StrayLayer& other) {
            return other.layer == stray && other.module == name;
          });
      if (is_told || most < kMinOffset || most < kTimesOthers * others || !IsPowerOfTwo(most)) continue;
      const std::vector<double>& values = offsets.by_layer.at(layer);
      const auto worst = std::ranges::max_element(values, {}, size);
      const int64_t first = std::distance(values.begin(), worst) * std::max<int64_t>(offsets.size, 1);
      const std::string place = side == 2
                                    ? fmt::format("a block (scale {})", first)
                                    : fmt::format("{} {}..{}", kSides[side], first, first + offsets.size - 1);
      found.push_back(
          {layer, module,
           fmt::format("has {} that {} {:.3g} times as {} as all others beside {}; in no other "
                       "layer one is off by more than {:.3g}: is a scale wrong?",
                       place, side == 2 ? "is" : "are", std::exp(most), *worst > 0 ? "large" : "small",
                       side == 2 ? "it" : "them", std::exp(others))});
    }
  }
  return found;
}

}  // namespace dsv4::diag
