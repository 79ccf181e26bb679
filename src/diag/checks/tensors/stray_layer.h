// StrayLayers: statistics of each module over the layers, and the one layer that does not go along with the
// others.
//
// A file that was converted, repaired or exchanged in part keeps the shapes and the magnitudes of its
// tensors. But layers that were trained together resemble each other. They agree in size, in the sign of a
// bias, and in the channels of the residual stream that they use most. Only a layer that stands out alone is
// named; where layers differ among themselves nothing is said.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "diag/checks/tensors/odd_blocks.h"
#include "diag/checks/tensors/stray.h"
#include "formats/weight.h"

namespace dsv4::diag {

class StrayLayers {
 public:
  // Several tensors of one module and layer, as experts are, count as their median.
  void AddSize(int layer, const std::string& module, double rms, bool is_norm);
  // By row and by column, in logarithms. Blocks that share their scales are odd_blocks.h's. Nothing where a weight is so
  // large that it would take long.
  void AddShape(int layer, const std::string& module, const Weight& weight);
  void AddNorm(int layer, const std::string& module, std::span<const float> values);
  // Sinks, biases and offsets: numbers of either sign.
  void AddVector(int layer, const std::string& module, std::span<const float> values);
  // Numbers that are nearly the same in all layers, 16 or more.
  void AddProfile(int layer, const std::string& module, std::span<const float> values);
  void AddBias(int layer, const std::string& module, std::span<const float> values);

  // In the order of modules.
  std::vector<StrayLayer> Find() const;
  // Whether norms were trained: random weights have the same number everywhere.
  bool trained() const;

 private:
  using Values = std::map<int, std::vector<double>>;  // By layer.
  void FindSizes(const std::string& module, const Values& values, bool is_norm,
                 std::vector<StrayLayer>& found) const;
  void FindShapes(const std::string& module, const Values& profiles, std::string_view side,
                  std::vector<StrayLayer>& found) const;

  std::map<std::string, Values> sizes_;
  std::map<std::string, Values> norm_sizes_;
  std::map<std::string, Values> rows_;
  std::map<std::string, Values> columns_;
  std::map<std::string, Values> profiles_;
  std::map<std::string, std::map<int, bool>> constant_norms_;
  std::map<std::string, std::map<int, bool>> constant_vectors_;
  std::map<std::string, std::map<int, double>> signs_;    // Mean over RMS.
  std::map<std::string, std::map<int, double>> spreads_;  // About the mean.
  OddBlocks odd_blocks_;
};

}  // namespace dsv4::diag
