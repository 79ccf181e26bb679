// AMX tile instructions in software, bit for bit, so that tests run the tile kernels on any machine.
#include "backend/cpu/emulated_tiles_testing.h"

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels/kernels.h"

namespace dsv4::backend::cpu::emulated {
namespace {

#include "backend/cpu/kernels/e4m3_bf16_body.h"
#include "backend/cpu/kernels/memory_body.h"

// Tiles as Intel's manual defines them. Subnormal numbers are zero. Products are added with one rounding, the
// even and the odd columns of a step apart. Both sums are then added together to the old sums.
struct Tiles {
  Tiles(int64_t first_tokens, int64_t second_tokens) : num_tokens{first_tokens, second_tokens} {}

  template <int kTile>
  void Clear() {
    for (auto& row : sums[kTile]) {
      for (float& sum : row) sum = 0;
    }
  }
  template <int kTile>
  void Read(const void* from, int64_t stride) {
    const int64_t bytes = kTile < 6 ? 64 : 4 * num_tokens[kTile - 6];
    for (int64_t r = 0; r < 16; ++r)
      __builtin_memcpy(operands[kTile - 4][r], static_cast<const uint8_t*>(from) + r * stride,
                       static_cast<uint64_t>(bytes));
  }
  template <int kTile>
  void Write(void* to, int64_t stride) {
    for (int64_t r = 0; r < 16; ++r)
      __builtin_memcpy(static_cast<uint8_t*>(to) + r * stride, sums[kTile][r],
                       static_cast<uint64_t>(4 * num_tokens[kTile / 2]));
  }
  template <int kSums, int kWeights, int kTokens>
  void Add() {
    for (int64_t m = 0; m < 16; ++m) {
      for (int64_t n = 0; n < num_tokens[kTokens - 6]; ++n) {
        float parts[2] = {};
        for (int64_t k = 0; k < 16; ++k) {
          for (int64_t odd = 0; odd < 2; ++odd)
            parts[odd] = Flushed(__builtin_fmaf(Element(kWeights, m, 2 * k + odd),
                                                Element(kTokens, k, 2 * n + odd), parts[odd]));
        }
        sums[kSums][m][n] = Flushed(sums[kSums][m][n] + Flushed(parts[0] + parts[1]));
      }
    }
  }

 private:
  static float Flushed(float value) { return __builtin_fabsf(value) < 0x1p-126F ? value * 0 : value; }
  float Element(int tile, int64_t row, int64_t i) const {
    const uint32_t bits = uint32_t{operands[tile - 4][row][i]} << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return Flushed(value);
  }

  int64_t num_tokens[2];
  float sums[4][16][16] = {};
  uint16_t operands[4][16][32] = {};
};

#include "backend/cpu/kernels/tile_matmul_body.h"

}  // namespace

const MatmulKernels kBf16Matmul = kTileMatmul;

}  // namespace dsv4::backend::cpu::emulated
