// The steps of lowering/work/rows.h on a row of bf16 that lies in the registers of a block. A thread has the
// columns that row_steps.cuh gives it, in the same order. So the bits are the same. Few tokens go through a
// launch's code once, so it is short, and only sums and maxima that cross warps meet at a barrier.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/device/numeric/packed_rows.h"
#include "backend/cuda/kernels/rows/pack_rows.cuh"
#include "backend/cuda/kernels/rows/row_steps.cuh"

namespace dsv4::backend::cuda {

// The largest of values that are not negative, over a warp.
__device__ __forceinline__ float LargestOfWarp(float value) {
  return __uint_as_float(__reduce_max_sync(kWholeWarp, __float_as_uint(value)));
}
// |value|, or 0 of a NaN.
__device__ __forceinline__ float MagnitudeOf(float value) { return fmaxf(0.0F, fabsf(value)); }

// 1 / scale of a PowerOfTwoScale between 2^-126 and 2^126, or infinity: a product with it gives the bits of
// the quotient.
__device__ __forceinline__ float InverseOf(float scale) {
  const int exponent = static_cast<int>(__float_as_uint(scale) >> 23);
  return __uint_as_float(static_cast<uint32_t>(max(254 - exponent, 0)) << 23);
}

// The codes of two, the first in the lower byte, and what they stand for.
__device__ __forceinline__ uint32_t E4m3Pair(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float2 FromE4m3Pair(uint32_t codes) {
  return __half22float2(
      __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3)));
}

// Thread t has columns t + k * kThreads. Every step but Load and Write is for whole blocks, and none is
// called twice.
class RegisterRow {
 public:
  static constexpr int kThreads = kNarrowRowThreads;
  // Columns outside the row are 0.
  using Values = float[kRegisterColumns];

  __device__ explicit RegisterRow(int width) : width_(width) {}

  __device__ static int Column(int k) { return static_cast<int>(threadIdx.x) + k * kThreads; }

  __device__ void Load(const uint16_t* data) {
    uint16_t bits[kRegisterColumns];
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) bits[k] = Column(k) < width_ ? data[Column(k)] : uint16_t{0};
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      values_[k] = __uint_as_float(static_cast<uint32_t>(bits[k]) << 16);
  }
  __device__ void Fill(const Values& values) {
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) values_[k] = values[k];
  }
  __device__ static void LoadWeights(Values& weights, const float* weight, int width) {
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) weights[k] = Column(k) < width ? weight[Column(k)] : 0.0F;
  }
  __device__ void Write(uint16_t* data) const {
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (Column(k) < width_) data[Column(k)] = static_cast<uint16_t>(__float_as_uint(values_[k]) >> 16);
    }
  }

  // RmsNormRow.
  __device__ void RmsNorm(const Values& weights, float eps) {
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      sum += static_cast<double>(values_[k]) * static_cast<double>(values_[k]);
    const double factor = 1.0 / sqrt(MeanOf(RowSum<kThreads>(sum), width_) + static_cast<double>(eps));
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      values_[k] =
          RowValue(static_cast<double>(values_[k]) * (factor * static_cast<double>(weights[k])), true);
  }

  // HeadRmsNormRow: products of two bf16 are exact in fp32.
  __device__ void HeadRmsNorm(float eps) {
    double sum = 0.0;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      sum += static_cast<double>(RoundToBf16(values_[k] * values_[k]));
    const double mean = HeldIn(MeanOf(RowSum<kThreads>(sum), width_), true);
    const double shifted = HeldIn(mean + static_cast<double>(eps), true);
    const auto factor = static_cast<float>(HeldIn(1.0 / sqrt(shifted), true));
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) values_[k] = RoundToBf16(values_[k] * factor);
  }

  // RopeRow of the last 2 * num_frequencies columns, which are the threads' columns of one k. `rotation`: of
  // the pair that the thread's one belongs to; neighbours have a pair.
  __device__ void Rope(double2 rotation, int num_frequencies) {
    const int begin = width_ - 2 * num_frequencies;
    const int of = begin / kThreads;
    float value = values_[0];
#pragma unroll
    for (int k = 1; k < kRegisterColumns; ++k) value = k == of ? values_[k] : value;
    const auto mine = static_cast<double>(value);
    const auto other = static_cast<double>(__shfl_xor_sync(kWholeWarp, value, 1));
    const double turned = other * rotation.y;
    value = RowValue(mine * rotation.x + (threadIdx.x % 2 != 0 ? turned : -turned), true);
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (k == of && Column(k) >= begin && Column(k) < width_) values_[k] = value;
    }
  }

  // SimulateFp8Row by groups of kRegisterGroup columns.
  __device__ void SimulateFp8(int num_columns) {
    constexpr int kWarps = kThreads / 32;
    static_assert(kRegisterColumns == 4 && kRegisterGroup == 64);
    __shared__ float4 largest[kWarps];
    Values max;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k)
      max[k] = LargestOfWarp(Column(k) < num_columns ? MagnitudeOf(values_[k]) : 0.0F);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) largest[warp] = make_float4(max[0], max[1], max[2], max[3]);
    __syncthreads();
    const float4 others = largest[warp ^ 1];
    const Values other = {others.x, others.y, others.z, others.w};
    Values scale;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      largest_[k] = fmaxf(max[k], other[k]);
      scale[k] = Fp8GroupScale(largest_[k]);
    }
    // The largest value stays it when it is rounded.
    num_largest_ = num_columns;
    largest_group_ = kRegisterGroup;
    uint32_t grid_codes[kRegisterColumns / 2];
    uint32_t most_codes[kRegisterColumns / 2];
#pragma unroll
    for (int k = 0; k < kRegisterColumns; k += 2) {
      const float inverse = InverseOf(scale[k]);
      const float next = InverseOf(scale[k + 1]);
      grid_codes[k / 2] = E4m3Pair(values_[k] * inverse, values_[k + 1] * next);
      most_codes[k / 2] = E4m3Pair(largest_[k] * inverse, largest_[k + 1] * next);
      const float2 grid = FromE4m3Pair(grid_codes[k / 2]);
      const float2 most = FromE4m3Pair(most_codes[k / 2]);
      Keep(k, num_columns, grid.x * scale[k]);
      Keep(k + 1, num_columns, grid.y * scale[k + 1]);
      largest_[k] = most.x * scale[k];
      largest_[k + 1] = most.y * scale[k + 1];
    }
    simulated_ = {.codes = __byte_perm(grid_codes[0], grid_codes[1], 0x5410),
                  .scales = __float_as_uint(scale[0]) >> 23 | __float_as_uint(scale[1]) >> 15 |
                            __float_as_uint(scale[2]) >> 7 | __float_as_uint(scale[3]) << 1};
    most_ = __byte_perm(most_codes[0], most_codes[1], 0x5410);
  }

  // The same by groups of kRegisterWarpGroup columns, which are a warp's.
  __device__ void SimulateFp8OfWarps(int num_columns) {
    num_largest_ = num_columns;
    largest_group_ = kRegisterWarpGroup;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      const float max = LargestOfWarp(Column(k) < num_columns ? MagnitudeOf(values_[k]) : 0.0F);
      const float scale = Fp8GroupScale(max);
      const float inverse = InverseOf(scale);
      Keep(k, num_columns, RoundToE4m3(values_[k] * inverse) * scale);
      largest_[k] = RoundToE4m3(max * inverse) * scale;
    }
  }

  // RoundFp4Row by groups of `group` columns: a warp's or half a warp's.
  __device__ void RoundFp4(int group, CacheScale kind) {
    num_largest_ = 0;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (k * kThreads >= width_) break;
      float max = MagnitudeOf(values_[k]);
      int has_nan = isnan(values_[k]) ? 1 : 0;
#pragma unroll 1
      for (int offset = group / 2; offset > 0; offset /= 2) {
        max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
        has_nan |= __shfl_xor_sync(kWholeWarp, has_nan, offset);
      }
      values_[k] = RoundToBf16(RoundToFp4Grid(values_[k], Fp4GroupScale(max, kind), has_nan != 0));
    }
  }

  // HadamardFp4Row of kRegisterHadamard columns: 32 of them meet in a warp, then the four warps.
  __device__ void HadamardFp4() {
    num_largest_ = 0;
    static_assert(kRegisterHadamard == kThreads && kThreads == 4 * 32);
    __shared__ double of_warps[kThreads];
    const int t = static_cast<int>(threadIdx.x);
    auto wide = static_cast<double>(values_[0]);
#pragma unroll 1
    for (int half = 1; half < 32; half *= 2) {
      const double other = __shfl_xor_sync(kWholeWarp, wide, half);
      wide = (t & half) != 0 ? other - wide : wide + other;
    }
    of_warps[t] = wide;
    __syncthreads();
    const double* const place = of_warps + t % 32;
    const double second = place[32];
    const double fourth = place[96];
    const bool minus_32 = (t & 32) != 0;
    const double low = place[0] + (minus_32 ? -second : second);
    const double high = place[64] + (minus_32 ? -fourth : fourth);
    const double factor = 1.0 / sqrt(static_cast<double>(kRegisterHadamard));
    const auto rotated = static_cast<float>(HeldIn(((t & 64) != 0 ? low - high : low + high) * factor, true));
    // Groups of 32 are warps.
    constexpr float kFloor = 6 * 0x1p-126F;
    const bool has_nan = __any_sync(kWholeWarp, isnan(rotated));
    const float max = fmaxf(LargestOfWarp(MagnitudeOf(rotated)), kFloor);
    const float scale = PowerOfTwoScale(max, __uint_as_float(0x3E2AAAABU));
    values_[0] =
        RoundToBf16(has_nan ? __uint_as_float(0x7FC00000U) : RoundToE2m1(rotated * InverseOf(scale)) * scale);
  }

  __device__ void Scale(float factor) {
    num_largest_ = 0;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) values_[k] = RoundToBf16(values_[k] * factor);
  }

  // Rows that are stored packed, e4m3 by groups of kRegisterGroup or kRegisterWarpGroup, e2m1 by
  // kRegisterE2m1Group: first the codes, then wherever the row goes. Where things lie in such a row
  // (tensor/cache_format.h), in bytes: its functions divide numbers of 64 bits, which takes as long as all
  // else here.
  struct Places {
    bool e4m3;
    int group;
    int width;
    int coded;  // Columns.
    int rest;
    int scales;
    int end;
    int row_bytes;
  };
  // The release's keys, known when this is compiled, which makes the code for them short.
  __device__ bool IsReleaseKey(CacheCode code, int num_coded) const {
    return code == CacheCode::kE2m1 && num_coded == kReleaseKeyWidth && width_ == kReleaseKeyWidth;
  }
  __device__ static constexpr Places PlacesOfReleaseKey() {
    return {.e4m3 = false,
            .group = kReleaseKeyGroup,
            .width = kReleaseKeyWidth,
            .coded = kReleaseKeyWidth,
            .rest = kReleaseKeyScales,
            .scales = kReleaseKeyScales,
            .end = kReleaseKeyBytes,
            .row_bytes = kReleaseKeyBytes};
  }
  __device__ Places PlacesOf(CacheCode code, int num_coded, int group) const {
    Places places;
    places.e4m3 = code == CacheCode::kE4m3;
    places.group = group;
    places.width = width_;
    places.coded = num_coded;
    places.rest = places.e4m3 ? places.coded : places.coded / 2;
    places.scales = places.rest + 2 * (width_ - places.coded);
    places.end = places.scales + (static_cast<uint32_t>(places.coded) >> Log2OfGroup(group));
    places.row_bytes = places.e4m3 ? (places.end + 15) / 16 * 16 : (places.end + 3) / 4 * 4;
    return places;
  }
  // Groups are powers of two.
  __device__ static int Log2OfGroup(int group) { return 31 - __clz(group); }
  __device__ __forceinline__ void Pack(const Places& places, int64_t row, Fault* fault) {
    // simulate_fp8 of the same columns has found the largest of their groups.
    if (!places.e4m3 || num_largest_ != places.coded || largest_group_ != places.group) FindLargest(places);
    if (places.e4m3) {
      TakeAnyE4m3(places.coded, row, fault);
    } else {
      Report(PackE2m1(places.coded), row, fault);
    }
  }
  __device__ __forceinline__ void WritePacked(const Places& places, unsigned char* data) const {
    const int t = static_cast<int>(threadIdx.x);
    static_assert(kThreads % kRegisterGroup == 0 && kThreads % kRegisterE2m1Group == 0);
    if (places.e4m3) {
      unsigned char* const codes = data + t;
      const int log2 = Log2OfGroup(places.group);
      unsigned char* const scales = data + places.scales + (t >> log2);
#pragma unroll
      for (int k = 0; k < kRegisterColumns; ++k) {
        const bool is_coded = Column(k) < places.coded;
        if (is_coded) codes[k * kThreads] = static_cast<unsigned char>(packed_.codes >> (8 * k));
        if (is_coded && (t & (places.group - 1)) == 0)
          scales[k * (kThreads >> log2)] = static_cast<unsigned char>(packed_.scales >> (8 * k));
      }
    } else {
      unsigned char* const codes = data + t / 2;
      unsigned char* const scales = data + places.scales + t / kRegisterE2m1Group;
#pragma unroll
      for (int k = 0; k < kRegisterColumns; ++k) {
        if (k * kThreads >= places.coded) break;
        const uint32_t code = packed_.codes >> (8 * k);
        const uint32_t next = __shfl_down_sync(kWholeWarp, code, 1);
        const bool is_coded = Column(k) < places.coded;
        if (is_coded && t % 2 == 0)
          codes[k * (kThreads / 2)] = static_cast<unsigned char>((code & 0xFU) | next << 4);
        if (is_coded && t % kRegisterE2m1Group == 0)
          scales[k * (kThreads / kRegisterE2m1Group)] = static_cast<unsigned char>(packed_.scales >> (8 * k));
      }
    }
    auto* const rest = reinterpret_cast<uint16_t*>(data + places.rest) - places.coded;
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      const int column = Column(k);
      if (column >= places.coded && column < places.width)
        rest[column] = static_cast<uint16_t>(__float_as_uint(values_[k]) >> 16);
    }
    if (places.end + t < places.row_bytes) data[places.end + t] = 0;
  }

  // The same for rows of kReleaseRow that simulate_fp8 has rounded. Its codes and scales are those that are
  // stored. Exceptions are groups whose largest value fits half the scale when it is rounded, and NaNs, zeros
  // and other tiny groups. A launch that runs once waits for its instructions, and these are few.
  __device__ bool HasReleaseCodes(CacheCode code, int num_coded, int group) const {
    return group == kReleaseRowGroup && largest_group_ == kReleaseRowGroup && code == CacheCode::kE4m3 &&
           num_coded == kReleaseRowCoded && width_ == kReleaseRowWidth && num_largest_ == kReleaseRowCoded;
  }
  __device__ __forceinline__ void TakeReleaseCodes(int64_t row, Fault* fault) {
    static_assert(kReleaseRowWidth == kRegisterColumns * kThreads && kRegisterColumns == 4 &&
                  kReleaseRowCoded == kReleaseRowWidth - kThreads / 2);
    const bool all_coded = threadIdx.x < kThreads / 2;  // Else the thread's last column has no code.
    const uint32_t coded = all_coded ? ~0U : 0x00FFFFFFU;
    const uint32_t codes = simulated_.codes & coded;
    const uint32_t scales = simulated_.scales & coded;
    constexpr uint32_t kHighest = 0x80808080U;
    const uint32_t nans = (codes & ~kHighest) + 0x01010101U;
    // 0x76 is 224, half of what the largest code is: such a group has half the scale and twice the codes.
    const uint32_t most = (most_ & coded) | (~coded & 0x7E000000U);
    const uint32_t at_half = most + 0x0A0A0A0AU;
    const uint32_t above_half = most + 0x09090909U;
    const uint32_t halved = ((at_half & ~above_half & kHighest) >> 7) * 0xFFU;
    const uint32_t magnitudes = codes & ~kHighest;
    const uint32_t normal = ((((magnitudes & 0x78787878U) + 0x78787878U) & kHighest) >> 7) * 0xFFU;
    const uint32_t twice = (normal & 0x08080808U) | (~normal & magnitudes);
    packed_ = {.codes = codes + (halved & twice), .scales = scales - (halved & 0x01010101U)};
    // Scales of 246 and more may make values of which bf16 has none.
    const uint32_t large_scales = ((scales & ~kHighest) + 0x0A0A0A0AU) & scales;
    if (((nans | ~at_half | large_scales) & kHighest) != 0) TakeAnyE4m3(kReleaseRowCoded, row, fault);
  }
  __device__ __forceinline__ void WriteReleaseRow(unsigned char* data) const {
    const int t = static_cast<int>(threadIdx.x);
    constexpr int kLast = (kRegisterColumns - 1) * kThreads;
#pragma unroll
    for (int k = 0; k < kRegisterColumns - 1; ++k)
      data[t + k * kThreads] = static_cast<unsigned char>(packed_.codes >> (8 * k));
    if (kLast + t < kReleaseRowCoded) {
      data[kLast + t] = static_cast<unsigned char>(packed_.codes >> 24);
    } else {
      reinterpret_cast<uint16_t*>(data + kReleaseRowCoded)[kLast + t - kReleaseRowCoded] =
          static_cast<uint16_t>(__float_as_uint(values_[kRegisterColumns - 1]) >> 16);
    }
    // Scales of every other group by one thread, and of the others by one, whose last is the first of the
    // zeros behind them.
    if (t % kReleaseRowGroup == 0) {
      unsigned char* const scales = data + kReleaseRowScales + t / kReleaseRowGroup;
#pragma unroll
      for (int k = 0; k < kRegisterColumns; ++k)
        scales[k * (kThreads / kReleaseRowGroup)] = static_cast<unsigned char>(packed_.scales >> (8 * k));
    }
    constexpr int kZeros = kReleaseRowScales + kReleaseRowWidth / kReleaseRowGroup;
    static_assert(kReleaseRowBytes == kZeros + sizeof(uint2) && kZeros % sizeof(uint2) == 0);
    if (t == 32) *reinterpret_cast<uint2*>(data + kZeros) = make_uint2(0, 0);
  }

 private:
  // Codes of a thread's columns, a byte each.
  struct Packed {
    uint32_t codes;
    uint32_t scales;  // Their groups'.
  };
  struct PackedOrBad {
    Packed packed;
    int bad;  // The k of the last value that should have a code and has none, or -1.
  };
  __device__ void Report(int bad, int64_t row, Fault* fault) const {
    if (bad < 0) return;
    float value = values_[0];
#pragma unroll
    for (int k = 1; k < kRegisterColumns; ++k) value = k == bad ? values_[k] : value;
    ReportFault(fault, FaultKind::kCacheRow, row, Column(bad), __float_as_uint(value), 0);
  }
  __device__ __forceinline__ void TakeAnyE4m3(int coded, int64_t row, Fault* fault) {
    const PackedOrBad any = PackE4m3(make_float4(values_[0], values_[1], values_[2], values_[3]),
                                     make_float4(largest_[0], largest_[1], largest_[2], largest_[3]), coded);
    packed_ = any.packed;
    Report(any.bad, row, fault);
  }
  __device__ void Keep(int k, int num_columns, float value) {
    if (Column(k) < num_columns) values_[k] = RoundToBf16(value);
  }
  // The largest of a group's finite values, on which depends what is stored. A group is a warp's, or e4m3 of
  // two warps.
  __device__ void FindLargest(const Places& places) {
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (k * kThreads >= places.coded) break;
      const float magnitude = Column(k) < places.coded ? MagnitudeOf(values_[k]) : 0.0F;
      largest_[k] = LargestOfWarp(isinf(magnitude) ? 0.0F : magnitude);
    }
    if (places.group == kRegisterWarpGroup) return;
    __shared__ float4 of_warps[kThreads / 32];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0)
      of_warps[warp] = make_float4(largest_[0], largest_[1], largest_[2], largest_[3]);
    __syncthreads();
    const float4 others = of_warps[warp ^ 1];
    const Values other = {others.x, others.y, others.z, others.w};
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) largest_[k] = fmaxf(largest_[k], other[k]);
  }
  // A function of its own, so that what is rare does not lie among what is not.
  static __device__ __noinline__ PackedOrBad PackE4m3(float4 of_values, float4 of_largest, int coded) {
    const Values values = {of_values.x, of_values.y, of_values.z, of_values.w};
    const Values largest = {of_largest.x, of_largest.y, of_largest.z, of_largest.w};
    PackedOrBad any = {.packed = {0, 0}, .bad = -1};
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (Column(k) >= coded) break;
      const uint32_t scale = SmallestE8m0(MagnitudeOf(largest[k]), CacheCode::kE4m3);
      bool fits = true;
      any.packed.codes |= E4m3Code(values[k], InverseOfE8m0(scale), fits) << (8 * k);
      any.packed.scales |= scale << (8 * k);
      if (!fits) any.bad = k;
    }
    return any;
  }
  // The k of the last value that should have a code and has none, or -1.
  __device__ int PackE2m1(int coded) {
    int bad = -1;
    packed_ = {0, 0};
#pragma unroll
    for (int k = 0; k < kRegisterColumns; ++k) {
      if (k * kThreads >= coded) break;
      bool fits = true;
      if (__any_sync(kWholeWarp, Column(k) < coded && isnan(values_[k]))) {
        packed_.scales |= 255U << (8 * k);
        fits = isnan(values_[k]);
      } else {
        const uint32_t scale = SmallestE8m0(largest_[k], CacheCode::kE2m1);
        packed_.codes |= E2m1Code(values_[k] * InverseOfE8m0(scale), fits) << (8 * k);
        packed_.scales |= scale << (8 * k);
      }
      if (!fits && Column(k) < coded) bad = k;
    }
    return bad;
  }

  Values values_;
  Packed packed_ = {};     // Pack, TakeReleaseCodes
  Values largest_ = {};    // Maxima of the finite values of a column's group,
  int num_largest_ = 0;    // the columns of which they are known,
  int largest_group_ = 0;  // and the columns of such a group.
  Packed simulated_ = {};  // SimulateFp8, whether columns have codes or not,
  uint32_t most_ = 0;      // and the codes of the largest.
  const int width_;
};

}  // namespace dsv4::backend::cuda
