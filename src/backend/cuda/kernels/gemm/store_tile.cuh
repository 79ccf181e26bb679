// How products of many tokens are stored: a thread has sums of two neighbouring rows of the weight, which are
// columns of y.
#pragma once

#include <cstdint>

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "tensor/tensor.h"

namespace dsv4::backend::cuda {

struct LinearOutput {
  void* data;
  int64_t stride;  // Elements between tokens.
  bool is_bf16;
  bool in_pairs;  // Two neighbours are stored at once.
};

// Groups of so many rows, which is where pairs begin.
inline LinearOutput MakeLinearOutput(const TensorView& y, int64_t stride, int64_t rows_per_group) {
  const auto pair_bytes = static_cast<uintptr_t>(2 * ElementBytes(y.dtype));
  return {.data = y.data,
          .stride = stride,
          .is_bf16 = y.dtype == DType::kBF16,
          .in_pairs = stride % 2 == 0 && rows_per_group % 2 == 0 &&
                      reinterpret_cast<uintptr_t>(y.data) % pair_bytes == 0};
}

// sums[4 j + 2 half + e] is that of token first_token + 8 j + 2 (lane % 4) + e and row `row` + half.
template <int kTokens>
__device__ __forceinline__ void StoreSums(const LinearOutput& y, int row, int row_end, int first_token,
                                          int num_tokens, const float (&sums)[kTokens / 2]) {
  if (row >= row_end) return;
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  const int64_t origin = (int64_t{first_token} + first) * y.stride + row;
  // put(offset, low, high) for the tokens that are there.
  const auto each = [&]<bool kAll>(auto&& put) {
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const int token = i / 2 * 8 + i % 2;
      if (!kAll && first + token >= num_tokens) continue;
      put(token * y.stride, sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
    }
  };
  const auto all = [&](auto&& put) {
    if (num_tokens >= kTokens) {
      each.template operator()<true>(put);
    } else {
      each.template operator()<false>(put);
    }
  };
  const bool pair = y.in_pairs && row + 1 < row_end;
  if (y.is_bf16 && pair) {
    uint16_t* const at = static_cast<uint16_t*>(y.data) + origin;
    all([at](int64_t i, float low, float high) {
      *reinterpret_cast<uint32_t*>(at + i) = Bf16Pair(low, high);
    });
  } else if (pair) {
    float* const at = static_cast<float*>(y.data) + origin;
    all([at](int64_t i, float low, float high) {
      *reinterpret_cast<float2*>(at + i) = make_float2(low, high);
    });
  } else {
    const bool both = row + 1 < row_end;
    each.template operator()<false>([&](int64_t i, float low, float high) {
      if (y.is_bf16) {
        uint16_t* const at = static_cast<uint16_t*>(y.data) + origin + i;
        at[0] = Bf16FromFloat(low);
        if (both) at[1] = Bf16FromFloat(high);
      } else {
        float* const at = static_cast<float*>(y.data) + origin + i;
        at[0] = low;
        if (both) at[1] = high;
      }
    });
  }
}

}  // namespace dsv4::backend::cuda
