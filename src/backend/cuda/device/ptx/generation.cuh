// Features that the machine code being compiled may use. The host chooses kernels by the same facts
// (lowering/device_limits.h).
#pragma once

namespace dsv4::backend::cuda {

#ifdef __CUDA_ARCH__
inline constexpr int kCodeCapability = __CUDA_ARCH__ / 10;  // 90 is 9.0.
#else
inline constexpr int kCodeCapability = 90;  // Host code, which is only checked.
#endif

// Clusters, TMA and its barriers, programmatic launch, elect.sync, products in bf16, FP64 tensor cores of
// step m16n8k8.
inline constexpr bool kIsHopperOrLater = kCodeCapability >= 90;
// Conversions of e4m3.
inline constexpr bool kConvertsE4m3 = kCodeCapability >= 89;

}  // namespace dsv4::backend::cuda
