// Activations for gemv_units.cuh: rows of bf16 come into shared memory in the forms that weights want
// (StreamForm), rounded to FP8 where they are to be.
#pragma once

#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/gemm/gemv_units.cuh"
#include "backend/cuda/lowering/gemv_shape.h"

namespace dsv4::backend::cuda {

// Largest magnitude of eight columns of a group of 128, which half a warp holds, or, fine, of 32, which four
// lanes hold.
__device__ __forceinline__ float GroupMax(uint4 x, bool fine) {
  const unsigned half = 0xFFFFU << (threadIdx.x & 16U);
  const auto larger = [](float max, uint32_t pair) {
    return fmaxf(max, fmaxf(fabsf(__uint_as_float(pair << 16)), fabsf(__uint_as_float(pair & 0xFFFF0000U))));
  };
  float max = larger(larger(larger(larger(0.0F, x.x), x.y), x.z), x.w);
#pragma unroll
  for (int offset = 1; offset <= 8; offset *= 2) {
    if (offset <= 2 || !fine) max = fmaxf(max, __shfl_xor_sync(half, max, offset));
  }
  return max;
}

// Two bf16 in a word, times the reciprocal of a power of two, rounded to FP8: as two halves.
__device__ __forceinline__ __half2 RoundPairToFp8(uint32_t pair, float reciprocal) {
  const float2 scaled =
      make_float2(__uint_as_float(pair << 16) * reciprocal, __uint_as_float(pair & 0xFFFF0000U) * reciprocal);
  const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
  return __half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
}
// Halves times the power of two that they were divided by, which is exact in bf16: the high half of the
// float.
__device__ __forceinline__ uint32_t TimesPower(__half2 rounded, float power) {
  const float2 wide = __half22float2(rounded);
  return __byte_perm(__float_as_uint(wide.x * power), __float_as_uint(wide.y * power), 0x7632);
}

// The reciprocal of a power of two from 2^-126 on, or of infinity.
__device__ __forceinline__ float ReciprocalOfPower(float power) {
  const int exponent = 254 - static_cast<int>(__float_as_uint(power) >> 23);
  if (exponent > 0) return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  return __uint_as_float(exponent == 0 ? 0x00400000U : 0U);
}

// Eight columns of a row, rounded as a form wants them; where a form has a scale, *scale is it.
__device__ __forceinline__ uint4 RoundedFor(uint4 value, StreamForm form, float* scale) {
  const bool fine = form == StreamForm::kFineTwos || form == StreamForm::kFineFours;
  if (fine || form == StreamForm::kHalves || form == StreamForm::kRoundedFours ||
      form == StreamForm::kRoundedTwos) {
    *scale = Fp8GroupScale(GroupMax(value, fine));
    const float reciprocal = ReciprocalOfPower(*scale);
    uint32_t* const words = &value.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 rounded = RoundPairToFp8(words[i], reciprocal);
      words[i] = form == StreamForm::kHalves ? *reinterpret_cast<const uint32_t*>(&rounded)
                                             : TimesPower(rounded, *scale);
    }
  }
  return value;
}

// The same in the order of the form.
__device__ __forceinline__ uint4 InForm(uint4 value, StreamForm form, float* scale) {
  const bool of_fp4 =
      form == StreamForm::kFours || form == StreamForm::kRoundedFours || form == StreamForm::kFineFours;
  const bool of_fp8 =
      form == StreamForm::kTwos || form == StreamForm::kRoundedTwos || form == StreamForm::kFineTwos;
  value = RoundedFor(value, form, scale);
  if (of_fp8) return InWeightOrder<MatmulKind::kMmaFp8>(value);
  if (of_fp4) return InWeightOrder<MatmulKind::kMmaNvFp4>(value);
  return value;
}

// Calls emit(row, chunk, x) for every eight columns of rows of bf16, row(i) each, and of zeros up to
// StreamRow. The number cols is a multiple of eight and rows are aligned to 16 bytes.
//
// A launch comes to this code once, and seldom finds it in a cache of instructions: it is short rather than
// unrolled.
template <int kThreads, typename Row, typename Emit>
__device__ __forceinline__ void ForStreamRows(int num_rows, int cols, Row&& row, Emit&& emit) {
  const int chunks = static_cast<int>(StreamRow(cols) - 8) / 8;  // A multiple of 16: half a warp is a group.
  struct Place {
    int row;
    int chunk;
  };
  const auto advanced = [&](Place at, int by) {  // A division takes longer than a few turns.
    at.chunk += by;
    for (; at.chunk >= chunks; at.chunk -= chunks) ++at.row;
    return at;
  };
  const auto load = [&](Place at) {
    if (at.row >= num_rows || at.chunk * 8 >= cols) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(row(at.row) + at.chunk * 8);
  };
  Place now = advanced({0, 0}, static_cast<int>(threadIdx.x));
  uint4 x = load(now);
#pragma unroll 1
  while (now.row < num_rows) {
    const Place next = advanced(now, kThreads);
    const uint4 next_x = load(next);
    emit(now.row, now.chunk, x);
    now = next;
    x = next_x;
  }
}

// Eight columns of a row into shared memory in a form; of StreamForm::kHalves also the scale, to [rows,
// groups of 128].
__device__ __forceinline__ void StoreInForm(uint16_t* shared, float* scales, int row, int chunk, int cols,
                                            StreamForm form, uint4 x) {
  const auto stride = static_cast<int>(StreamRow(cols));
  float scale = 1.0F;
  uint4 value = InForm(x, form, &scale);
  if (form == StreamForm::kHalves && chunk % 16 == 0) scales[row * ((stride - 8) / 128) + chunk / 16] = scale;
  // Padding past the last column stays zero, also when the scale is infinite.
  if (chunk * 8 >= cols) value = make_uint4(0, 0, 0, 0);
  *reinterpret_cast<uint4*>(shared + row * stride + chunk * 8) = value;
}

// Rows to shared memory in every form that is wanted, form by form; of StreamForm::kHalves also the scales.
template <int kThreads = kMatmulThreads, typename Row>
__device__ __forceinline__ void LoadStreamRows(uint16_t* shared, float* scales, int num_rows, int cols,
                                               const StreamForms& forms, Row&& row) {
  const auto form_elements = num_rows * static_cast<int>(StreamRow(cols));
  ForStreamRows<kThreads>(num_rows, cols, row, [&](int r, int chunk, uint4 x) {
#pragma unroll 1
    for (int f = 0; f < forms.count; ++f)
      StoreInForm(shared + f * form_elements, scales, r, chunk, cols, forms.forms[f], x);
  });
}

// Rows to shared memory as halves times 1 / kHalvesFactor, rounded as `form` wants them. True if halves held all
// that this thread stored, and 2^-span of it.
template <int kThreads, typename Row>
__device__ __forceinline__ bool StoreHalves(uint16_t* shared, int num_rows, int cols, StreamForm form,
                                            int span, Row&& row) {
  const auto stride = static_cast<int>(StreamRow(cols));
  const float small = __uint_as_float(static_cast<uint32_t>(127 - span) << 23);  // 2^-span.
  bool held = true;
  ForStreamRows<kThreads>(num_rows, cols, row, [&](int r, int chunk, uint4 x) {
    float scale = 1.0F;
    x = RoundedFor(x, form, &scale);
    uint32_t* const words = &x.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 wide = make_float2(__uint_as_float(words[i] << 16) / kHalvesFactor,
                                      __uint_as_float(words[i] & 0xFFFF0000U) / kHalvesFactor);
      const float2 back = __half22float2(__floats2half2_rn(wide.x * small, wide.y * small));
      held = held && fabsf(wide.x) < 65536.0F && fabsf(wide.y) < 65536.0F && back.x == wide.x * small &&
             back.y == wide.y * small;
      const __half2 halves = __floats2half2_rn(wide.x, wide.y);
      words[i] = *reinterpret_cast<const uint32_t*>(&halves);
    }
    if (chunk * 8 >= cols) x = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(shared + r * stride + chunk * 8) = x;
  });
  return held;
}

}  // namespace dsv4::backend::cuda
