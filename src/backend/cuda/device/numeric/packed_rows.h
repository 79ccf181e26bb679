// The releases' forms of packed cache rows, for which kernels have code of their own.
#pragma once

#include "tensor/cache_format.h"

namespace dsv4::backend::cuda {

// Offsets in a row of CacheFormat::Fp8(448, 64) and width 512, in bytes. The rest begins half as far in as it
// does in bf16.
inline constexpr int kReleaseRowWidth = 512;
inline constexpr int kReleaseRowCoded = 448;
inline constexpr int kReleaseRowGroup = 64;
inline constexpr int kReleaseRowScales = 576;
inline constexpr int kReleaseRowBytes = 592;
inline constexpr CacheFormat kReleaseRow = CacheFormat::Fp8(kReleaseRowCoded, kReleaseRowGroup);
static_assert(kReleaseRow.ScaleBegin(kReleaseRowWidth) == kReleaseRowScales &&
              kReleaseRow.RowBytes(kReleaseRowWidth) == kReleaseRowBytes);

// The same of a key, CacheFormat::Fp4(128, 32).
inline constexpr int kReleaseKeyWidth = 128;
inline constexpr int kReleaseKeyGroup = 32;
inline constexpr int kReleaseKeyScales = 64;
inline constexpr int kReleaseKeyBytes = 68;
inline constexpr CacheFormat kReleaseKey = CacheFormat::Fp4(kReleaseKeyWidth, kReleaseKeyGroup);
static_assert(kReleaseKey.ScaleBegin(kReleaseKeyWidth) == kReleaseKeyScales &&
              kReleaseKey.RowBytes(kReleaseKeyWidth) == kReleaseKeyBytes);

// Window rows and entries of V4.1, of width 512 both. Sixteen columns are a lane's.
inline constexpr int kV41RowWidth = 512;
inline constexpr CacheFormat kV41WindowRow = CacheFormat::Fp8(kV41RowWidth, 32);
inline constexpr CacheFormat kV41Entry = CacheFormat::Fp4WithE4m3Scales(kV41RowWidth, 16);
inline constexpr int kV41WindowScales = 512;  // In bytes.
inline constexpr int kV41EntryScales = 256;
static_assert(kV41WindowRow.ScaleBegin(kV41RowWidth) == kV41WindowScales &&
              kV41Entry.ScaleBegin(kV41RowWidth) == kV41EntryScales);

}  // namespace dsv4::backend::cuda
