// Constants that the units of fp4_keys.h share: how far apart exponents may lie, and a query's bytes.
// Included inside their namespaces.
//
// No include guard: one inclusion per unit.

#include "backend/cpu/kernels/memory_body.h"

constexpr int kCodeBytes = kFp4KeyWidth / 2;  // A row's; its scales come next.
constexpr int kMostShift = 3;                 // Between a key's groups.
// Keys are the unsigned operand: the largest magnitude of twice a code's value is added to each.
constexpr int kCodeOffset = 12;
// Bounds of exponents: powers of two of keys and queries, and a head's weight times its power. Nothing then
// leaves the normal numbers of fp32, nor does what is rounded before it is multiplied by a power.
constexpr int kLargestExponent = 40;
constexpr float kLargestFactor = 0x1p40F;
constexpr float kSmallestFactor = 0x1p-70F;

DSV4_INLINE bool UsualExponent(int exponent) {
  return exponent >= -kLargestExponent && exponent <= kLargestExponent;
}
DSV4_INLINE float PowerOfTwo(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(127 + exponent) << 23;
  return Load<float>(&bits);
}

// The order in which steps of four bytes take columns. The even ones of eight come first, which are the low
// nibbles of a word, then the odd ones.
constexpr int ColumnOfStep(int i) { return i / 8 * 8 + i % 4 * 2 + i / 4 % 2; }

// A head's row of bf16 as bytes, in the order of its columns, and its weight times their power of two. False
// where fp4_keys.h says so.
static inline bool BytesOfHead(const uint8_t* row, float weight, int8_t* bytes, float* factor) {
  float values[kFp4KeyWidth];
  uint32_t largest = 0;
  for (int i = 0; i < kFp4KeyWidth; ++i) {
    const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(row + 2 * i)) << 16;
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
    __builtin_memcpy(&values[i], &bits, sizeof(bits));
  }
  // The largest one is at least 64 and less than 128 of these.
  const int exponent = largest == 0 ? 0 : static_cast<int>(largest >> 23) - 127 - 6;
  if (!UsualExponent(exponent)) return false;
  const float inverse = PowerOfTwo(-exponent);
  int num_exact = 0;
  for (int i = 0; i < kFp4KeyWidth; ++i) {
    const float scaled = values[i] * inverse;
    const auto integer = static_cast<int32_t>(scaled);
    num_exact += static_cast<float>(integer) == scaled ? 1 : 0;
    bytes[i] = static_cast<int8_t>(integer);
  }
  *factor = weight * PowerOfTwo(exponent);
  const float size = __builtin_fabsf(*factor);
  return num_exact == kFp4KeyWidth && (weight == 0.0F || (size >= kSmallestFactor && size <= kLargestFactor));
}
