// Cached rows as the kernels of attention and indexer read them: where they lie, and packed ones widened.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"
#include "tensor/rows.h"

namespace dsv4::backend::cpu {

inline const uint8_t* RingRow(const RingRows& ring, int64_t position) {
  return static_cast<const uint8_t*>(ring.data) + position % ring.capacity * ring.RowBytes();
}
inline const uint8_t* PagedRow(const PagedRows& rows, int64_t index) {
  return static_cast<const uint8_t*>(rows.pages[static_cast<size_t>(index / rows.rows_per_page)]) +
         index % rows.rows_per_page * rows.RowBytes();
}
// Pointers to rows [first, first + count), without a division for each.
void PagedRowPointers(const PagedRows& rows, int64_t first, int64_t count, const uint8_t** pointers);

// Asks for a row that is wanted soon.
inline void Prefetch(const uint8_t* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(row + i);
}

// A packed row (formats/cache_rows.h) as `width` elements of format.dtype, exactly.
void WidenRow(const Kernels& kernels, const CacheFormat& format, int64_t width, const uint8_t* row,
              uint8_t* out);

}  // namespace dsv4::backend::cpu
