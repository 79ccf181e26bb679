// Panels of fp32 with AVX2 and FMA.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "backend/cpu/kernels/panels.h"

namespace dsv4::backend::cpu::avx2 {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kStep = 1;
using Vec = __m256;

inline Vec MultiplyStep(Vec sum, const uint8_t* a, Vec b) {
  float element;
  __builtin_memcpy(&element, a, sizeof(element));
  return _mm256_fmadd_ps(_mm256_set1_ps(element), b, sum);
}

#include "backend/cpu/kernels/panels_body.h"

}  // namespace

const PanelKernels kPanels = MakePanelKernels();

}  // namespace dsv4::backend::cpu::avx2
