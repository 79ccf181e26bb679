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

inline __m512bh Broadcast(const uint8_t* pair) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(Load<int32_t>(pair)));
}
inline __m512bh LoadPairs(const uint8_t* from) { return Load<__m512bh>(from); }

// Lanes c of two panels, with eight rows.
void MultiplyRows(const uint8_t* const* rows, int64_t num_rows, const uint8_t* b, int64_t b_bytes,
                  int64_t num_lanes, int64_t depth, float* out, int64_t out_stride) {
  constexpr int kRows = kRowsAsTheyLie;
  constexpr int kPanels = 2;
  const uint8_t* from[kRows];
  for (int r = 0; r < kRows; ++r) from[r] = rows[r < num_rows ? r : 0];
  for (int64_t lane = 0; lane < num_lanes; lane += kPanels * kLanes, b += kPanels * b_bytes) {
    const uint8_t* const second = lane + kLanes < num_lanes ? b + b_bytes : b;
    __m512 totals[kRows][kPanels];
    for (int64_t begin = 0; begin < depth; begin += kPanelRun) {
      const int64_t end = begin + kPanelRun < depth ? begin + kPanelRun : depth;
      __m512 sums[kRows][kPanels] = {};
      for (int64_t k = begin; k < end; k += kStep) {
        const __m512bh first_step = LoadPairs(b + k / kStep * kStepBytes);
        const __m512bh second_step = LoadPairs(second + k / kStep * kStepBytes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const __m512bh pair = Broadcast(from[r] + 2 * k);
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, first_step);
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, second_step);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p)
          totals[r][p] = begin == 0 ? sums[r][p] : _mm512_add_ps(totals[r][p], sums[r][p]);
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      for (int64_t c = 0; c < kLanes && lane + p * kLanes + c < num_lanes; ++c) {
        float* const to = out + (lane + p * kLanes + c) * out_stride;
        for (int64_t r = 0; r < num_rows; ++r) to[r] = totals[r][p][c];
      }
    }
  }
}

// Rows of a pair are interleaved in quarters of a register. One register has the sums of columns 0-3, 8-11,
// 16-19, 24-27, another the rest.
void MultiplyColumns(const uint8_t* weights, int64_t weight_bytes, int64_t num_weights,
                     const uint8_t* const* rows, int64_t num_rows, int64_t first, int64_t num_columns,
                     bool add, float* out, int64_t out_stride) {
  constexpr int kWeights = 8;
  constexpr int64_t kColumns = 2 * kLanes;
  const __m512i low_order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high_order = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int64_t column = 0; column < num_columns; column += kColumns) {
    const int64_t at = 2 * (first + column);
    for (int64_t begin = 0; begin < num_rows; begin += kPanelRun) {
      const int64_t end = begin + kPanelRun < num_rows ? begin + kPanelRun : num_rows;
      const bool join = add || begin > 0;
      for (int64_t w = 0; w < num_weights; w += kWeights) {
        const int64_t count = num_weights - w < kWeights ? num_weights - w : kWeights;
        const uint8_t* pairs[kWeights];
        for (int64_t r = 0; r < kWeights; ++r) pairs[r] = weights + (w + (r < count ? r : 0)) * weight_bytes;
        __m512 sums[kWeights][2] = {};
        for (int64_t k = begin; k < end; k += 2) {
          const __m512i even = _mm512_loadu_si512(rows[k] + at);
          const __m512i odd = _mm512_loadu_si512(rows[k + 1] + at);
          const auto low = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
          const auto high = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
#pragma GCC unroll 8
          for (int r = 0; r < kWeights; ++r) {
            const __m512bh pair = Broadcast(pairs[r] + 2 * k);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, low);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, high);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kWeights; ++r) {
          if (r >= count) continue;
          float* const to = out + (w + r) * out_stride + column;
          const __m512 left = _mm512_permutex2var_ps(sums[r][0], low_order, sums[r][1]);
          const __m512 right = _mm512_permutex2var_ps(sums[r][0], high_order, sums[r][1]);
          Store(to, join ? _mm512_add_ps(Load<Vec>(to), left) : left);
          Store(to + kLanes, join ? _mm512_add_ps(Load<Vec>(to + kLanes), right) : right);
        }
      }
    }
  }
}

}  // namespace

const PanelKernels kPanels = [] {
  PanelKernels kernels = MakePanelKernels();
  kernels.multiply_rows = MultiplyRows;
  kernels.multiply_columns = MultiplyColumns;
  return kernels;
}();

}  // namespace dsv4::backend::cpu::avx512bf16
