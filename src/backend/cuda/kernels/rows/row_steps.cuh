// Steps that the steps of lowering/work/rows.h do to a row that lies in shared memory, as floats that hold
// values of its dtype. All threads of a block of kThreads take part, and whatever they do to the row is done
// when the step returns.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/numeric/reduce.cuh"
#include "backend/cuda/device/sync/device_fault.cuh"
#include "backend/cuda/lowering/work/rows.h"

namespace dsv4::backend::cuda {

// A value as it is held in a tensor of the row's dtype.
__device__ __forceinline__ float RowValue(double value, bool is_bf16) {
  const auto rounded = static_cast<float>(value);
  return is_bf16 ? RoundToBf16(rounded) : rounded;
}
// An intermediate that the release holds so; without bf16 it keeps its width.
__device__ __forceinline__ double HeldIn(double value, bool is_bf16) {
  return is_bf16 ? static_cast<double>(RoundToBf16(static_cast<float>(value))) : value;
}

// Eight values a thread, on their way from memory to a row: they are asked for by Ask, and Keep waits for
// them.
template <int kThreads>
struct RowOnTheWay {
  static constexpr int kBlock = 8 * kThreads;  // Elements.
  uint4 bits[2];

  // Whether eight values are 16 or 32 aligned bytes.
  __device__ static bool Fits(const void* data, int width) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && width % 8 == 0;
  }
  __device__ void Ask(const void* data, bool is_bf16, int first, int width) {
    const int i = first + 8 * static_cast<int>(threadIdx.x);
    if (i >= width) return;
    if (is_bf16) {
      bits[0] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + i);
    } else {
      const auto* const in = reinterpret_cast<const uint4*>(static_cast<const float*>(data) + i);
      bits[0] = in[0];
      bits[1] = in[1];
    }
  }
  __device__ void Keep(float* row, bool is_bf16, int first, int width) const {
    const int i = first + 8 * static_cast<int>(threadIdx.x);
    if (i >= width) return;
    auto* const out = reinterpret_cast<uint4*>(row + i);
    if (is_bf16) {
      const uint4 b = bits[0];
      out[0] = make_uint4(b.x << 16, b.x & 0xFFFF0000U, b.y << 16, b.y & 0xFFFF0000U);
      out[1] = make_uint4(b.z << 16, b.z & 0xFFFF0000U, b.w << 16, b.w & 0xFFFF0000U);
    } else {
      out[0] = bits[0];
      out[1] = bits[1];
    }
  }
};

// row: 16-byte aligned. meanwhile(): called once, while the first values are on their way.
template <int kThreads, typename Meanwhile>
__device__ void LoadRow(float* row, const void* data, bool is_bf16, int width, Meanwhile&& meanwhile) {
  using Eight = RowOnTheWay<kThreads>;
  if (Eight::Fits(data, width)) {
    Eight values;
    values.Ask(data, is_bf16, 0, width);
    meanwhile();
    values.Keep(row, is_bf16, 0, width);
#pragma unroll 1
    for (int first = Eight::kBlock; first < width; first += Eight::kBlock) {
      values.Ask(data, is_bf16, first, width);
      values.Keep(row, is_bf16, first, width);
    }
  } else {
    meanwhile();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads)
      row[i] = is_bf16 ? __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16)
                       : static_cast<const float*>(data)[i];
  }
  __syncthreads();
}

template <int kThreads>
__device__ void WriteRow(const float* row, void* data, bool is_bf16, int width) {
  const int t = static_cast<int>(threadIdx.x);
  if (RowOnTheWay<kThreads>::Fits(data, width)) {
#pragma unroll 1
    for (int i = 8 * t; i < width; i += 8 * kThreads) {
      const auto* const in = reinterpret_cast<const uint4*>(row + i);
      const uint4 a = in[0];
      const uint4 b = in[1];
      if (is_bf16) {
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + i) =
            make_uint4(__byte_perm(a.x, a.y, 0x7632), __byte_perm(a.z, a.w, 0x7632),
                       __byte_perm(b.x, b.y, 0x7632), __byte_perm(b.z, b.w, 0x7632));
      } else {
        auto* const out = reinterpret_cast<uint4*>(static_cast<float*>(data) + i);
        out[0] = a;
        out[1] = b;
      }
    }
  } else if (is_bf16) {
#pragma unroll 1
    for (int i = t; i < width; i += kThreads)
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(__float_as_uint(row[i]) >> 16);
  } else {
#pragma unroll 1
    for (int i = t; i < width; i += kThreads) static_cast<float*>(data)[i] = row[i];
  }
}

// As BlockSum (reduce.cuh), and by the same order, for steps: there is a barrier between what one reads and
// the next one writes.
template <int kThreads>
__device__ double RowSum(double value) {
  __shared__ __align__(16) double partial[kThreads / 32];
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  double total = partial[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) total += partial[w];
  return total;
}

// sum / width. Where width is a power of two its reciprocal is exact, and a product gives the bits of the
// quotient.
__device__ __forceinline__ double MeanOf(double sum, int width) {
  if ((width & (width - 1)) == 0) return sum * __hiloint2double((1023 - (31 - __clz(width))) << 20, 0);
  return sum / static_cast<double>(width);
}

// Values of a row that a thread has at once: columns first + threadIdx.x + k * kThreads.
inline constexpr int kRowAtOnce = 8;

// Columns first + k * kThreads of a row; outside it 0.
template <int kThreads>
__device__ __forceinline__ void LoadAtOnce(float (&values)[kRowAtOnce], const float* row, int first,
                                           int width) {
#pragma unroll
  for (int k = 0; k < kRowAtOnce; ++k)
    values[k] = first + k * kThreads < width ? row[first + k * kThreads] : 0.0F;
}

// Column first + k * kThreads becomes f(first, k, its value), all of a thread's.
template <int kThreads, typename F>
__device__ __forceinline__ void ForColumns(float* row, int width, F&& f) {
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < width; first += kRowAtOnce * kThreads) {
    float values[kRowAtOnce];
    LoadAtOnce<kThreads>(values, row, first, width);
#pragma unroll
    for (int k = 0; k < kRowAtOnce; ++k) {
      if (first + k * kThreads < width) row[first + k * kThreads] = f(first, k, values[k]);
    }
  }
}

// The sum of f(value) over a row, f's values in double: the threads' own in ascending order of column.
template <int kThreads, typename F>
__device__ double SumOverRow(const float* row, int width, F&& f) {
  double sum = 0.0;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < width; first += kRowAtOnce * kThreads) {
    float values[kRowAtOnce];  // Columns outside add +0, which leaves a sum of squares as it is.
    LoadAtOnce<kThreads>(values, row, first, width);
#pragma unroll
    for (int k = 0; k < kRowAtOnce; ++k) sum += f(static_cast<double>(values[k]));
  }
  return RowSum<kThreads>(sum);
}

// The first weights of a thread, asked for before they are needed.
struct RowWeights {
  float values[kRowAtOnce];
};
template <int kThreads>
__device__ void AskForWeights(RowWeights& weights, const float* weight, int width) {
#pragma unroll
  for (int k = 0; k < kRowAtOnce; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kThreads;
    if (i < width) weights.values[k] = weight[i];
  }
}

// `weights`: the first of `weight`.
template <int kThreads>
__device__ void RmsNormRow(float* row, int width, const float* weight, RowWeights weights, float eps,
                           bool is_bf16) {
  const double sum = SumOverRow<kThreads>(row, width, [](double value) { return value * value; });
  const double factor = 1.0 / sqrt(MeanOf(sum, width) + static_cast<double>(eps));
  ForColumns<kThreads>(row, width, [&](int first, int k, float value) {
    if (k == 0 && first >= kRowAtOnce * kThreads) {
      const int skipped = first - static_cast<int>(threadIdx.x);
      AskForWeights<kThreads>(weights, weight + skipped, width - skipped);
    }
    return RowValue(static_cast<double>(value) * (factor * static_cast<double>(weights.values[k])), is_bf16);
  });
  __syncthreads();
}
template <int kThreads>
__device__ void RmsNormRow(float* row, int width, const float* weight, float eps, bool is_bf16) {
  RowWeights weights;
  AskForWeights<kThreads>(weights, weight, width);
  RmsNormRow<kThreads>(row, width, weight, weights, eps, is_bf16);
}

// The release's five rounding points.
template <int kThreads>
__device__ void HeadRmsNormRow(float* row, int width, float eps, bool is_bf16) {
  const double sum =
      SumOverRow<kThreads>(row, width, [&](double value) { return HeldIn(value * value, is_bf16); });
  const double mean = HeldIn(MeanOf(sum, width), is_bf16);
  const double shifted = HeldIn(mean + static_cast<double>(eps), is_bf16);
  const double factor = HeldIn(1.0 / sqrt(shifted), is_bf16);
  ForColumns<kThreads>(row, width, [&](int, int, float value) {
    return RowValue(static_cast<double>(value) * factor, is_bf16);
  });
  __syncthreads();
}

// The angle is one fp32 product; its cosine and sine are as exact as double makes them.
__device__ __forceinline__ double2 Rotation(int32_t position, float frequency, bool inverse) {
  const float angle = static_cast<float>(position) * frequency;
  double sine = 0.0;
  double cosine = 0.0;
  sincos(static_cast<double>(angle), &sine, &cosine);
  return make_double2(cosine, inverse ? -sine : sine);
}
__device__ __forceinline__ float2 Rotated(float even, float odd, double2 rotation, bool is_bf16) {
  const auto e = static_cast<double>(even);
  const auto o = static_cast<double>(odd);
  return make_float2(RowValue(e * rotation.x - o * rotation.y, is_bf16),
                     RowValue(e * rotation.y + o * rotation.x, is_bf16));
}

// rotations: by frequency, in shared memory.
template <int kThreads>
__device__ void RopeRow(float* row, int width, const double2* rotations, int num_frequencies, bool is_bf16) {
  float* const rotary = row + width - 2 * num_frequencies;
  for (int i = static_cast<int>(threadIdx.x); i < num_frequencies; i += kThreads) {
    const float2 pair = Rotated(rotary[2 * i], rotary[2 * i + 1], rotations[i], is_bf16);
    rotary[2 * i] = pair.x;
    rotary[2 * i + 1] = pair.y;
  }
  __syncthreads();
}

// Sixteen lanes a group.
template <int kThreads>
__device__ void SimulateFp8Row(float* row, int num_columns, int group, bool is_bf16) {
  constexpr int kLanes = 16;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_groups = num_columns / group;
  // Both groups of a warp go around together.
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32 * 2; first < num_groups; first += kThreads / kLanes) {
    const int g = first + static_cast<int>(threadIdx.x) % 32 / kLanes;
    float* const values = row + g * group;
    const int count = g < num_groups ? group : 0;
    float max = 0.0F;
#pragma unroll 4
    for (int i = lane; i < count; i += kLanes) max = fmaxf(max, fabsf(values[i]));
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
    const float scale = Fp8GroupScale(max);
#pragma unroll 4
    for (int i = lane; i < count; i += kLanes) {
      const float rounded = RoundToFp8Grid(values[i], scale);
      values[i] = is_bf16 ? RoundToBf16(rounded) : rounded;
    }
  }
  __syncthreads();
}

// `wide`: as many doubles as the row has elements, a multiple of 32.
template <int kThreads>
__device__ void HadamardFp4Row(float* row, double* wide, int width, bool is_bf16) {
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < width; i += kThreads) wide[i] = static_cast<double>(row[i]);
  for (int half = 1; half < width; half *= 2) {
    __syncthreads();
    for (int i = t; i < width / 2; i += kThreads) {
      const int low = i / half * 2 * half + i % half;
      const double a = wide[low];
      const double b = wide[low + half];
      wide[low] = a + b;
      wide[low + half] = a - b;
    }
  }
  __syncthreads();
  const double factor = 1.0 / sqrt(static_cast<double>(width));
  // Groups of 32 are warps.
  constexpr float kFloor = 6 * 0x1p-126F;
  for (int i = t; i < width; i += kThreads) {
    const auto rotated = static_cast<float>(HeldIn(wide[i] * factor, is_bf16));
    const bool has_nan = __any_sync(kWholeWarp, isnan(rotated));
    const float max = fmaxf(WarpMax(fabsf(rotated)), kFloor);
    const float scale = PowerOfTwoScale(max, __uint_as_float(0x3E2AAAABU));
    const float rounded = has_nan ? __uint_as_float(0x7FC00000U) : RoundToE2m1(rotated / scale) * scale;
    row[i] = is_bf16 ? RoundToBf16(rounded) : rounded;
  }
  __syncthreads();
}

// The scale of a group of e2m1 (hadamard_fp4), from its largest magnitude.
__device__ __forceinline__ float Fp4GroupScale(float max, CacheScale kind) {
  if (kind == CacheScale::kE4m3) return RoundToE4m3(fminf(fmaxf(max, 6 * 0x1p-9F) / 6.0F, 448.0F));
  return PowerOfTwoScale(fmaxf(max, 6 * 0x1p-126F), __uint_as_float(0x3E2AAAABU));
}
// A NaN in a group makes all of it NaN.
__device__ __forceinline__ float RoundToFp4Grid(float value, float scale, bool has_nan) {
  return has_nan ? __uint_as_float(0x7FC00000U) : RoundToE2m1(value / scale) * scale;
}

// hadamard_fp4 without a rotation: sixteen lanes a group.
template <int kThreads>
__device__ void RoundFp4Row(float* row, int width, int group, CacheScale kind, bool is_bf16) {
  constexpr int kLanes = 16;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int num_groups = width / group;
  // Both groups of a warp go around together.
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32 * 2; first < num_groups; first += kThreads / kLanes) {
    const int g = first + static_cast<int>(threadIdx.x) % 32 / kLanes;
    float* const values = row + g * group;
    const int count = g < num_groups ? group : 0;
    float max = 0.0F;
    int has_nan = 0;
    for (int i = lane; i < count; i += kLanes) {
      max = fmaxf(max, fabsf(values[i]));
      has_nan |= isnan(values[i]) ? 1 : 0;
    }
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      max = fmaxf(max, __shfl_xor_sync(kWholeWarp, max, offset));
      has_nan |= __shfl_xor_sync(kWholeWarp, has_nan, offset);
    }
    const float scale = Fp4GroupScale(max, kind);
    for (int i = lane; i < count; i += kLanes) {
      const float rounded = RoundToFp4Grid(values[i], scale, has_nan != 0);
      values[i] = is_bf16 ? RoundToBf16(rounded) : rounded;
    }
  }
  __syncthreads();
}

}  // namespace dsv4::backend::cuda
