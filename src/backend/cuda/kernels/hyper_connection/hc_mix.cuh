// The small outputs of hc_pre, post and comb, of one token. They are little work that takes long, since every
// step of the iteration waits for the one before. Nothing needs them before the sub-layer's end, so a kernel
// that reads weights does them beside (gemv_stream.cu).
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/lowering/work/hyper_connection.h"
#include "ops/hyper_connection.h"

namespace dsv4::backend::cuda {

__device__ inline float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// Stream i's weight in a token's u, where this hc_pre has made `own`. The caller that `keeps` stores that
// where it is asked for.
__device__ __forceinline__ float StreamWeight(const HcPreParams& p, int64_t token, int i, float own,
                                              bool keeps) {
  if (p.pre != nullptr && keeps) p.pre[token * p.mult + i] = own;
  return p.given != nullptr ? p.given[token * p.mult + i] : own;
}

// The parts of a dot product, pairs of neighbours first.
template <int kCount>
__device__ __forceinline__ float SumOfParts(const float* parts) {
  if constexpr (kCount == 1) {
    return parts[0];
  } else {
    return SumOfParts<kCount / 2>(parts) + SumOfParts<kCount / 2>(parts + kCount / 2);
  }
}
// As many parts as there can be: HcParts, or 1.
__device__ inline float SumOfParts(const float* parts, int count) {
  static_assert(kNarrowRowThreads / 32 == 4 && kWideRowThreads / 32 == 16);
  if (count == 16) return SumOfParts<16>(parts);
  return count == 4 ? SumOfParts<4>(parts) : parts[0];
}

// The norm is a factor taken over all streams at once.
__device__ inline float NormFactor(float sum_of_squares, int64_t width, float norm_eps) {
  return 1.0F / sqrtf(sum_of_squares / static_cast<float>(width) + norm_eps);
}

__device__ inline float HcLogit(float norm_factor, float dot, float scale, float base) {
  return fmaf(norm_factor * dot, scale, base);
}
// Logit k of a token, of part 0 (pre), 1 (post) or 2 (comb).
__device__ inline float HcLogit(const HcPreParams& p, int64_t token, int k, int part) {
  const int num_rows = (2 + p.mult) * p.mult;
  const float* const dots = p.dots + token * (num_rows + 1) * p.num_parts;
  const float factor =
      NormFactor(SumOfParts(dots + num_rows * p.num_parts, p.num_parts), p.mult * p.dim, p.norm_eps);
  return HcLogit(factor, SumOfParts(dots + k * p.num_parts, p.num_parts), p.scale[part], p.base[k]);
}

// One column of stream j behind a sub-layer that gave y. factors: comb's column j.
template <typename Value>
__device__ __forceinline__ float PostOf(float post, float y, const float (&factors)[kHcMult], Value&& value) {
  float sum = post * y;
#pragma unroll
  for (int i = 0; i < kHcMult; ++i) sum = fmaf(factors[i], value(i), sum);
  return sum;
}

// 1 / x for x of ordinary size, to a unit in the last place.
__device__ __forceinline__ float Reciprocal(float x) {
  float r = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// One column of the streams' mix; weights and values of mult streams.
template <typename Value>
__device__ __forceinline__ float MixOf(const float* weights, int mult, Value&& value) {
  float sum = 0.0F;
#pragma unroll 4
  for (int i = 0; i < mult; ++i) sum = fmaf(weights[i], value(i), sum);
  return sum;
}

// The release's four streams: one thread holds the matrix, whose sums and quotients are independent of each
// other.
__device__ inline void SinkhornOfFour(float* comb, float eps, int iterations) {
  float c[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float max = comb[4 * i];
#pragma unroll
    for (int j = 1; j < 4; ++j) max = max < comb[4 * i + j] ? comb[4 * i + j] : max;
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += c[i][j] = expf(comb[4 * i + j] - max);
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i][j] = c[i][j] / sum + eps;
  }
  const auto columns = [&] {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float factor = Reciprocal((c[0][j] + c[1][j]) + (c[2][j] + c[3][j]) + eps);
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i][j] *= factor;
    }
  };
  columns();
  for (int iteration = 1; iteration < iterations; ++iteration) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = Reciprocal((c[i][0] + c[i][1]) + (c[i][2] + c[i][3]) + eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) c[i][j] *= factor;
    }
    columns();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) comb[4 * i + j] = c[i][j];
  }
}

// Row-softmax plus eps, then alternating normalisation, columns first; `iterations` counts that first pair.
// One thread an element; sums in the reference's order.
__device__ inline void Sinkhorn(float* comb, int size, float eps, int iterations) {
  const int i = static_cast<int>(threadIdx.x) / size;
  const int j = static_cast<int>(threadIdx.x) % size;
  const bool mine = i < size;
  float value = 0.0F;
  const auto publish = [&](float next) {
    __syncthreads();
    if (mine) comb[i * size + j] = next;
    __syncthreads();
  };
  const auto row_sum = [&] {
    float sum = 0.0F;
    for (int k = 0; k < size; ++k) sum += comb[i * size + k];
    return sum;
  };
  const auto column_sum = [&] {
    float sum = 0.0F;
    for (int k = 0; k < size; ++k) sum += comb[k * size + j];
    return sum;
  };
  if (mine) {
    float max = comb[i * size];
    for (int k = 1; k < size; ++k) max = max < comb[i * size + k] ? comb[i * size + k] : max;
    value = expf(comb[i * size + j] - max);
  }
  publish(value);
  if (mine) value = value / row_sum() + eps;
  publish(value);
  if (mine) value /= column_sum() + eps;
  publish(value);
  for (int iteration = 1; iteration < iterations; ++iteration) {
    if (mine) value /= row_sum() + eps;
    publish(value);
    if (mine) value /= column_sum() + eps;
    publish(value);
  }
}

// By a block of kThreads, at least mult * mult of them where mult is not 4.
template <int kThreads>
__device__ void HcMixOfToken(const HcPreParams& p, int64_t token) {
  __shared__ float comb[ops::kMaxHcMult * ops::kMaxHcMult];
  const int mult = p.mult;
  const int t = static_cast<int>(threadIdx.x);
  for (int k = t; k < mult * mult; k += kThreads) comb[k] = HcLogit(p, token, 2 * mult + k, 2);
  // Not in the warp of the iterations.
  if (t >= kThreads - 32 && t < kThreads - 32 + mult) {
    const int i = t - (kThreads - 32);
    Store(p.post, token * mult + i, 2.0F * Sigmoid(HcLogit(p, token, mult + i, 1)));
  }
  __syncthreads();
  const float hc_eps = p.hc_eps;
  if (mult == 4) {
    if (t == 0) SinkhornOfFour(comb, hc_eps, p.sinkhorn_iters);
    __syncthreads();
  } else {
    Sinkhorn(comb, mult, hc_eps, p.sinkhorn_iters);
  }
  for (int k = t; k < mult * mult; k += kThreads) Store(p.comb, token * mult * mult + k, comb[k]);
}

}  // namespace dsv4::backend::cuda
