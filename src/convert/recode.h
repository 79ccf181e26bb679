// Expressing rows of a stored weight in another format, and comparing what was written with what it came
// from.
//
// Exact wherever the target can hold the values. Between MXFP4 and NVFP4 blocks with power-of-two scales the
// element codes are copied and only the scales are rewritten (quantization.md 3.4 and 3.5). An NVFP4 target
// is written that way from any source whose blocks allow it. Everything else goes through the quantisers of
// formats/quantize.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/quantize.h"
#include "formats/weight.h"

namespace dsv4::convert {

// Facts that an NVFP4 target must know of all rows before the first is written.
struct ScaleSurvey {
  // The least and greatest exponent of a kind of block; empty when there is none.
  struct Exponents {
    int least = 0;
    int greatest = 0;
    bool empty = true;
    void Add(int exponent);
    void Merge(const Exponents& other);
  };
  float max_magnitude = 0.0F;
  // Every block of 16 columns so far is 2^e times e2m1 numbers.
  bool power_of_two = true;
  Exponents used;  // Exponents of blocks with a value other than 0.
  Exponents
      stored;  // The same and, from an MXFP4 source, the scales beside blocks of zeros (except the byte 0).

  void Merge(const ScaleSurvey& other);
};

// `values` holds the rows [begin, end) of `source`, dequantised and finite. Columns are a multiple of 16.
ScaleSurvey SurveyRows(const Weight& source, int64_t begin, int64_t end, std::span<const float> values);

struct RecodeTarget {
  WeightFormat format = WeightFormat::kPlain;  // kPlain is bf16.
  int64_t block_rows = 1;                      // kFp8Block only.
  int64_t block_cols = 1;
  BlockScaleRule rule = BlockScaleRule::kLeastSquares;  // Rule for 4-bit blocks that cannot be exact.
  // kNvFp4 only: the number to store, and its exponent where every block is written exactly with a
  // power-of-two scale.
  float global_scale = 1.0F;
  std::optional<int> global_exponent;

  // Bytes of a row of elements, of a row of scales (0 when there are none), and rows that share a row of
  // scales.
  int64_t DataRowBytes(int64_t cols) const;
  int64_t ScaleRowBytes(int64_t cols) const;
};

// Chooses the global scale of `target` (kNvFp4) for tensors with this survey: 2^(greatest exponent - 8) where
// all blocks then are e4m3 powers of two, else max_magnitude / 2688.
void ChooseGlobalScale(const ScaleSurvey& survey, RecodeTarget& target);

// The bytes of some rows in the target format, laid out as in the file.
struct RecodedRows {
  std::vector<std::byte> data;
  std::vector<std::byte> scale;
};

// Recodes the rows [begin, end) of `source`, whose dequantised, finite values are `values`. For kFp8Block,
// `begin` is a multiple of block_rows and `end` too or the last row. OutOfRange when a value is too large for
// bf16; the message names the element and begins with `name`.
Result<RecodedRows> RecodeRows(const Weight& source, int64_t begin, int64_t end,
                               std::span<const float> values, const RecodeTarget& target,
                               std::string_view name);

// How written values compare with the source's.
struct Comparison {
  int64_t num_values = 0;
  int64_t num_different = 0;  // As numbers: -0 equals 0.
  // Magnitudes past the format's largest element that would round to a larger one if there were one.
  int64_t num_clipped = 0;
  // Blocks (16, 32 or block_cols columns of a row; single bf16 values) that were not all zero and are now.
  int64_t num_vanished = 0;
  double error_squares = 0;
  double value_squares = 0;

  bool lossless() const { return num_different == 0; }
  // sqrt(sum of squared errors / sum of squares); 0 when nothing differs.
  double relative_rms() const;
  void Merge(const Comparison& other);
};

// `written` are the same rows read back.
Comparison CompareRows(std::span<const float> values, int64_t cols, const RecodedRows& written,
                       const RecodeTarget& target);

}  // namespace dsv4::convert
