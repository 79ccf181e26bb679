// Facts that choose kernels beside an op's shape: the device, and the modes that change numerics. Host code,
// in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/block_scaled_mode.h"
#include "backend/cuda/fp8_products.h"

namespace dsv4::backend::cuda {

struct DeviceLimits {
  int compute_capability = 90;  // 90 is 9.0.
  // Capability that the device's code was compiled for. It is less than the device's own where it runs code
  // for older devices, without later features.
  int code_capability = 90;
  int num_sms = 132;
  size_t shared_bytes = size_t{227} * 1024;  // Shared memory that one block may have.
  BlockScaledMode block_scaled = BlockScaledMode::kOff;
  Fp8Products fp8_products = Fp8Products::kOff;

  // wgmma is machine code of that generation alone.
  bool has_wgmma() const { return compute_capability == 90 && code_capability == 90; }
  // So are block-scaled products (tcgen05) of Blackwell's.
  bool has_block_scaled() const { return compute_capability == 100 && code_capability == 100; }
  // Since Hopper: clusters of blocks, and TMA with its barriers.
  bool has_clusters() const { return code_capability >= 90; }
  bool has_tma() const { return code_capability >= 90; }
};

}  // namespace dsv4::backend::cuda
