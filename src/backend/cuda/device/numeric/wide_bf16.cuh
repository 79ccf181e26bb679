// Numbers in bf16 as doubles without conversions, of which an SM does 16 a clock, a quarter of its products.
// Their bits are put where a double has them. The missing part of the exponent is then a factor that products
// take along or make up for.
#pragma once

#include <cstdint>

namespace dsv4::backend::cuda {

// Element e (0 is the lower) of a pair, divided by kWideUnit. What is infinite or NaN becomes 2^128 and more
// of that.
inline constexpr double kWideUnit = 0x1p896;
__device__ __forceinline__ double WideBf16(uint32_t pair, int e) {
  const int high = e == 0 ? (static_cast<int>(pair << 16) >> 3) & static_cast<int>(0x8FFFFFFF)
                          : (static_cast<int>(pair) >> 3) & static_cast<int>(0x8FFFE000);
  return __hiloint2double(high, 0);
}
__device__ __forceinline__ float FloatBf16(uint32_t pair, int e) {
  return __uint_as_float(e == 0 ? pair << 16 : pair & 0xFFFF0000U);
}

// Whether none of the pairs that were added has an element that is infinite or NaN.
class FinitePairs {
 public:
  __device__ __forceinline__ void Add(uint32_t pair) { largest_ = __vmaxu2(largest_, pair & 0x7FFF7FFFU); }
  __device__ __forceinline__ void Add(const uint4& pairs) {
    Add(pairs.x);
    Add(pairs.y);
    Add(pairs.z);
    Add(pairs.w);
  }
  __device__ __forceinline__ bool all() const {
    return (largest_ & 0xFFFFU) < 0x7F80U && largest_ < 0x7F800000U;
  }

 private:
  uint32_t largest_ = 0;
};

// Eight elements to sixteen aligned bytes: of a store of a uint4 whose words are made one by one, the
// compiler makes four.
__device__ __forceinline__ void StorePairs(uint16_t* data, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(data), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Element k of eight.
__device__ __forceinline__ uint32_t PairOf(const uint4& pairs, int k) {
  return k < 4 ? (k < 2 ? pairs.x : pairs.y) : (k < 6 ? pairs.z : pairs.w);
}

}  // namespace dsv4::backend::cuda
