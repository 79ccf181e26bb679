// The integers that NumPy's default_rng(seed).integers(0, bound) draws: PCG64 (XSL-RR 128/64), seeded by
// SeedSequence, bounded by Lemire's method. The release took the multipliers of its n-gram hash from there,
// and no file has them.
#pragma once

#include <cstdint>

namespace dsv4::model {

class NumpyDraws {
 public:
  // A seed of at most 32 bits.
  explicit NumpyDraws(uint32_t seed);
  // 64 bits.
  uint64_t Next();
  // Below `bound`, which is more than 2^32; for smaller ones NumPy takes 32 bits a draw.
  uint64_t Below(uint64_t bound);

 private:
  __extension__ using Wide = unsigned __int128;

  void Step();

  Wide state_ = 0;
  Wide increment_ = 0;
};

}  // namespace dsv4::model
