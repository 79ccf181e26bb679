// PagedStore: rows that only grow, in pages that copies of the store share until one of them writes
// (copy-on-write).
//
// Copying a PagedStore shares its pages. Not thread-safe: stores that share pages are used by one thread at a
// time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/rows.h"
#include "tensor/tensor.h"

namespace dsv4::kv {

class PagedStore {
 public:
  PagedStore() = default;
  PagedStore(int64_t rows_per_page, int64_t row_bytes)
      : rows_per_page_(rows_per_page), row_bytes_(row_bytes) {}

  // Makes rows [begin, end) writable: pages that are missing are allocated, shared ones are copied with their
  // rows before `begin`. Rows before `begin` keep their values. On an error the rows are as they were.
  Status Reserve(Memory& memory, Stream stream, int64_t begin, int64_t end);

  // Addresses of rows [begin, end), one run a page; source_begin counts from `source_begin`. The rows must be
  // reserved.
  void AppendRuns(int64_t begin, int64_t end, int64_t source_begin, std::vector<RowRun>* runs) const;

  std::span<void* const> pages() const { return page_data_; }

 private:
  int64_t rows_per_page_ = 0;
  int64_t row_bytes_ = 0;
  std::vector<Buffer> pages_;
  std::vector<void*> page_data_;  // The same pages, as the ops take them.
};

}  // namespace dsv4::kv
