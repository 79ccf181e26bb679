// Scores of the indexer's keys as the release stores them (formats/cache_rows.h): 128 columns e2m1, a power
// of two for each 32. Codes are multiplied as bytes, with queries whose rows are bytes times a power of two
// as well, which those on the FP4 grid are.
//
// A key's groups must lie within a factor of eight. Twice its values over the smallest group's power are then
// integers up to 96, and a head's up to 127. A dot product and every part of it have at most 21 bits, so the
// sum in fp32 is the same in any order.
#pragma once

#include <cstdint>

namespace dsv4::backend::cpu {

inline constexpr int64_t kFp4Keys = 32;  // A block's.
inline constexpr int64_t kFp4KeyWidth = 128;
inline constexpr int64_t kFp4KeyGroup = 32;
inline constexpr int64_t kFp4KeyBlockBytes = kFp4Keys * (kFp4KeyWidth + 20);

struct Fp4KeyKernels {
  // All null: not in this tier.

  // A token's rows of bf16, [num_heads, 128], with its heads' weights. False where a row is no such bytes, or
  // its power or its weight times that is not one of usual size.
  bool (*pack_query)(const uint8_t* rows, const float* weights, int64_t num_heads, uint8_t* packed) = nullptr;
  // Up to kFp4Keys rows as they are stored. False where one's groups lie too far apart, or its power is not
  // of usual size.
  bool (*pack_keys)(const uint8_t* const* rows, int64_t num_rows, uint8_t* packed) = nullptr;
  // scores[j] = sum over heads of weight * relu(dot) for kFp4Keys keys; each dot, each product and the sum
  // are rounded to bf16.
  void (*score)(const uint8_t* query, const uint8_t* keys, int64_t num_heads, float* scores) = nullptr;

  // Room for a packed query: groups of eight heads, each with its bytes and what a tier adds to them.
  static constexpr int64_t QueryBytes(int64_t num_heads) {
    return (num_heads + 7) / 8 * 8 * (kFp4KeyWidth + 36);
  }
};

namespace avx2 {
[[gnu::weak]] extern const Fp4KeyKernels kFp4KeyKernels;
}
namespace avx512 {
[[gnu::weak]] extern const Fp4KeyKernels kFp4KeyKernels;
}

}  // namespace dsv4::backend::cpu
