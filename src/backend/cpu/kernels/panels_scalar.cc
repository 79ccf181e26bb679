// Panels of fp32 on every x86-64 machine.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "backend/cpu/kernels/panels.h"

namespace dsv4::backend::cpu::scalar {
namespace {

constexpr int64_t kLanes = 4;
constexpr int64_t kStep = 1;
using Vec = __m128;

inline Vec MultiplyStep(Vec sum, const uint8_t* a, Vec b) {
  float element;
  __builtin_memcpy(&element, a, sizeof(element));
  return _mm_add_ps(sum, _mm_mul_ps(_mm_set1_ps(element), b));
}

#include "backend/cpu/kernels/panels_body.h"

}  // namespace

const PanelKernels kPanels = MakePanelKernels();

}  // namespace dsv4::backend::cpu::scalar
