// Blocks of FP8 weights that share a scale, and the one whose size says that its scale is wrong.
//
// Codes say nothing of their scale. But blocks of one tensor are nearly of one size. How nearly, the same module of all layers says. A row,
// a column or a single block may be off by a power of two. Where no other layer has a third of that, its scale is wrong. A row or column of
// blocks that leads all others by far is told without other layers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "diag/checks/tensors/stray.h"
#include "formats/weight.h"

namespace dsv4::diag {

// Sums of squares of each block, from the weight's rows in their order.
class BlockSquares {
 public:
  explicit BlockSquares(const Weight& weight);
  void AddRow(std::span<const float> row);

  int64_t block_rows = 1;
  int64_t block_cols = 1;
  size_t num_columns = 1;       // Count of blocks side by side.
  std::vector<double> squares;  // Row by row.

 private:
  int64_t num_rows_ = 0;
};

class OddBlocks {
 public:
  // With the logarithms of the squares of rows and columns.
  void Add(int layer, const std::string& module, std::span<const double> rows,
           std::span<const double> columns, const BlockSquares& blocks);
  std::vector<StrayLayer> Find() const;

 private:
  // Sizes of blocks in logarithms, less those of all others, by layer.
  struct Offsets {
    int64_t size = 0;  // Rows or columns of a block.
    std::map<int, std::vector<double>> by_layer;
  };
  void AddSide(int layer, const std::string& module, std::span<const double> logs, int64_t size, int side);
  void FindLead(int layer, const std::string& module, std::span<const double> sizes, int64_t size, int side);

  std::map<std::string, Offsets> sides_[3];  // Rows, columns, single blocks.
  std::vector<StrayLayer> leads_;
};

}  // namespace dsv4::diag
