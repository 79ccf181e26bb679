// Pointers to paged cache rows, and a packed row widened to the numbers that kernels multiply.
#include "backend/cpu/cached_rows.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "formats/cache_rows.h"
#include "formats/number_formats.h"

namespace dsv4::backend::cpu {

void PagedRowPointers(const PagedRows& rows, int64_t first, int64_t count, const uint8_t** pointers) {
  const int64_t row_bytes = rows.RowBytes();
  while (count > 0) {
    const int64_t here = std::min(count, rows.rows_per_page - first % rows.rows_per_page);
    const uint8_t* row = PagedRow(rows, first);
    for (int64_t i = 0; i < here; ++i, row += row_bytes) *pointers++ = row;
    first += here;
    count -= here;
  }
}

void WidenRow(const Kernels& kernels, const CacheFormat& format, int64_t width, const uint8_t* row,
              uint8_t* out) {
  if (format.dtype == DType::kF32) {
    // No model rounds fp32 rows, so nothing fast is needed.
    return UnpackRow(format, reinterpret_cast<const std::byte*>(row),
                     std::span(reinterpret_cast<float*>(out), static_cast<size_t>(width)));
  }
  constexpr int64_t kMostScales = 64;  // At a time.
  std::array<float, kMostScales> scales;
  const uint8_t* const codes_of_scales = row + format.ScaleBegin(width);
  const bool e4m3 = format.code == CacheCode::kE4m3;
  for (int64_t first = 0; first < format.NumScales(); first += kMostScales) {
    const int64_t count = std::min(kMostScales, format.NumScales() - first);
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t code = codes_of_scales[first + i];
      scales[static_cast<size_t>(i)] =
          format.scale == CacheScale::kE8m0 ? FloatFromE8m0(code) : FloatFromE4m3(code);
    }
    const int64_t column = first * format.group;
    const auto widen = e4m3 ? kernels.rows.widen_e4m3 : kernels.rows.widen_e2m1;
    widen(row + (e4m3 ? column : column / 2), scales.data(), count, format.group, out + 2 * column);
  }
  const int64_t rest = width - format.num_coded;
  if (rest > 0)
    std::memcpy(out + 2 * format.num_coded, row + format.CodeBytes(), static_cast<size_t>(2 * rest));
}

}  // namespace dsv4::backend::cpu
