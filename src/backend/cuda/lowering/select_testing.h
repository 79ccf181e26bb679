// Devices and weights for tests of kernel choice. Shape, format and alignment are what counts, and nothing is
// read.
#pragma once

#include <cstdint>

#include "backend/cuda/lowering/device_limits.h"
#include "backend/cuda/weights/device_weight.h"

namespace dsv4::backend::cuda {

inline constexpr DeviceLimits kH200;
inline DeviceLimits Blackwell(BlockScaledMode mode = BlockScaledMode::kOff) {
  return {.compute_capability = 100, .num_sms = 148, .block_scaled = mode};
}
inline DeviceLimits WithFp8(Fp8Products mode) { return {.fp8_products = mode}; }

inline const void* AtAddress(uintptr_t address) { return reinterpret_cast<const void*>(address); }  // NOLINT
inline const uint8_t* WeightData() { return static_cast<const uint8_t*>(AtAddress(4096)); }
inline const void* WeightScale() { return WeightData() + 4096; }

inline DeviceWeight Fp8(int64_t rows, int64_t cols) {
  return {.data = WeightData(),
          .scale = WeightScale(),
          .rows = rows,
          .cols = cols,
          .block_rows = 128,
          .block_cols = 128,
          .scale_cols = cols / 128,
          .block_rows_log2 = 7,
          .block_cols_log2 = 7,
          .format = WeightFormat::kFp8Block,
          .data_dtype = DType::kF8E4M3,
          .scale_dtype = DType::kF8E8M0,
          .kind = MatmulKind::kMmaFp8,
          .quantized_x = true,
          .x_group = 128,
          .exact_x = true};
}
inline DeviceWeight Fp4(int64_t rows, int64_t cols, bool nvfp4) {
  return {.data = WeightData(),
          .scale = WeightScale(),
          .rows = rows,
          .cols = cols,
          .scale_cols = cols / (nvfp4 ? 16 : 32),
          .format = nvfp4 ? WeightFormat::kNvFp4 : WeightFormat::kMxFp4,
          .kind = nvfp4 ? MatmulKind::kMmaNvFp4 : MatmulKind::kMmaMxFp4,
          .quantized_x = !nvfp4,
          .x_group = nvfp4 ? 0 : 128,
          .exact_x = true,
          .repacked = true};
}

}  // namespace dsv4::backend::cuda
