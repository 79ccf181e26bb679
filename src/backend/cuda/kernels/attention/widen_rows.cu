// Kernel that widens packed cache rows to bf16 in scratch, in front of attention of many tokens.
#include <algorithm>
#include <vector>

#include "backend/cuda/device/numeric/packed_rows.cuh"
#include "backend/cuda/device/sync/programmatic_launch.cuh"
#include "backend/cuda/kernels/attention/widen_rows.h"

namespace dsv4::backend::cuda {
namespace {

static_assert(kV41RowWidth == kReleaseRowWidth);
constexpr int kThreads = 256;
constexpr int kRowsOfWarp = 4;  // Asked for together.
constexpr int kRowsOfBlock = kThreads / 32 * kRowsOfWarp;

// Rows of V4.1, likewise.
__global__ void __launch_bounds__(kThreads)
    WidenRowsV41Kernel(const __grid_constant__ SequenceTable packed,
                       const __grid_constant__ SequenceTable wide, const DeviceArray<RowsRead> all_rows) {
  BeginKernel();
  const SequenceRows& from = packed.sequences[blockIdx.y];
  const SequenceRows& to = wide.sequences[blockIdx.y];
  const RowsRead rows = all_rows[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = blockIdx.x * int64_t{kRowsOfBlock} + threadIdx.x / 32 * kRowsOfWarp;
  const int64_t end = rows.num_window + rows.num_entries;
  const auto row_of = [&](const SequenceTable& table, const SequenceRows& sequence, int64_t i) {
    return i < rows.num_window ? table.RingRow<unsigned char>(sequence, rows.window_begin + i)
                               : table.PagedRow<unsigned char>(sequence, i - rows.num_window);
  };
  SixteenColumns columns[kRowsOfWarp];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (first + r < end) columns[r].Load(row_of(packed, from, first + r), first + r < rows.num_window, lane);
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (first + r >= end) break;
    uint4 both[2];
    columns[r].Widen(first + r < rows.num_window, both);
    auto* const row = reinterpret_cast<uint4*>(const_cast<unsigned char*>(row_of(wide, to, first + r)));
    row[2 * lane] = both[0];
    row[2 * lane + 1] = both[1];
  }
}

// Grid: rows, sequences.
__global__ void __launch_bounds__(kThreads)
    WidenRowsKernel(const __grid_constant__ SequenceTable packed, const __grid_constant__ SequenceTable wide,
                    const DeviceArray<RowsRead> all_rows) {
  BeginKernel();
  const SequenceRows& from = packed.sequences[blockIdx.y];
  const SequenceRows& to = wide.sequences[blockIdx.y];
  const RowsRead rows = all_rows[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = blockIdx.x * int64_t{kRowsOfBlock} + threadIdx.x / 32 * kRowsOfWarp;
  const int64_t end = rows.num_window + rows.num_entries;
  const auto row_of = [&](const SequenceTable& table, const SequenceRows& sequence, int64_t i) {
    return i < rows.num_window ? table.RingRow<unsigned char>(sequence, rows.window_begin + i)
                               : table.PagedRow<unsigned char>(sequence, i - rows.num_window);
  };
  // A lane has eight codes in front and eight behind the first 256, or a piece of what has none.
  constexpr int kSecond = 256;
  constexpr int kSecondLanes = (kReleaseRowCoded - kSecond) / 8;
  const bool has_codes = lane < kSecondLanes;
  uint2 codes[kRowsOfWarp];
  uint4 second[kRowsOfWarp];
  uint32_t scales[kRowsOfWarp][2];
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (first + r >= end) break;
    const unsigned char* const row = row_of(packed, from, first + r);
    codes[r] = *reinterpret_cast<const uint2*>(row + 8 * lane);
    scales[r][0] = row[kReleaseRowScales + lane / 8];
    if (has_codes) {
      const uint2 more = *reinterpret_cast<const uint2*>(row + kSecond + 8 * lane);
      second[r] = make_uint4(more.x, more.y, 0, 0);
      scales[r][1] = row[kReleaseRowScales + (kSecond + 8 * lane) / kReleaseRowGroup];
    } else {
      second[r] = *reinterpret_cast<const uint4*>(row + kReleaseRowCoded + 16 * (lane - kSecondLanes));
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (first + r >= end) break;
    auto* const row = reinterpret_cast<uint4*>(const_cast<unsigned char*>(row_of(wide, to, first + r)));
    row[lane] = WidenE4m3(codes[r], scales[r][0]);
    row[32 + lane] = has_codes ? WidenE4m3(make_uint2(second[r].x, second[r].y), scales[r][1]) : second[r];
  }
}

}  // namespace

Result<SequenceTable> WidenRows(LaunchContext& context, const SequenceTable& table,
                                std::span<const SequenceRows> sequences, std::span<const RowsRead> rows) {
  int64_t num_rows = 0;
  int64_t most_rows = 1;
  int64_t most_entries = 1;
  for (const RowsRead& read : rows) {
    num_rows += read.num_window + read.num_entries;
    most_rows = std::max(most_rows, read.num_window + read.num_entries);
    most_entries = std::max(most_entries, read.num_entries);
  }
  DSV4_ASSIGN_OR_RETURN(uint16_t* const memory,
                        context.Scratch<uint16_t>(std::max<int64_t>(num_rows, 1) * kReleaseRowWidth));
  // Entries of a sequence are one page.
  std::vector<SequenceRows> wide_sequences(sequences.begin(), sequences.end());
  std::vector<const void*> pages;
  uint16_t* next = memory;
  for (size_t s = 0; s < rows.size(); ++s) {
    SequenceRows& sequence = wide_sequences[s];
    sequence.ring = next;
    sequence.ring_capacity = std::max<int64_t>(rows[s].num_window, 1);
    next += rows[s].num_window * kReleaseRowWidth;
    sequence.page_begin = static_cast<int64_t>(pages.size());
    pages.push_back(next);
    next += rows[s].num_entries * kReleaseRowWidth;
  }
  SequenceTable wide = table;
  wide.form = StoredForm::kWide;
  wide.ring = wide.paged = {DType::kBF16, kReleaseRowWidth * int64_t{sizeof(uint16_t)}};
  wide.rows_per_page = most_entries;
  DSV4_ASSIGN_OR_RETURN(wide.sequences, context.Stage(std::span<const SequenceRows>(wide_sequences)));
  DSV4_ASSIGN_OR_RETURN(const DeviceArray<const void*> staged_pages,
                        context.Stage(std::span<const void* const>(pages)));
  wide.pages = staged_pages.data;
  DSV4_ASSIGN_OR_RETURN(const DeviceArray<RowsRead> staged_rows, context.Stage(rows));
  const dim3 grid(static_cast<unsigned>(CeilDiv(most_rows, int64_t{kRowsOfBlock})),
                  static_cast<unsigned>(rows.size()));
  context.Launch(table.form == StoredForm::kV41 ? WidenRowsV41Kernel : WidenRowsKernel, grid, kThreads, 0,
                 table, wide, staged_rows);
  return wide;
}

}  // namespace dsv4::backend::cuda
