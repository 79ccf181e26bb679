// Panels of fp32 with AVX-512.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "backend/cpu/kernels/panels.h"

namespace dsv4::backend::cpu::avx512 {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 1;
using Vec = __m512;

inline Vec MultiplyStep(Vec sum, const uint8_t* a, Vec b) {
  float element;
  __builtin_memcpy(&element, a, sizeof(element));
  return _mm512_fmadd_ps(_mm512_set1_ps(element), b, sum);
}

#include "backend/cpu/kernels/panels_body.h"

}  // namespace

const PanelKernels kPanels = MakePanelKernels();

}  // namespace dsv4::backend::cpu::avx512
