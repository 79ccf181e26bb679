// Reservation of pages, copied where they are shared, and runs of rows that an append writes.
#include "kv/paged_store.h"

#include <algorithm>

#include "base/check.h"

namespace dsv4::kv {

Status PagedStore::Reserve(Memory& memory, Stream stream, int64_t begin, int64_t end) {
  if (begin >= end) return {};
  const size_t page_bytes = static_cast<size_t>(rows_per_page_ * row_bytes_);
  for (int64_t page = begin / rows_per_page_; page * rows_per_page_ < end; ++page) {
    const auto index = static_cast<size_t>(page);
    DSV4_CHECK(index <= pages_.size()) << "page " << page << " of " << pages_.size();
    const bool missing = index == pages_.size();
    if (!missing && pages_[index].unique()) continue;
    DSV4_ASSIGN_OR_RETURN_STATUS(Buffer fresh, memory.Allocate(page_bytes));
    const int64_t rows_kept = std::max<int64_t>(0, begin - page * rows_per_page_);
    if (!missing && rows_kept > 0) {
      DSV4_RETURN_IF_ERROR(memory.Copy(fresh.data(), pages_[index].data(),
                                       static_cast<size_t>(rows_kept * row_bytes_), stream));
    }
    if (missing) {
      // Both or neither, also where memory runs out between the two.
      if (pages_.size() == pages_.capacity()) pages_.reserve(std::max<size_t>(4, 2 * pages_.size()));
      page_data_.push_back(fresh.data());
      pages_.push_back(std::move(fresh));
    } else {
      page_data_[index] = fresh.data();
      pages_[index] = std::move(fresh);
    }
  }
  return {};
}

void PagedStore::AppendRuns(int64_t begin, int64_t end, int64_t source_begin,
                            std::vector<RowRun>* runs) const {
  for (int64_t row = begin; row < end;) {
    const int64_t page = row / rows_per_page_;
    const int64_t page_end = std::min(end, (page + 1) * rows_per_page_);
    auto* data = static_cast<std::byte*>(page_data_[static_cast<size_t>(page)]);
    runs->push_back(
        {source_begin + (row - begin), page_end - row, data + (row - page * rows_per_page_) * row_bytes_});
    row = page_end;
  }
}

}  // namespace dsv4::kv
