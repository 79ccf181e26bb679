// CacheFormat: how the elements of a cached row are stored, as data. A cache, the ops that read it and its
// files share this one description. formats/cache_rows.h packs and unpacks such rows.
//
// A row of `width` elements has, in this order:
//
// | part   | bytes                              | holds                                                                  |
// | codes  | CodeBytes()                        | columns [0, num_coded): e4m3, a byte each, or e2m1, two in a byte, the  |
// |        |                                    | even column in the low nibble                                          |
// | rest   | (width - num_coded) ElementBytes   | the other columns, in `dtype`                                          |
// | scales | NumScales()                        | of each `group` columns of codes a byte, e8m0 or e4m3                  |
// | zeros  | up to a multiple of `alignment`    |                                                                        |
//
// A coded element is its code times its group's scale, exact in fp32 and in bf16. A row whose elements lie on
// such a grid is stored without loss. Source: the release's rounding of cache rows (model.md 2.3 and 12); the
// other groups and scales are those of V4.1.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace dsv4 {

enum class CacheCode : uint8_t { kNone, kE4m3, kE2m1 };
enum class CacheScale : uint8_t { kE8m0, kE4m3 };

struct CacheFormat {
  DType dtype = DType::kBF16;  // Dtype of unpacked rows, and of columns without codes.
  CacheCode code = CacheCode::kNone;
  CacheScale scale = CacheScale::kE8m0;
  int64_t num_coded = 0;
  int64_t group = 0;
  int64_t alignment = 1;  // Alignment of a row's bytes.

  constexpr CacheFormat() = default;
  // Without codes. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr CacheFormat(DType element)
      : dtype(element) {}  // A dtype is a format: elements of it, one after the other.

  // The first `num_coded` columns as e4m3 with e8m0 scales, the rest as bf16: window rows and entries. Rows
  // of whole 16 bytes, what a device loads at once.
  static constexpr CacheFormat Fp8(int64_t num_coded, int64_t group) {
    return Coded(CacheCode::kE4m3, CacheScale::kE8m0, num_coded, group, 16);
  }
  // All columns as e2m1 with e8m0 scales: indexer keys.
  static constexpr CacheFormat Fp4(int64_t width, int64_t group) {
    return Coded(CacheCode::kE2m1, CacheScale::kE8m0, width, group, 4);
  }
  // All columns as e2m1 with e4m3 scales: entries of V4.1.
  static constexpr CacheFormat Fp4WithE4m3Scales(int64_t width, int64_t group) {
    return Coded(CacheCode::kE2m1, CacheScale::kE4m3, width, group, 16);
  }

  constexpr bool packed() const { return code != CacheCode::kNone; }
  constexpr int64_t CodeBytes() const { return code == CacheCode::kE2m1 ? num_coded / 2 : num_coded; }
  constexpr int64_t NumScales() const { return packed() ? num_coded / group : 0; }
  // First byte of the scales in a row.
  constexpr int64_t ScaleBegin(int64_t width) const {
    return CodeBytes() + (width - num_coded) * ElementBytes(dtype);
  }
  constexpr int64_t RowBytes(int64_t width) const {
    return (ScaleBegin(width) + NumScales() + alignment - 1) / alignment * alignment;
  }
  friend constexpr bool operator==(const CacheFormat& a, const CacheFormat& b) = default;

 private:
  static constexpr CacheFormat Coded(CacheCode code, CacheScale scale, int64_t num_coded, int64_t group,
                                     int64_t alignment) {
    CacheFormat format;
    format.code = code;
    format.scale = scale;
    format.num_coded = num_coded;
    format.group = group;
    format.alignment = alignment;
    return format;
  }
};

}  // namespace dsv4
