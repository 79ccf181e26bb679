// The sequences of a step as kernels of attention and indexer see them: one descriptor each, and the page tables of all behind each other.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_array.h"

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

}  // namespace dsv4::backend::cuda
