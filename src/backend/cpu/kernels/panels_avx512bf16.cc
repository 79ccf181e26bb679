// Panels of bf16 with AVX-512 dot products of pairs.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "backend/cpu/kernels/panels.h"

namespace dsv4::backend::cpu::avx512bf16 {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 2;
using Vec = __m512;

inline Vec MultiplyStep(Vec sum, const uint8_t* a, Vec b) {
  int32_t pair;
  __builtin_memcpy(&pair, a, sizeof(pair));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                          reinterpret_cast<__m512bh>(b));
}

#include "backend/cpu/kernels/panels_body.h"

// Words of eight codes are transposed as they are; a byte of each lane is then a step. A code's bf16 comes from a table, and its group's
// power of two is added to the exponent, but for zeros.
static void PackE2m1Lanes(const uint8_t* const* rows, int64_t num_rows, int64_t depth, int64_t group,
                          const int32_t* exponents, uint8_t* panel) {
  typedef uint16_t Pairs __attribute__((vector_size(kStepBytes)));
  const Pairs table = {0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
                       0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
                       0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  for (int64_t k = 0; k < depth; k += 8 * kLanes) {
    Words words[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) words[r] = r < num_rows ? Load<Words>(rows[r] + k / 2) : Words{};
    Transpose(words);
    for (int w = 0; w < kLanes; ++w) {
      const Words exponent = Load<Words>(exponents + (k + 8 * w) / group * kLanes);
      const Pairs power = reinterpret_cast<Pairs>(((exponent << 7) & 0xFFFFU) | exponent << 23);
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b) {
        const Words byte = words[w] >> (8 * b);
        const Words codes = (byte & 0xFU) | ((byte & 0xF0U) << 12);
        const Pairs values = reinterpret_cast<Pairs>(
            _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(codes), reinterpret_cast<__m512i>(table)));
        const Pairs nonzero = reinterpret_cast<Pairs>((values & 0x7FFF) != 0);
        Store(panel + (k / 2 + 4 * w + b) * kStepBytes, values + (power & nonzero));
      }
    }
  }
}

}  // namespace

const PanelKernels kPanels = [] {
  PanelKernels kernels = MakePanelKernels();
  kernels.pack_e2m1_lanes = PackE2m1Lanes;
  return kernels;
}();

}  // namespace dsv4::backend::cpu::avx512bf16
