// Tests of the device's order of NVFP4 codes: every code and scale, there and back.
#include "backend/cuda/weights/e2m1_order.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>

namespace dsv4::backend::cuda {
namespace {

// The codes of a stored block that pair i is of.
uint32_t Codes(uint64_t stored, int i, int k) {
  return static_cast<uint32_t>(stored >> (i / 4 * 32 + k * 4)) & 0xFU;
}

uint32_t AsTinyBf16(uint32_t code) { return (code & 8U) << 12 | (code & 7U) << 6; }

uint32_t OrderedPair(uint64_t stored, int i) {
  const uint64_t ordered = InE2m1Order(stored);
  return OrderedE2m1Pair(static_cast<uint32_t>(ordered), static_cast<uint32_t>(ordered >> 32), i);
}

TEST(E2m1Order, PairsAreThoseOfTheFile) {
  for (int place = 0; place < 16; ++place) {
    for (uint64_t code = 0; code < 16; ++code) {
      // Alone, and among codes that have all bits.
      const uint64_t all = ~(uint64_t{0xF} << (4 * place));
      for (const uint64_t others : {uint64_t{0}, all}) {
        const uint64_t stored = others | code << (4 * place);
        for (int i = 0; i < 8; ++i) {
          const uint32_t want = AsTinyBf16(Codes(stored, i, i % 4)) | AsTinyBf16(Codes(stored, i, i % 4 + 4))
                                                                          << 16;
          ASSERT_EQ(OrderedPair(stored, i), want) << "code " << code << " at " << place << ", pair " << i;
          const auto word = static_cast<uint32_t>(stored >> (i / 4 * 32));
          ASSERT_EQ(StoredE2m1Pair(word, i % 4), want);
          ASSERT_EQ(StoredE2m1PairByProduct(word, i % 4), want);
        }
      }
    }
  }
}

TEST(E2m1Order, EveryBitGoesToAPlaceOfItsOwn) {
  std::set<uint64_t> places;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t place = InE2m1Order(uint64_t{1} << bit);
    EXPECT_TRUE(std::has_single_bit(place)) << bit;
    places.insert(place);
  }
  EXPECT_EQ(places.size(), 64);
}

}  // namespace
}  // namespace dsv4::backend::cuda
