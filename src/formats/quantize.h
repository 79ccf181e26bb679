// Rounding whole rows and matrices to the block formats: the simulated quantisation of activations and cache
// rows, and the weight quantisers behind `synth` and `convert`. Host memory, fp32 in and out.
//
// A power-of-two scale is always 2^ceil(log2(t)), where t is the block's largest magnitude over the largest
// value of the element format. It is computed as in the release's kernels: one fp32 product with the rounded
// reciprocal (fl32(1/448), fl32(1/6)), the logarithm from the bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/weight.h"

namespace dsv4 {

// SIM8 (model.md 2.2 and 2.3): per `group` consecutive values (the last group may be shorter)
//   s = 2^ceil(log2(max(max|x|, 1e-4) * fl32(1/448))),  out = e4m3(clamp(x / s, -448, 448)) * s
// exact in fp32 and in bf16. `out` has the size of `in` and may be the same memory. NaN stays NaN.
void RoundToFp8Groups(std::span<const float> in, int64_t group, std::span<float> out);

// SIM4 (model.md 2.3): as above with s = 2^ceil(log2(max(max|x|, 6 * 2^-126) * fl32(1/6))) and e2m1 elements.
// The format cannot hold NaN: a group with one becomes NaN as a whole.
void RoundToFp4Groups(std::span<const float> in, int64_t group, std::span<float> out);

// The same with e4m3 scales: s = e4m3(min(max(max|x|, 6 * 2^-9) / 6, 448)), in fp32.
void RoundToFp4E4m3Groups(std::span<const float> in, int64_t group, std::span<float> out);

// Borrows codes and scales that lie as weight.h says, for a weight that has its format and sizes; plain ones are
// bf16. 4-bit data is U8 (NVFP4) or I8 (MXFP4), as the releases store it.
void SetViews(const void* data, const void* scale, Weight& weight);

// A quantised matrix that owns its bytes, laid out as weight.h says.
struct QuantizedMatrix {
  WeightFormat format = WeightFormat::kPlain;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  float global_scale = 1.0F;

  // Borrows from this object.
  Weight View() const;
};

// `values` holds rows * cols finite numbers, row-major.

// e4m3 elements with e8m0 scales: s = 2^ceil(log2(max|w| / 448)) per block, clamped to the range of e8m0; an
// all-zero block gets s = 1. Any block size >= 1.
QuantizedMatrix QuantizeFp8Block(std::span<const float> values, int64_t rows, int64_t cols,
                                 int64_t block_rows, int64_t block_cols);
// How a quantiser chooses the scale of a 4-bit block.
enum class BlockScaleRule : uint8_t {
  kAmax,  // From the block's largest magnitude, which then meets the largest element: what other writers do.
  // The scale that gives the least sum of squared errors. Candidates put the block's largest magnitude
  // between the elements 4 and 6 or a little past. It never goes so far that a longer grid would round past
  // 6. Of equally good ones it is the kAmax scale, then the smallest. Never a larger error than kAmax.
  kLeastSquares,
};

// e2m1 elements with e8m0 scales, per 32 columns; cols must be a multiple of 32.
//   kAmax: s = 2^ceil(log2(max|w| / 6)); kLeastSquares: that or half of it, which is OCP's 2^(floor(log2(max|w|)) - 2) where
//   the two differ.
QuantizedMatrix QuantizeMxFp4(std::span<const float> values, int64_t rows, int64_t cols,
                              BlockScaleRule rule = BlockScaleRule::kAmax);
// NVFP4 with a data-derived global scale, NvFp4GlobalScale(max|w|); cols must be a multiple of 16.
QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols);
// max_magnitude / 2688, at least the smallest normal number; 1 when all is zero.
float NvFp4GlobalScale(float max_magnitude);
// The same with a given global scale > 0 (w1 and w3 of an expert share one). Per 16 columns with kAmax:
//   sr = e4m3(min(max|w| / (6 global), 448)),  codes = e2m1(w / (sr global)), all 0 when sr is 0.
// The elements are divided by the ROUNDED block scale, the one that is stored (quantization.md 1.4). With
// kLeastSquares it tries the e4m3 numbers from two below that sr to one above max|w| / (4 global).
QuantizedMatrix QuantizeNvFp4(std::span<const float> values, int64_t rows, int64_t cols, float global_scale,
                              BlockScaleRule rule = BlockScaleRule::kAmax);

}  // namespace dsv4
