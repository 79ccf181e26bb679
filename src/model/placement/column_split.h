// Columns and rows that shards of a stage divide: where each shard's part begins.
#pragma once

#include <cstdint>
#include <vector>

#include "model/placement/placement.h"

namespace dsv4::model {

// Offsets at which every shard's part of some columns begins, and their total: num_shards + 1 numbers.
struct ColumnSplit {
  std::vector<int64_t> begins;

  int64_t total() const { return begins.empty() ? 0 : begins.back(); }
  Range Of(int shard) const {
    return {begins[static_cast<size_t>(shard)], begins[static_cast<size_t>(shard) + 1]};
  }
};

// How many of `num_rows` rows each shard has where they are divided evenly, in order.
inline std::vector<int64_t> EvenRows(int64_t num_rows, int num_shards) {
  std::vector<int64_t> rows;
  for (int shard = 0; shard < num_shards; ++shard)
    rows.push_back(PartOf(num_rows, 1, shard, num_shards).size());
  return rows;
}

// [0, count) cut at multiples of `unit` (PartOf), each number times `width`.
inline ColumnSplit SplitColumns(int64_t count, int64_t unit, int num_shards, int64_t width = 1) {
  ColumnSplit split;
  for (int shard = 0; shard < num_shards; ++shard)
    split.begins.push_back(PartOf(count, unit, shard, num_shards).begin * width);
  split.begins.push_back(count * width);
  return split;
}

}  // namespace dsv4::model
