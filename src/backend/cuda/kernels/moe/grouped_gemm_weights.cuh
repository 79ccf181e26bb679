// FP4 weights of grouped_gemm_wide and grouped_gemm_narrow. A thread loads the bytes that it will itself
// widen into wgmma's A operand. It does so some stages ahead, and past the end of its item.
#pragma once

#include <cstdint>

#include "backend/cuda/device/ptx/wgmma_tma.cuh"
#include "backend/cuda/kernels/gemm/gemm_mma.cuh"
#include "backend/cuda/kernels/packing/operand_layout.h"

namespace dsv4::backend::cuda::grouped_weights {

inline constexpr int kBlockCols = static_cast<int>(kPackedCols);
inline constexpr int kSteps = kBlockCols / 16;
// Four lanes read 16 bytes of a row each, whose columns are those of two blocks.
inline constexpr int kStageCols = 2 * kBlockCols;

struct Item {
  const uint8_t* data;  // The block's first row.
  const uint8_t* scale;
  float global_scale;
  int matrix;
  int first_row;
  int first_x_row;
  int num_tokens;  // 0: there is no more work.
};

// Read once by this SM, two stages' bytes of a row by memory. Of four stages' a third was gone from L2 before
// its turn.
__device__ __forceinline__ uint4 LoadWeights(const uint8_t* p) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(p));
  return words;
}

// Unpack::Expand, the high half of a float twice by one instruction.
template <MatmulKind kKind>
__device__ __forceinline__ typename Unpack<kKind>::Scales ExpandScales(uint32_t codes) {
  if constexpr (kKind == MatmulKind::kMmaNvFp4) {
    constexpr float kFactor = 0x1p100F;
    const float2 wide = WideE4m3(static_cast<uint16_t>(codes));
    const auto both = [](float x) { return __byte_perm(__float_as_uint(x * kFactor), 0, 0x3232); };
    return {{both(wide.x), both(wide.y)}};
  } else {
    return Unpack<kKind>::Expand(static_cast<uint8_t>(codes));
  }
}

// A thread's weights: 16 bytes of two neighbouring rows a stage, of kAhead stages in registers.
template <MatmulKind kKind, int kAhead>
class Weights {
 public:
  __device__ __forceinline__ explicit Weights(const DeviceWeight& shape)
      : row_bytes_(shape.cols / 2), row_codes_(shape.scale_cols) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / 32 * 16 + thread % 32 / 4 * 2;
    first_ = row * row_bytes_ + thread % 4 * 16;
    first_code_ = row * row_codes_ + thread % 4 * kCodes;
  }
  // The stage that place 0 gets next: an item's first, or kAhead further.
  __device__ __forceinline__ void Begin(const Item& item) {
    from_ = item.data + first_;
    codes_from_ = item.scale + first_code_;
  }
  __device__ __forceinline__ void Advance() {
    from_ += kAhead * (kStageCols / 2);
    codes_from_ += kAhead * 4 * kCodes;
  }
  template <int kPlace>
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words_[kPlace][half] = LoadWeights(from_ + half * row_bytes_ + kPlace * (kStageCols / 2));
      const uint8_t* const codes = codes_from_ + half * row_codes_ + kPlace * (4 * kCodes);
      if constexpr (kCodes == 2) {
        codes_[kPlace][half] = __ldg(reinterpret_cast<const uint16_t*>(codes));
      } else {
        codes_[kPlace][half] = __ldg(codes);
      }
    }
  }
  // A of a block of the stage: block 0 before block 1.
  template <int kPlace>
  __device__ __forceinline__ void Widen(int block, uint32_t (&a)[kSteps][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 raw = words_[kPlace][half];
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
      if (block == 0) scales_[half] = ExpandScales<kKind>(codes_[kPlace][half]);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int i = (block * kSteps + step) * 2;
        a[step][half] = Unpack<kKind>::Widen(words, scales_[half], i);
        a[step][half + 2] = Unpack<kKind>::Widen(words, scales_[half], i + 1);
      }
    }
    FenceRegisters(a);
  }

 private:
  static constexpr int kCodes = kKind == MatmulKind::kMmaNvFp4 ? 2 : 1;  // A lane's, of 32 columns.

  const int64_t row_bytes_;
  const int64_t row_codes_;
  int64_t first_;  // This thread's part of an item.
  int64_t first_code_;
  const uint8_t* from_ = nullptr;
  const uint8_t* codes_from_ = nullptr;
  uint4 words_[kAhead][2];
  uint32_t codes_[kAhead][2];
  typename Unpack<kKind>::Scales scales_[2];
};

}  // namespace dsv4::backend::cuda::grouped_weights
