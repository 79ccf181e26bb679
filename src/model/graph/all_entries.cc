// Gather of entries or indexer keys from the shards of a stage, for sequences with many tokens.
#include "model/graph/all_entries.h"

#include <algorithm>
#include <numeric>

namespace dsv4::model {

Result<AllEntries> GatherEntries(const LayerStep& step, std::string_view name, kv::PageKind kind,
                                 std::span<const PassSequence> sequences) {
  const EntryShard& mine = step.context().shards.entries;
  AllEntries all;
  const int owner = kind == kv::PageKind::kEntries ? step.layer_plan().entries : step.layer_plan().keys;
  for (const PassSequence& sequence : sequences) all.sequences.push_back(sequence.state->Pages(owner, kind));
  // Packed rows travel as they are stored.
  const int64_t width = all.sequences[0].width;
  const CacheFormat format = all.sequences[0].format;
  const DType dtype = format.packed() ? DType::kU8 : format.dtype;
  const int64_t columns = format.packed() ? format.RowBytes(width) : width;
  // If shards bring equally many rows of a sequence, the rows side by side are the entries in order. A shard
  // that has one less brings a row that is never read.
  DSV4_ASSIGN_OR_RETURN(const TensorView unread, step.NewTensor(dtype, {1, columns}));
  void* const unread_page = unread.data;
  std::vector<PagedRows> sources;
  std::vector<int64_t> num_rows;  // Rows of a sequence, on each shard.
  for (size_t s = 0; s < all.sequences.size(); ++s) {
    const PassSequence& sequence = sequences[s];
    const int64_t num_entries = (sequence.first_position + sequence.num_tokens) / step.layer_plan().ratio;
    num_rows.push_back((num_entries + mine.count - 1) / mine.count);
    sources.push_back(all.sequences[s]);
    sources.back().num_rows = mine.NumRows(num_entries);
    if (sources.back().num_rows == num_rows.back()) continue;
    sources.push_back({.pages = std::span(&unread_page, 1),
                       .rows_per_page = 1,
                       .num_rows = 1,
                       .width = width,
                       .format = format});
  }
  const int64_t all_rows = std::accumulate(num_rows.begin(), num_rows.end(), int64_t{0});
  DSV4_ASSIGN_OR_RETURN(const TensorView here, step.NewTensor(dtype, {all_rows, columns}));
  DSV4_TRY(step.Run(name, step.ops().gather_rows, {.sources = sources, .rows = here}));
  const ColumnSplit split = SplitColumns(mine.count * columns, columns, static_cast<int>(mine.count));
  DSV4_ASSIGN_OR_RETURN(const TensorView gathered, GatherColumns(step, name, here, split));
  const TensorView entries = gathered.Reshaped({all_rows * mine.count, columns});
  // A sequence's entries are one page, and pages are of one size.
  const int64_t page = std::max<int64_t>(1, *std::ranges::max_element(num_rows) * mine.count);
  all.pages.resize(all.sequences.size());
  int64_t begin = 0;
  for (size_t s = 0; s < all.sequences.size(); ++s) {
    const int64_t end = begin + num_rows[s] * mine.count;
    all.pages[s] = entries.Rows(begin, end).data;
    all.sequences[s].pages = std::span(all.pages).subspan(s, 1);
    all.sequences[s].rows_per_page = page;
    all.sequences[s].num_rows = end - begin;
    begin = end;
  }
  return all;
}

}  // namespace dsv4::model
