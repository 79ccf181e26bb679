// Bounded store of packed cache rows that several queries see, widened once for all of them.
#include "backend/cpu/widened_rows.h"

#include <algorithm>

#include "backend/cpu/cached_rows.h"

namespace dsv4::backend::cpu {
namespace {

constexpr size_t kMinQueries = 8;  // Fewer are a group or two, which widen what they see themselves.
constexpr int64_t kMaxBytes = int64_t{64} << 20;

}  // namespace

WidenedRows WidenedRows::Of(const AttentionProblem& problem, std::span<const Query> queries, Scratch& rows) {
  const ops::AttentionSequence& sequence = *queries[0].sequence;
  const bool window = problem.window_size > 0;
  const bool entries = problem.ratio > 0;
  if (queries.size() < kMinQueries || (window && !sequence.window.format.packed()) ||
      (entries && !sequence.entries.format.packed())) {
    return {};
  }
  WidenedRows widened;
  widened.sequence_ = &sequence;
  widened.width_ = problem.q.shape[2];
  widened.row_bytes_ = widened.width_ * ElementBytes(problem.q.dtype);
  if (window) {
    widened.window_begin_ = queries.front().window_begin;
    widened.num_window_ = queries.back().window_end - widened.window_begin_;
  }
  int64_t num_seen = 0;    // Every entry as often as a query sees it.
  int64_t first_seen = 0;  // Entries that some query sees all of, from the first.
  int64_t past_seen = 0;
  for (const Query& query : queries) {
    num_seen += query.num_entries;
    if (query.num_entries == 0) continue;
    if (query.chosen.empty()) first_seen = std::max(first_seen, query.num_entries);
    past_seen =
        std::max(past_seen, query.chosen.empty() ? query.num_entries : int64_t{query.chosen.back()} + 1);
  }
  widened.num_entries_ = past_seen;
  if (first_seen < past_seen) {
    std::vector<int32_t>& places = widened.places_;
    places.assign(static_cast<size_t>(past_seen), -1);
    std::fill_n(places.begin(), first_seen, 0);
    for (const Query& query : queries) {
      for (const int32_t entry : query.chosen) places[static_cast<size_t>(entry)] = 0;
    }
    for (int64_t entry = 0; entry < past_seen; ++entry) {
      int32_t& place = places[static_cast<size_t>(entry)];
      if (place < 0) continue;
      place = static_cast<int32_t>(widened.entries_.size());
      widened.entries_.push_back(static_cast<int32_t>(entry));
    }
    widened.num_entries_ = static_cast<int64_t>(widened.entries_.size());
  }
  // Else nothing is gained, or the memory that is read again costs as much as the widening.
  if (widened.num_rows() * widened.row_bytes_ > kMaxBytes ||
      (widened.num_window_ == 0 && num_seen < 2 * widened.num_entries_)) {
    return {};
  }
  widened.rows_ = rows.Get(widened.num_rows() * widened.row_bytes_);
  return widened;
}

void WidenedRows::Widen(const Kernels& kernels, int64_t i) const {
  uint8_t* const to = rows_ + i * row_bytes_;
  if (i < num_window_) {
    return WidenRow(kernels, sequence_->window.format, width_, RingRow(sequence_->window, window_begin_ + i),
                    to);
  }
  const int64_t place = i - num_window_;
  const int64_t entry = entries_.empty() ? place : entries_[static_cast<size_t>(place)];
  WidenRow(kernels, sequence_->entries.format, width_, PagedRow(sequence_->entries, entry), to);
}

}  // namespace dsv4::backend::cpu
