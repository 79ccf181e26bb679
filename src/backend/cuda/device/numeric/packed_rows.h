// The release's two forms of packed cache rows, for which kernels have code of their own.
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

}  // namespace dsv4::backend::cuda
