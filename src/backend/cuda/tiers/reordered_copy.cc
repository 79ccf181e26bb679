// Copy of NVFP4 codes into the device's order at the rate of memory.
#include "backend/cuda/tiers/reordered_copy.h"

#include <cstdint>
#include <cstring>

#include "backend/cuda/weights/e2m1_order.h"

namespace dsv4::backend::cuda {
namespace {

constexpr size_t kBlocks = 4;  // At once.
typedef uint64_t Blocks __attribute__((vector_size(kBlocks * sizeof(uint64_t))));
typedef uint32_t Words __attribute__((vector_size(kBlocks * sizeof(uint64_t))));

// As InE2m1Order, whose lines these are: a block's two words are neighbours, the first one the lower half.
// One by one blocks take four times as long as a copy, and so would a start.
[[gnu::always_inline]] inline void Copy(std::byte* to, const std::byte* from, size_t num_bytes) {
  size_t i = 0;
  for (; i + sizeof(Words) <= num_bytes; i += sizeof(Words)) {
    Words words;
    std::memcpy(&words, from + i, sizeof(words));
    const Words pair0 = (words << 6 & 0x01C001C0U) | (words << 12 & 0x80008000U);
    const Words pair1 = (words << 2 & 0x01C001C0U) | (words << 8 & 0x80008000U);
    const Words pair2 = (words >> 2 & 0x01C001C0U) | (words << 4 & 0x80008000U);
    const Words pair3 = (words >> 6 & 0x01C001C0U) | (words & 0x80008000U);
    const Words ordered = pair0 | pair1 >> 6 | (pair2 >> 10 | pair2 << 22);
    const Words of_first = pair3 >> 2;
    const Words of_second = pair3 >> 12 | pair3 << 20;
    const Blocks rest = ((Blocks)of_first & 0xFFFFFFFFU) | (Blocks)of_second >> 32;
    const Blocks second = rest & ~uint64_t{kE2m1RestOfFirst};
    const Blocks turned = (second >> 2 | second << 30) << 32;
    const Blocks all = (Blocks)ordered | (rest & kE2m1RestOfFirst) | turned;
    std::memcpy(to + i, &all, sizeof(all));
  }
  for (; i < num_bytes; i += sizeof(uint64_t)) {
    uint64_t codes;
    std::memcpy(&codes, from + i, sizeof(codes));
    codes = InE2m1Order(codes);
    std::memcpy(to + i, &codes, sizeof(codes));
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void CopyWithAvx2(std::byte* to, const std::byte* from, size_t num_bytes) {
  Copy(to, from, num_bytes);
}
#endif

}  // namespace

void CopyInE2m1Order(std::byte* to, const std::byte* from, size_t num_bytes) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return CopyWithAvx2(to, from, num_bytes);
#endif
  Copy(to, from, num_bytes);
}

}  // namespace dsv4::backend::cuda
