// Packed rows of the release (kReleaseRow) in bf16 in front of attention of many tokens, which read each of
// them several times. Kernels need not widen them again. The calls are in select/attention.h.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/runtime/launch_context.h"

namespace dsv4::backend::cuda {

// Rows that queries of a sequence may read: rows of its window, and of its entries from the first on.
struct RowsRead {
  int64_t window_begin = 0;
  int64_t num_window = 0;
  int64_t num_entries = 0;
};

// Wide rows for each of `table`'s sequences, in order; all of them wide in scratch of the op that runs.
Result<SequenceTable> WidenRows(LaunchContext& context, const SequenceTable& table,
                                std::span<const SequenceRows> sequences, std::span<const RowsRead> rows);

}  // namespace dsv4::backend::cuda
