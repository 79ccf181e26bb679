// NumPy's default generator. Constants are those of PCG64 and of SeedSequence.
#include "model/engram/numpy_draws.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace dsv4::model {
namespace {

// A running hash of 32-bit words: every word has another multiplier.
class WordHash {
 public:
  WordHash(uint32_t first, uint32_t factor) : constant_(first), factor_(factor) {}
  uint32_t operator()(uint32_t word) {
    word ^= constant_;
    constant_ *= factor_;
    word *= constant_;
    return word ^ word >> 16;
  }

 private:
  uint32_t constant_;
  uint32_t factor_;
};

uint32_t Mixed(uint32_t x, uint32_t y) {
  const uint32_t word = 0xCA01F9DDU * x - 0x4973F715U * y;
  return word ^ word >> 16;
}

// Four words of 64 bits made of a seed, the lower half of each first.
std::array<uint64_t, 4> SeedWords(uint32_t seed) {
  std::array<uint32_t, 4> pool = {seed, 0, 0, 0};
  WordHash in(0x43B0D7E5U, 0x931E8875U);
  for (uint32_t& word : pool) word = in(word);
  for (size_t from = 0; from < pool.size(); ++from) {
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = Mixed(pool[to], in(pool[from]));
    }
  }
  WordHash out(0x8B51F9DDU, 0x58F38DEDU);
  std::array<uint64_t, 4> words;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t low = out(pool[2 * i % 4]);
    words[i] = low | uint64_t{out(pool[(2 * i + 1) % 4])} << 32;
  }
  return words;
}

}  // namespace

NumpyDraws::NumpyDraws(uint32_t seed) {
  const std::array<uint64_t, 4> words = SeedWords(seed);
  increment_ = (Wide{words[2]} << 64 | words[3]) << 1 | 1;
  Step();
  state_ += Wide{words[0]} << 64 | words[1];
  Step();
}

void NumpyDraws::Step() {
  constexpr Wide kFactor = Wide{0x2360ED051FC65DA4U} << 64 | 0x4385DF649FCCF645U;
  state_ = state_ * kFactor + increment_;
}

uint64_t NumpyDraws::Next() {
  Step();
  const auto high = static_cast<uint64_t>(state_ >> 64);
  return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(state_ >> 122));
}

uint64_t NumpyDraws::Below(uint64_t bound) {
  DSV4_CHECK(bound > uint64_t{1} << 32) << bound;
  const uint64_t least = (0 - bound) % bound;  // 2^64 mod bound: that many draws would favour some numbers.
  while (true) {
    const Wide product = Wide{Next()} * bound;
    if (static_cast<uint64_t>(product) >= least) return static_cast<uint64_t>(product >> 64);
  }
}

}  // namespace dsv4::model
