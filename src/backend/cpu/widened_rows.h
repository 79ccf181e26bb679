// Packed rows that several queries of a sequence see, widened once for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention_queries.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/scratch.h"

namespace dsv4::backend::cpu {

class WidenedRows {
 public:
  // Rows for the queries of one sequence, as many as see its rows several times over and as fit into memory.
  // That memory does not grow with the context. Else there are none. Rows are still to be widened. `rows`
  // holds them.
  static WidenedRows Of(const AttentionProblem& problem, std::span<const Query> queries, Scratch& rows);

  bool empty() const { return num_rows() == 0; }
  int64_t num_rows() const { return num_window_ + num_entries_; }
  // Row `i` of all; any thread may.
  void Widen(const Kernels& kernels, int64_t i) const;

  // Row of a position in some query's window, and of an entry that one sees.
  const uint8_t* Window(int64_t position) const { return rows_ + (position - window_begin_) * row_bytes_; }
  const uint8_t* Entry(int64_t entry) const {
    const int64_t place = places_.empty() ? entry : places_[static_cast<size_t>(entry)];
    return rows_ + (num_window_ + place) * row_bytes_;
  }

 private:
  const ops::AttentionSequence* sequence_ = nullptr;
  uint8_t* rows_ = nullptr;
  int64_t width_ = 0;
  int64_t row_bytes_ = 0;  // Widened.
  int64_t window_begin_ = 0;
  int64_t num_window_ = 0;
  int64_t num_entries_ = 0;
  std::vector<int32_t> places_;   // By entry, -1: no query sees it; empty: all are seen.
  std::vector<int32_t> entries_;  // By index; empty: as above.
};

}  // namespace dsv4::backend::cpu
