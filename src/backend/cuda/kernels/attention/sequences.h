// How the sequences of a step reach the kernels of attention and indexer (sequence_table.h).
#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "backend/cuda/kernels/attention/sequence_table.h"
#include "backend/cuda/lowering/select/attention.h"
#include "backend/cuda/runtime/cuda_context.h"
#include "ops/attention.h"
#include "ops/indexer_select.h"
#include "tensor/rows.h"

namespace dsv4::backend::cuda {

// What a table says of sequences beside where they are.
struct SequenceTableOptions {
  int64_t ratio = 0;  // Tokens of an entry; 0: there are none.
  EntryShard shard;   // The entries whose rows are here.
  int64_t shift = 0;  // Added to first_position.
  int64_t width = 0;  // Of a row.
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

// Stages a descriptor for each sequence that has tokens, and the tables of the pages that their queries may read.
template <typename Sequence>
Result<SequenceTable> StageSequences(CudaContext& context, std::span<const Sequence> sequences,
                                     const SequenceTableOptions& options) {
  const auto pages_of = [options](const Sequence& s) {
    const int64_t rows = options.shard.NumRows(VisibleEntries(s, options.ratio));
    return rows == 0 ? 0 : (rows + EntriesOf(s).rows_per_page - 1) / EntriesOf(s).rows_per_page;
  };
  // Of all steps of a model alike.
  const auto packed = [](const Sequence& s) {
    return EntriesOf(s).format.packed() || WindowOf(s).format.packed();
  };
  if (std::ranges::any_of(sequences, packed))
    return Error(Unimplemented("this backend takes no packed cache rows"));
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
  table.width = options.width;
  return table;
}

}  // namespace dsv4::backend::cuda
