// The kernels of the ops that treat rows one by one, once per instruction-set tier. As in kernels.h they take
// raw pointers, and the units of the tiers share no inline code with the rest.
//
// All arithmetic is double, eight lanes at a time. A result rounded to fp32 or bf16 is therefore the
// reference's. The exception is an exact value within a few parts in 2^53 of the middle between two
// neighbours. The exponential has a relative error below 2^-51. It gives e^-700 for x < -700 and infinity for
// x > 709, which no fp32 result can tell from the truth.
//
// Rows of activations are bf16 (`bf16` true) or fp32, at any address.
#pragma once

#include <cstdint>

namespace dsv4::backend::cpu {

struct RowKernels {
  // out[i] = fl32(row_weight * silu(min(gate[i], limit)) * clamp(up[i], -limit, limit)). `out` may be `gate`
  // or `up`.
  void (*swiglu)(const float* gate, const float* up, int64_t count, double limit, double row_weight,
                 float* out);
  // sum_i x[i]^2; with `round_squares` each square is rounded to bf16 first.
  double (*sum_squares)(const float* x, int64_t count, bool round_squares);
  // out[i] = fl32(x[i] * (factor * weight[i])), or without weight (null) fl32(x[i] * factor). `out` may be
  // `x`.
  void (*scale)(const float* x, const float* weight, int64_t count, double factor, float* out);

  // out[o][d] = round(sum_i factors[o * num_in + i] in[i][d]), i ascending; inputs and outputs of one dtype,
  // and an output may be an input. num_in <= kMaxMixRows.
  void (*mix_rows)(const uint8_t* const* in, int64_t num_in, bool bf16, const double* factors,
                   int64_t num_out, int64_t count, uint8_t* const* out);
  // out[t * num_rows + r] = sum_j rows[r][j] x[t][j]; `rows` fp32 [num_rows, width] at any address,
  // row_stride elements apart, x[t] at x + t * width. The sum of a pair does not depend on the other rows and
  // tokens.
  void (*dot_rows)(const uint8_t* rows, int64_t row_stride, int64_t num_rows, int64_t width, const float* x,
                   int64_t num_tokens, double* out);

  // Sine and cosine of `count` angles; full range.
  void (*sine_cosine)(const float* angles, int64_t count, double* sines, double* cosines);
  // Rotates num_pairs pairs of each row in place, rows `stride` bytes apart: (a, b) -> (a cos - b sin, a sin
  // + b cos).
  void (*rotate)(uint8_t* data, bool bf16, int64_t num_rows, int64_t stride, int64_t num_pairs,
                 const double* sines, const double* cosines);
  // out = factor * H x rounded to fp32, with `bf16` to bf16; H in natural order, width a power of two >= 8;
  // `scratch` holds `width` doubles.
  void (*hadamard)(const float* x, int64_t width, double factor, bool bf16, double* scratch, float* out);
  // SIM4 of one row in groups (formats/quantize.h RoundToFp4Groups, same bits), in place. False, and the row
  // as it was, if it holds a NaN or an infinity.
  bool (*round_fp4)(float* row, int64_t count, int64_t group);

  // Codes of a packed cache row as bf16 (formats/cache_rows.h): num_groups of `group` codes, an even number.
  // Each is multiplied by its group's scale, which is exact. A byte has two e2m1 codes. NaN codes and scales
  // give NaN.
  void (*widen_e4m3)(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                     uint8_t* out);
  void (*widen_e2m1)(const uint8_t* codes, const float* scales, int64_t num_groups, int64_t group,
                     uint8_t* out);

  // Smallest and largest of `count` values >= 1; NaNs may be left out.
  void (*range)(const float* x, int64_t count, float* smallest, float* largest);
  // weights[i] = fl32(e^(scale * logits[i] - max)), with `round_weights` rounded to bf16 on top. Returns the
  // sum of the exponentials before any rounding. `weights` may be `logits`.
  double (*exponentials)(const float* logits, int64_t count, double scale, double max, bool round_weights,
                         float* weights);
  // No NaN and no infinity among `count` elements.
  bool (*all_finite)(const uint8_t* row, bool bf16, int64_t count);
  // scores[i] = sum over heads of weights[h] relu(dots[h * stride + i]), for kScoreKeys keys; with `bf16`
  // each dot, each product and the sum are rounded to bf16. NaN stays NaN.
  void (*index_scores)(const float* dots, int64_t stride, int64_t num_heads, const float* weights, bool bf16,
                       float* scores);

  // Per channel c: softmax over tokens of scores[t * score_stride + c], which weighs values[t][c].
  void (*pool)(const float* scores, int64_t score_stride, const float* const* values, int64_t num_tokens,
               int64_t count, float* out);
};

inline constexpr int64_t kMaxMixRows = 17;
inline constexpr int64_t kScoreKeys = 16;

namespace scalar {
[[gnu::weak]] extern const RowKernels kRows;
}
namespace avx2 {
[[gnu::weak]] extern const RowKernels kRows;
}
namespace avx512 {
[[gnu::weak]] extern const RowKernels kRows;
}

}  // namespace dsv4::backend::cpu
