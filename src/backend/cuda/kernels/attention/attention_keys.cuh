// Which keys a query sees, for every attention kernel: window positions in order, then entries in order,
// numbered from 0.
#pragma once

#include "backend/cuda/lowering/work/attention_params.h"

namespace dsv4::backend::cuda {

// Locations of the keys, for code that knows how many there are.
struct KeyRows {
  const SequenceTable& table;
  const SequenceRows& sequence;
  const int32_t* rows;  // The entries', by number; null: all of them.
  int64_t window_begin;
  int64_t num_window;
  int64_t num_keys;

  template <typename T>
  __device__ const T* Row(int64_t key) const {
    return RowAt<T>(key, Place(key));
  }
  // The same in two steps, each of which may wait for memory: which position or entry it is, and where that
  // lies.
  __device__ int64_t Place(int64_t key) const {
    if (key < num_window) return window_begin + key;
    const int64_t i = key - num_window;
    return rows == nullptr ? i : rows[i];
  }
  template <typename T>
  __device__ const T* RowAt(int64_t key, int64_t place) const {
    return key < num_window ? table.RingRow<T>(sequence, place) : table.PagedRow<T>(sequence, place);
  }
  // How its row is stored.
  __device__ const CacheFormat& FormatOf(int64_t key) const {
    return key < num_window ? table.ring.format : table.paged.format;
  }

 protected:
  __device__ KeyRows(const SequenceTable& table, int64_t token) : table(table), sequence(table.Of(token)) {}
};

struct VisibleKeys : KeyRows {
  __device__ VisibleKeys(const SequenceTable& table, const AttentionParams& p, int64_t token)
      : KeyRows(table, token) {
    const int64_t position = sequence.first_position + token - sequence.token_begin;
    window_begin = position + 1 > p.window_size ? position + 1 - p.window_size : 0;
    num_window = position + 1 - window_begin;
    rows = p.entries == nullptr ? nullptr : p.entries + token * p.top_k;
    int64_t num_entries = 0;
    if (p.ratio != 0) {
      num_entries = (position + 1) / p.ratio;
      if (rows != nullptr) {
        num_entries = p.num_entries != nullptr ? int64_t{p.num_entries[token]} : min(num_entries, p.top_k);
      }
    }
    num_keys = num_window + num_entries;
  }
};

}  // namespace dsv4::backend::cuda
