// What the steps of rows.h do to a row that lies in shared memory, as floats that hold values of its dtype. All threads of a
// block of kThreads take part, and whatever they do to the row is done when the step returns.
#pragma once

#include "backend/cuda/kernels/device_fault.cuh"
#include "backend/cuda/kernels/device_numbers.cuh"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/rows.h"

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

template <int kThreads>
__device__ void LoadRow(float* row, const void* data, bool is_bf16, int width) {
  const int t = static_cast<int>(threadIdx.x);
  if (is_bf16) {
    const auto* const in = static_cast<const uint16_t*>(data);
    if (reinterpret_cast<uintptr_t>(data) % 4 == 0 && width % 2 == 0) {
#pragma unroll 4
      for (int i = t; i < width / 2; i += kThreads) {
        const uint32_t pair = reinterpret_cast<const uint32_t*>(in)[i];
        row[2 * i] = __uint_as_float(pair << 16);
        row[2 * i + 1] = __uint_as_float(pair & 0xFFFF0000U);
      }
    } else {
      for (int i = t; i < width; i += kThreads) row[i] = __uint_as_float(static_cast<uint32_t>(in[i]) << 16);
    }
  } else {
#pragma unroll 4
    for (int i = t; i < width; i += kThreads) row[i] = static_cast<const float*>(data)[i];
  }
  __syncthreads();
}

template <int kThreads>
__device__ void WriteRow(const float* row, void* data, bool is_bf16, int width) {
  const int t = static_cast<int>(threadIdx.x);
  if (is_bf16) {
    auto* const out = static_cast<uint16_t*>(data);
    if (reinterpret_cast<uintptr_t>(data) % 4 == 0 && width % 2 == 0) {
      for (int i = t; i < width / 2; i += kThreads)
        reinterpret_cast<uint32_t*>(out)[i] =
            __byte_perm(__float_as_uint(row[2 * i]), __float_as_uint(row[2 * i + 1]), 0x7632);
    } else {
      for (int i = t; i < width; i += kThreads) out[i] = static_cast<uint16_t>(__float_as_uint(row[i]) >> 16);
    }
  } else {
    for (int i = t; i < width; i += kThreads) static_cast<float*>(data)[i] = row[i];
  }
}

// Sums in double, the threads' own in ascending order of column.
template <int kThreads>
__device__ void RmsNormRow(float* row, int width, const float* weight, float eps, bool is_bf16) {
  const int t = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  for (int i = t; i < width; i += kThreads) {
    const auto value = static_cast<double>(row[i]);
    sum += value * value;
  }
  const double mean_square = BlockSum(sum) / static_cast<double>(width);
  const double factor = 1.0 / sqrt(mean_square + static_cast<double>(eps));
  for (int i = t; i < width; i += kThreads)
    row[i] = RowValue(static_cast<double>(row[i]) * (factor * static_cast<double>(weight[i])), is_bf16);
  __syncthreads();
}

// The release's five rounding points.
template <int kThreads>
__device__ void HeadRmsNormRow(float* row, int width, float eps, bool is_bf16) {
  const int t = static_cast<int>(threadIdx.x);
  double sum = 0.0;
  for (int i = t; i < width; i += kThreads) {
    const auto value = static_cast<double>(row[i]);
    sum += HeldIn(value * value, is_bf16);
  }
  const double mean = HeldIn(BlockSum(sum) / static_cast<double>(width), is_bf16);
  const double shifted = HeldIn(mean + static_cast<double>(eps), is_bf16);
  const double factor = HeldIn(1.0 / sqrt(shifted), is_bf16);
  for (int i = t; i < width; i += kThreads) row[i] = RowValue(static_cast<double>(row[i]) * factor, is_bf16);
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

// One warp a group.
template <int kThreads>
__device__ void SimulateFp8Row(float* row, int num_columns, int group, bool is_bf16) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int g = static_cast<int>(threadIdx.x) / 32; g < num_columns / group; g += kThreads / 32) {
    float* const values = row + g * group;
    float max = 0.0F;
    for (int i = lane; i < group; i += 32) max = fmaxf(max, fabsf(values[i]));
    const float scale = Fp8GroupScale(WarpMax(max));
    for (int i = lane; i < group; i += 32) {
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

}  // namespace dsv4::backend::cuda
