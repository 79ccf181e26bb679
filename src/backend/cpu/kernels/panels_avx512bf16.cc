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

}  // namespace

const PanelKernels kPanels = MakePanelKernels();

}  // namespace dsv4::backend::cpu::avx512bf16
