// The sequences of a step as kernels of attention and indexer see them: one descriptor each, and the page
// tables of all behind each other.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_array.h"
#include "tensor/cache_format.h"

namespace dsv4::backend::cuda {

struct SequenceRows {
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  const void* ring = nullptr;  // attention: the window; null for the indexer.
  int64_t ring_capacity = 1;
  int64_t page_begin = 0;  // In `pages`.
};

// How rows are stored, for kernels that read some forms faster than others.
//   kWide     in the queries' dtype
//   kRelease  as the release rounds them (kReleaseRow, kReleaseKey of device/numeric/packed_rows.cuh)
//   kV41      as V4.1 rounds attention's (kV41WindowRow, kV41Entry)
//   kAny      any other form
enum class StoredForm : uint8_t { kWide, kRelease, kV41, kAny };

struct StoredRows {
  CacheFormat format;
  int64_t row_bytes = 0;
};

struct SequenceTable {
  DeviceArray<SequenceRows> sequences;
  const void* const* pages =
      nullptr;  // Without their number, which grows with the context: launches stay alike.
  int64_t rows_per_page = 1;
  StoredRows ring;
  StoredRows paged;
  StoredForm form = StoredForm::kWide;  // Both's.

#ifdef __CUDACC__
  // Each has a token at least, so a token's sequence is not behind its number. In a decode step each sequence
  // has one token: the first guess is right. So it is where there is one sequence.
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
  // T: elements of a row, or anything if it is packed. Rows and positions are below 2^31 (lists and steps
  // have them as int32). Dividing 32 bits is much faster than 64, and every copy of a row would wait for it.
  template <typename T>
  __device__ const T* PagedRow(const SequenceRows& sequence, int64_t row) const {
    const auto of_page = static_cast<uint32_t>(rows_per_page);
    const uint32_t page_number = static_cast<uint32_t>(row) / of_page;
    const auto* const page = static_cast<const char*>(pages[sequence.page_begin + page_number]);
    return reinterpret_cast<const T*>(page +
                                      (static_cast<uint32_t>(row) - page_number * of_page) * paged.row_bytes);
  }
  template <typename T>
  __device__ const T* RingRow(const SequenceRows& sequence, int64_t position) const {
    const uint32_t slot = static_cast<uint32_t>(position) % static_cast<uint32_t>(sequence.ring_capacity);
    return reinterpret_cast<const T*>(static_cast<const char*>(sequence.ring) + slot * ring.row_bytes);
  }
#endif
};

#ifdef __CUDACC__
// How many entries a token sees.
__device__ inline int64_t NumVisible(const SequenceRows& sequence, int64_t token, int64_t ratio) {
  return (sequence.first_position + token - sequence.token_begin + 1) / ratio;
}
#endif

}  // namespace dsv4::backend::cuda
