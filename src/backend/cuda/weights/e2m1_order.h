// How codes of e2m1 become pairs of bf16, and an order of codes in which that takes fewer instructions.
//
// A code's bits as a bf16 are the value times 2^-126, subnormals and all. They are the sign, and its three
// bits as the lowest two of the exponent and the highest of the mantissa. Two such bf16 are a word's bits
// kE2m1Pair. In a word of eight codes as they are stored, sign and magnitude of each pair want shifts of
// their own. The device keeps them in another order (prepare_weight.cc). There one shift or rotation serves
// both, for three pairs in each of two words of 16 codes. The rest of both words is put together
// for one more pair each. That is 16 instructions for 16 codes, where codes as they are stored take 26. An order
// in which every pair is one rotation and one mask does not exist for 64 bits, nor for 128 (all were tried).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dsv4::backend::cuda {

inline constexpr uint32_t kE2m1Pair = 0x81C081C0U;
// Bits of the two words' rest, where the first one's lies.
inline constexpr uint32_t kE2m1RestOfFirst = 0x0C180C18U;

__host__ __device__ constexpr uint32_t RotatedLeft(uint32_t word, int by) {
  return word << by | word >> (32 - by);
}

// Codes k and k + 4 of a word of eight as they are stored.
__host__ __device__ constexpr uint32_t StoredE2m1Pair(uint32_t word, int k) {
  const uint32_t magnitude = k < 2 ? word << (6 - 4 * k) : word >> (4 * k - 6);
  return (magnitude & 0x01C001C0U) | (word << (12 - 4 * k) & 0x80008000U);
}

// The same where logical instructions are too many: a product, which runs beside them, puts sign and
// magnitude at their bits at once.
__host__ __device__ constexpr uint32_t StoredE2m1PairByProduct(uint32_t word, int k) {
  const uint32_t shifted = k < 2 ? word : word >> 8;
  const uint32_t codes = shifted & (k % 2 == 0 ? 0x000F000FU : 0x00F000F0U);
  return codes * (k % 2 == 0 ? 0x1040U : 0x0104U) & kE2m1Pair;
}

// Remainder of two words, put together. In one instruction and a rotation: left to itself the compiler
// follows each bit and takes six.
__host__ __device__ inline uint32_t RestOfE2m1(uint32_t first, uint32_t second) {
  const uint32_t rotated = RotatedLeft(second, 2);
#ifdef __CUDA_ARCH__
  uint32_t rest;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(rest) : "r"(first), "r"(rotated), "r"(kE2m1RestOfFirst));
  return rest;
#else
  return (first & kE2m1RestOfFirst) | (rotated & ~kE2m1RestOfFirst);
#endif
}

// Pair i < 8 of 16 codes in the device's order: codes k and k + 4 of its word i / 4, k = i % 4.
__host__ __device__ inline uint32_t OrderedE2m1Pair(uint32_t first, uint32_t second, int i) {
  const uint32_t word = i < 4 ? first : second;
  switch (i % 4) {
    case 0:
      return word & kE2m1Pair;
    case 1:
      return word << 6 & kE2m1Pair;
    case 2:
      return RotatedLeft(word, 10) & kE2m1Pair;
    default:
      break;
  }
  const uint32_t rest = RestOfE2m1(first, second);
  return (i == 3 ? rest << 2 : RotatedLeft(rest, 12)) & kE2m1Pair;
}

// 16 codes, the first in the lowest bits, from the order of the file into the device's.
__host__ __device__ constexpr uint64_t InE2m1Order(uint64_t stored) {
  const uint32_t words[2] = {static_cast<uint32_t>(stored), static_cast<uint32_t>(stored >> 32)};
  uint32_t ordered[2] = {};
  for (int w = 0; w < 2; ++w) {
    ordered[w] = StoredE2m1Pair(words[w], 0) | StoredE2m1Pair(words[w], 1) >> 6 |
                 RotatedLeft(StoredE2m1Pair(words[w], 2), 32 - 10);
  }
  const uint32_t rest = StoredE2m1Pair(words[0], 3) >> 2 | RotatedLeft(StoredE2m1Pair(words[1], 3), 32 - 12);
  ordered[0] |= rest & kE2m1RestOfFirst;
  ordered[1] |= RotatedLeft(rest & ~kE2m1RestOfFirst, 32 - 2);
  return uint64_t{ordered[1]} << 32 | ordered[0];
}

// InE2m1Order of all of device memory, in place. data: aligned to 16 bytes, num_bytes a multiple of
// 16.
cudaError_t LaunchE2m1Order(cudaStream_t stream, void* data, size_t num_bytes);

}  // namespace dsv4::backend::cuda
