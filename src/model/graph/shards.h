// Tensor parallelism: what the shards of a stage exchange inside a layer, and which columns each of them
// computes.
//
// The rule is "rows of weights, never columns" wherever possible. A shard computes some outputs of a linear
// from all of its inputs, and the outputs are put together. No sum is cut, so the numbers are those of one
// rank, bit for bit. Only ExpertPlacement::kByColumns cuts sums, those of w2.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "formats/weight.h"
#include "model/placement/column_split.h"
#include "tensor/tensor.h"

namespace dsv4::model {

class LayerStep;

// The shards of this rank's stage. The groups are null where a stage is one rank.
struct Shards {
  comm::Communicator* group = nullptr;  // For tensors of the backend.
  comm::Communicator* hosts =
      nullptr;                     // For numbers on the host; the same where that is the backend's memory.
  EntryShard entries;              // Entries of a sequence that this rank keeps.
  int64_t max_gathered_terms = 0;  // As in ModelOptions.

  bool alone() const { return group == nullptr; }
  bool divide_entries() const { return entries.count > 1; }
};

// A contiguous tensor as what is sent.
inline std::span<std::byte> Bytes(const TensorView& tensor) {
  return {tensor.as<std::byte>(), static_cast<size_t>(tensor.num_bytes())};
}

// Puts the shards' columns [n, their part of `split`] together: [n, split.total()]. `mine` itself where the
// stage is one rank.
Result<TensorView> GatherColumns(const LayerStep& step, std::string_view name, const TensorView& mine,
                                 const ColumnSplit& split);
// The shards' rows [num_rows[shard], width] one behind the other, of one width: [sum of num_rows, width].
Result<TensorView> GatherRows(const LayerStep& step, const TensorView& mine,
                              std::span<const int64_t> num_rows);
// The way back of GatherColumns: of `all` [n, split.total()] every shard gets its columns of all shards',
// [shards, n, its part of `split`].
Status ScatterColumns(const LayerStep& step, const TensorView& all, const ColumnSplit& split,
                      const TensorView& parts);
// This shard's part of a sum over divided columns: x W^T in F32 [n, width], 0 where it has none of `weight`.
Result<TensorView> PartOfSum(const LayerStep& step, std::string_view name, const TensorView& x,
                             const Weight& weight, int64_t width);
// Stores in y the sum of the shards' F32 parts in rank order, in the dtype of y. It has all rows, or those
// whose streams this shard keeps. `part` is used up.
Status SumShards(const LayerStep& step, std::string_view name, const TensorView& part, const TensorView& y);

}  // namespace dsv4::model
