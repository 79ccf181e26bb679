// How the sequences of a step reach the kernels of attention and indexer: one descriptor each, and the page tables of all
// behind each other.
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "tensor/rows.h"

namespace dsv4::backend::cuda {

struct SequenceRows {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  const void* ring = nullptr;  // attention: the window; null for the indexer.
  int64_t ring_capacity = 1;
  int64_t page_begin = 0;  // In `pages`.
};

struct SequenceTable {
  DeviceArray<SequenceRows> sequences;
  const void* const* pages =
      nullptr;  // Without their number, which grows with the context: launches stay alike.
  int64_t rows_per_page = 1;
  int64_t width = 0;

#ifdef __CUDACC__
  // Each has a token at least, so the one of a token is not behind its number; in a decode step, whose sequences have one each, and
  // where there is one sequence, it is the first that is looked at.
  __device__ const SequenceRows& Of(int64_t token) const {
    int64_t begin = 0;
    int64_t last = min(token, sequences.size - 1);
    if (sequences[last].token_begin <= token) return sequences[last];
    while (begin + 1 < last) {  // `begin` has begun, `last` has not.
      const int64_t middle = (begin + last) / 2;
      (sequences[middle].token_begin <= token ? begin : last) = middle;
    }
    return sequences[begin];
  }
  template <typename T>
  __device__ const T* PagedRow(const SequenceRows& sequence, int64_t row) const {
    const void* page = pages[sequence.page_begin + row / rows_per_page];
    return static_cast<const T*>(page) + row % rows_per_page * width;
  }
  template <typename T>
  __device__ const T* RingRow(const SequenceRows& sequence, int64_t position) const {
    return static_cast<const T*>(sequence.ring) + position % sequence.ring_capacity * width;
  }
#endif
};

// Collects descriptors on the host, then stages them. Sequences without tokens are left out.
class SequenceTableBuilder {
 public:
  // `num_rows`: how many paged rows the sequence's queries may read.
  void Add(SequenceRows sequence, const PagedRows& rows, int64_t num_rows) {
    if (sequence.num_tokens == 0) return;
    sequence.page_begin = static_cast<int64_t>(pages_.size());
    if (num_rows > 0) {
      rows_per_page_ = rows.rows_per_page;
      const auto num_pages = static_cast<size_t>((num_rows + rows.rows_per_page - 1) / rows.rows_per_page);
      pages_.insert(pages_.end(), rows.pages.begin(), rows.pages.begin() + static_cast<int64_t>(num_pages));
    }
    sequences_.push_back(sequence);
  }

  Result<SequenceTable> Stage(CudaContext& context, int64_t width) const {
    SequenceTable table;
    DSV4_ASSIGN_OR_RETURN(table.sequences, context.Stage(std::span<const SequenceRows>(sequences_)));
    DSV4_ASSIGN_OR_RETURN(const DeviceArray<const void*> pages,
                          context.Stage(std::span<const void* const>(pages_)));
    table.pages = pages.data;
    table.rows_per_page = rows_per_page_;
    table.width = width;
    return table;
  }

 private:
  std::vector<SequenceRows> sequences_;
  std::vector<const void*> pages_;
  int64_t rows_per_page_ = 1;
};

}  // namespace dsv4::backend::cuda
