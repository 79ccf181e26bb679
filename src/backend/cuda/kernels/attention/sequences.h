// How the sequences of a step reach the kernels of attention and indexer (device/numeric/sequence_table.h).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/device/numeric/packed_rows.h"
#include "backend/cuda/device/numeric/sequence_table.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/attention.h"
#include "ops/indexer_select.h"
#include "tensor/rows.h"

namespace dsv4::backend::cuda {

// Options for what a table says of sequences beside where they are.
struct SequenceTableOptions {
  int64_t ratio = 0;           // Tokens of an entry; 0: there are none.
  EntryShard shard;            // The entries whose rows are here.
  int64_t shift = 0;           // Added to first_position.
  int64_t width = 0;           // A row's,
  DType dtype = DType::kBF16;  // and what it is read as: that of the queries.
};

inline const PagedRows& EntriesOf(const ops::AttentionSequence& sequence) { return sequence.entries; }
inline const PagedRows& EntriesOf(const ops::IndexerSequence& sequence) { return sequence.keys; }
inline RingRows WindowOf(const ops::AttentionSequence& sequence) { return sequence.window; }
inline RingRows WindowOf(const ops::IndexerSequence&) {
  return {.data = nullptr, .capacity = 1, .width = 0, .format = {}};
}

// How many entries the sequence's queries may see.
template <typename Sequence>
int64_t VisibleEntries(const Sequence& sequence, int64_t ratio) {
  return ratio == 0 ? 0 : (sequence.first_position + sequence.num_tokens) / ratio;
}

// The most entries that a query of the step may see.
template <typename Sequence>
int64_t MostVisible(std::span<const Sequence> sequences, int64_t ratio) {
  int64_t most = 0;
  for (const Sequence& s : sequences) {
    if (s.num_tokens > 0) most = std::max(most, VisibleEntries(s, ratio));
  }
  return most;
}

// How rows of sequences are stored, which is the same in all steps of a model. It has the formats of windows
// and of entries, and the form of both together.
struct StoredForms {
  CacheFormat window;
  CacheFormat entries;
  StoredForm form = StoredForm::kWide;
};
template <typename Sequence>
Result<StoredForms> FormsOf(std::span<const Sequence> sequences, const SequenceTableOptions& options) {
  StoredForms forms = {.window = options.dtype, .entries = options.dtype};
  int num_windows = 0;
  int num_entries = 0;
  const auto take = [](CacheFormat& all, int& count, const CacheFormat& format) {
    const bool same = count == 0 || all == format;
    all = format;
    ++count;
    return same;
  };
  for (const Sequence& s : sequences) {
    if (s.num_tokens == 0) continue;
    if ((WindowOf(s).data != nullptr && !take(forms.window, num_windows, WindowOf(s).format)) ||
        (options.ratio > 0 && !take(forms.entries, num_entries, EntriesOf(s).format))) {
      return Error(Unimplemented("this backend takes rows of all sequences in one format"));
    }
  }
  if (!forms.window.packed() && !forms.entries.packed()) return forms;
  const auto is_release = [&](const CacheFormat& format, int count) {
    return count == 0 || (options.width == kReleaseRowWidth && format == kReleaseRow) ||
           (options.width == kReleaseKeyWidth && format == kReleaseKey);
  };
  const bool is_v41 = options.width == kV41RowWidth && (num_windows == 0 || forms.window == kV41WindowRow) &&
                      (num_entries == 0 || forms.entries == kV41Entry);
  if (is_release(forms.window, num_windows) && is_release(forms.entries, num_entries)) {
    forms.form = StoredForm::kRelease;
  } else {
    forms.form = is_v41 ? StoredForm::kV41 : StoredForm::kAny;
  }
  return forms;
}

// Stages a descriptor for each sequence that has tokens, and the tables of the pages that their queries may
// read.
template <typename Sequence>
Result<SequenceTable> StageSequences(CudaContext& context, std::span<const Sequence> sequences,
                                     const SequenceTableOptions& options) {
  const auto pages_of = [options](const Sequence& s) {
    const int64_t rows = options.shard.NumRows(VisibleEntries(s, options.ratio));
    return rows == 0 ? 0 : (rows + EntriesOf(s).rows_per_page - 1) / EntriesOf(s).rows_per_page;
  };
  DSV4_ASSIGN_OR_RETURN(const StoredForms forms, FormsOf(sequences, options));
  SequenceTable table;
  DSV4_ASSIGN_OR_RETURN(
      table.sequences,
      context.StageFrom<SequenceRows>(
          sequences, [options, pages_of](std::span<const Sequence> all, std::vector<SequenceRows>* rows) {
            int64_t page_begin = 0;
            for (const Sequence& s : all) {
              if (s.num_tokens == 0) continue;
              const RingRows window = WindowOf(s);
              rows->push_back({.token_begin = s.token_begin,
                               .num_tokens = s.num_tokens,
                               .first_position = s.first_position + options.shift,
                               .ring = window.data,
                               .ring_capacity = std::max<int64_t>(window.capacity, 1),
                               .page_begin = page_begin});
              page_begin += pages_of(s);
            }
          }));
  DSV4_ASSIGN_OR_RETURN(const DeviceArray<const void*> pages,
                        context.StageFrom<const void*>(
                            sequences,
                            [pages_of](std::span<const Sequence> all, std::vector<const void*>* pages) {
                              for (const Sequence& s : all) {
                                if (s.num_tokens == 0) continue;
                                const auto first = EntriesOf(s).pages.begin();
                                pages->insert(pages->end(), first, first + pages_of(s));
                              }
                            },
                            StagedGrowth::kInSteps));
  table.pages = pages.data;
  table.rows_per_page = context.NumberFrom(sequences, [pages_of](std::span<const Sequence> all) {
    int64_t rows_per_page = 1;
    for (const Sequence& s : all) {
      if (s.num_tokens > 0 && pages_of(s) > 0) rows_per_page = EntriesOf(s).rows_per_page;
    }
    return rows_per_page;
  });
  table.ring = {forms.window, forms.window.RowBytes(options.width)};
  table.paged = {forms.entries, forms.entries.RowBytes(options.width)};
  table.form = forms.form;
  return table;
}

}  // namespace dsv4::backend::cuda
