// Rows in their packed form (tensor/cache_format.h), with the bytes of formats/cache_rows.h: values on a
// format's grid become codes and scales, without rounding. A value that is not on it is a fault.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "tensor/cache_format.h"

namespace dsv4::backend::cuda {

// The e8m0 code of the smallest power of two of which the largest code's value times it is at least
// `largest`, which is not negative.
__device__ __forceinline__ uint32_t SmallestE8m0(float largest, CacheCode code) {
  if (largest == 0.0F) return 127;
  // 448 is 1.75 * 2^8, 6 is 1.5 * 2^2: what is larger than that times a power of two has the next.
  const uint32_t bits = __float_as_uint(largest);
  const int power = code == CacheCode::kE4m3 ? static_cast<int>((bits + 0x1FFFFFU) >> 23) - 8
                                             : static_cast<int>((bits + 0x3FFFFFU) >> 23) - 2;
  return static_cast<uint32_t>(min(max(power, 0), 254));
}

// 1 / scale.
__device__ __forceinline__ float InverseOfE8m0(uint32_t e8m0) {
  return __uint_as_float(e8m0 == 254 ? 0x00400000U : (254 - e8m0) << 23);
}

// The code of a value over its group's scale, of which `inverse` is the reciprocal; `fits`: it has one. NaN
// has one.
__device__ __forceinline__ uint32_t E4m3Code(float value, float inverse, bool& fits) {
  if (isnan(value)) return 0x7FU | __float_as_uint(value) >> 31 << 7;
  const float scaled = value * inverse;
  const uint32_t code = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
  fits = fits && FromE4m3(static_cast<uint8_t>(code)) == scaled;
  return code;
}
// The same of a value that has been divided already, and is no NaN.
__device__ __forceinline__ uint32_t E2m1Code(float scaled, bool& fits) {
  const float magnitude = fabsf(scaled);
  fits = fits && RoundToE2m1(scaled) == scaled;
  const uint32_t bits = __float_as_uint(magnitude);
  const uint32_t code = magnitude < 1.0F ? static_cast<uint32_t>(magnitude * 2.0F)
                                         : ((bits >> 23) - 126U) << 1 | (bits >> 22 & 1U);
  return (code & 7U) | __float_as_uint(scaled) >> 31 << 3;
}

// A group of any format, by one thread, to its bytes in `row`: the columns of `group`, which value_at gives.
// The first column that does not fit, or -1.
template <typename ValueAt>
__device__ int PackGroup(const CacheFormat& format, int group, int width, const ValueAt& value_at,
                         unsigned char* row) {
  const auto count = static_cast<int>(format.group);
  const int first = group * count;
  const bool e4m3 = format.code == CacheCode::kE4m3;
  unsigned char& scale = row[format.ScaleBegin(width) + group];
  float largest = 0.0F;
  int first_nan = -1;
  int first_number = -1;
  for (int i = 0; i < count; ++i) {
    const float magnitude = fabsf(value_at(first + i));
    if (isnan(magnitude)) {
      if (first_nan < 0) first_nan = i;
    } else {
      if (first_number < 0) first_number = i;
      if (isfinite(magnitude)) largest = fmaxf(largest, magnitude);
    }
  }
  // The first column whose value has no code, or -1.
  const auto encode = [&](float inverse, auto&& scaled_by) {
    for (int i = 0; i < count; ++i) {
      bool fits = true;
      const float value = value_at(first + i);
      if (e4m3) {
        row[first + i] = static_cast<unsigned char>(E4m3Code(value, inverse, fits));
      } else {
        const uint32_t code = E2m1Code(scaled_by(value), fits);
        unsigned char& two = row[(first + i) / 2];
        two = static_cast<unsigned char>(i % 2 == 0 ? code : two | code << 4);
      }
      if (!fits) return first + i;
    }
    return -1;
  };
  if (!e4m3 && first_nan >= 0) {
    if (first_number >= 0) return first + first_number;
    scale = format.scale == CacheScale::kE8m0 ? 255 : 0x7F;
    for (int i = 0; i < count / 2; ++i) row[first / 2 + i] = 0;
    return -1;
  }
  if (format.scale == CacheScale::kE8m0) {
    const uint32_t e8m0 = SmallestE8m0(largest, format.code);
    scale = static_cast<unsigned char>(e8m0);
    const float inverse = InverseOfE8m0(e8m0);
    return encode(inverse, [&](float value) { return value * inverse; });
  }
  if (largest == 0.0F) {
    scale = __nv_cvt_float_to_fp8(1.0F, __NV_NOSAT, __NV_E4M3);
    return encode(1.0F, [](float value) { return value; });
  }
  // The largest value is some code times the scale, which tells the scale if the code is known.
  int best = first;
  for (int code = 7; code >= 1; --code) {
    const float magnitude = code < 2 ? 0.5F : __uint_as_float((code / 2 + 126U) << 23 | (code % 2U) << 22);
    const uint8_t of_code = __nv_cvt_float_to_fp8(largest / magnitude, __NV_NOSAT, __NV_E4M3);
    const float value = FromE4m3(of_code);
    if (value == 0.0F ||
        static_cast<double>(value) * static_cast<double>(magnitude) != static_cast<double>(largest)) {
      continue;
    }
    scale = of_code;
    // A value on the grid over the scale is exact.
    const int bad = encode(1.0F, [&](float v) {
      const float quotient = v / value;
      return static_cast<double>(quotient) * static_cast<double>(value) == static_cast<double>(v) ? quotient
                                                                                                  : INFINITY;
    });
    if (bad < 0) return -1;
    best = max(best, bad);
  }
  return best;
}

// A row of any format by `num_threads` threads, of which this is one, of rows of bf16 that value_at gives.
template <typename ValueAt>
__device__ void PackRowBy(int thread, int num_threads, const CacheFormat& format, int width,
                          const ValueAt& value_at, unsigned char* to, int64_t row, Fault* fault) {
  for (int group = thread; group < format.NumScales(); group += num_threads) {
    const int bad = PackGroup(format, group, width, value_at, to);
    if (bad >= 0) ReportFault(fault, FaultKind::kCacheRow, row, bad, __float_as_uint(value_at(bad)), 0);
  }
  const auto coded = static_cast<int>(format.num_coded);
  auto* const rest = reinterpret_cast<uint16_t*>(to + format.CodeBytes());
  for (int i = coded + thread; i < width; i += num_threads)
    rest[i - coded] = static_cast<uint16_t>(__float_as_uint(value_at(i)) >> 16);
  const auto end = static_cast<int>(format.ScaleBegin(width) + format.NumScales());
  for (int i = end + thread; i < format.RowBytes(width); i += num_threads) to[i] = 0;
}

}  // namespace dsv4::backend::cuda
