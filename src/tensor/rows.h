// How cached rows are laid out in memory, as plain pointers: what `kv` hands to the ops.
//
// A RingRows holds the row of absolute position p at slot p mod capacity: the sliding window and the compressors' raw
// rows. A PagedRows holds entry j in page j / rows_per_page: compressed and indexer entries, which only grow.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace dsv4 {

struct RingRows {
  void* data = nullptr;  // [capacity, width], contiguous
  int64_t capacity = 0;
  int64_t width = 0;
  DType dtype = DType::kBF16;
};

struct PagedRows {
  std::span<void* const> pages;  // Each [rows_per_page, width], contiguous; borrowed for the call.
  int64_t rows_per_page = 0;
  int64_t num_rows = 0;  // Valid entries, those of this step included.
  int64_t width = 0;
  DType dtype = DType::kBF16;
};

// `num_rows` consecutive rows of the source go to consecutive rows at `destination`.
struct RowRun {
  int64_t source_begin = 0;
  int64_t num_rows = 0;
  void* destination = nullptr;
};

}  // namespace dsv4
