// How the sequences of a step reach the kernels of attention and indexer (sequence_table.h).
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "tensor/rows.h"

namespace dsv4::backend::cuda {

// Collects descriptors on the host, then stages them. Sequences without tokens are left out.
class SequenceTableBuilder {
 public:
  // `num_rows`: how many paged rows the sequence's queries may read.
  void Add(SequenceRows sequence, const PagedRows& rows, int64_t num_rows) {
    if (sequence.num_tokens == 0) return;
    packed_ = packed_ || rows.format.packed();
    sequence.page_begin = static_cast<int64_t>(pages_.size());
    if (num_rows > 0) {
      rows_per_page_ = rows.rows_per_page;
      const auto num_pages = static_cast<size_t>((num_rows + rows.rows_per_page - 1) / rows.rows_per_page);
      pages_.insert(pages_.end(), rows.pages.begin(), rows.pages.begin() + static_cast<int64_t>(num_pages));
    }
    sequences_.push_back(sequence);
  }

  Result<SequenceTable> Stage(CudaContext& context, int64_t width) const {
    if (packed_) return Error(Unimplemented("this backend takes no packed cache rows"));
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
  bool packed_ = false;
};

}  // namespace dsv4::backend::cuda
