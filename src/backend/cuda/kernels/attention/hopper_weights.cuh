// Weights of a tile as operands in registers, which threads of other blocks may have too: the unit's sums lie
// as its operands do.
#pragma once

#include "backend/cuda/device/numeric/device_numbers.cuh"
#include "backend/cuda/device/ptx/wgmma_transposed.cuh"
#include "backend/cuda/kernels/attention/hopper_layout.cuh"

namespace dsv4::backend::cuda::hopper {

// Writes them to `block` in the order in which a warpgroup that multiplies has them in registers, which is
// this one's order too. A step's 16 keys are kStepBytes, and a thread has 16 bytes there.
inline constexpr int kStepBytes = 16 * kConsumers / 2;
__device__ __forceinline__ void StoreWeightsOfThreads(unsigned char* block, const float (&weights)[kLogits],
                                                      int thread) {
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const float* const of_step = weights + step * 8;
    *reinterpret_cast<uint4*>(block + step * kStepBytes + thread * 16) =
        make_uint4(Bf16Pair(of_step[0], of_step[1]), Bf16Pair(of_step[2], of_step[3]),
                   Bf16Pair(of_step[4], of_step[5]), Bf16Pair(of_step[6], of_step[7]));
  }
}

// Begins the product of a tile's weights, [step]: those of its 16 keys, and kColumns columns of its keys in
// shared memory.
template <int kColumns>
__device__ __forceinline__ void BeginValues(float (&values)[kColumns / 2], uint32_t (&weights)[kKeys / 16][4],
                                            uint32_t columns) {
  FenceRegisters(values);
  FenceRegisters(weights);
  BeginMatrixSteps();
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    TransposedMatrixStep<kColumns>::Add(values, weights[i],
                                        TransposedDescriptor(columns + i * (16 * kLineBytes), kBlockBytes),
                                        i > 0 ? 1 : 0);
  }
  CommitMatrixSteps();
}

}  // namespace dsv4::backend::cuda::hopper
