// Dot products of the reference backend: activations rounded as the weight asks, rows dequantised one by one.
#include "backend/reference/matmul.h"

#include <algorithm>

#include "backend/reference/values.h"
#include "formats/quantize.h"

namespace dsv4::backend::reference {

std::vector<double> QuantizeActivations(std::span<const float> x, int64_t num_rows, int64_t cols,
                                        ActivationQuant quant) {
  std::vector<double> rows(x.begin(), x.end());
  if (quant == ActivationQuant::kNone) return rows;
  std::vector<float> rounded(static_cast<size_t>(cols));
  for (int64_t row = 0; row < num_rows; ++row) {
    RoundToFp8Groups(x.subspan(static_cast<size_t>(row * cols), rounded.size()), ActivationGroup(quant),
                     rounded);
    std::copy(rounded.begin(), rounded.end(), rows.begin() + row * cols);
  }
  return rows;
}

void MultiplyRows(const Weight& weight, int64_t begin, int64_t end, const double* x, int64_t x_stride,
                  int64_t num_tokens, const EmitSum& emit) {
  // A few weight rows at a time, so that a token's row is still in the cache for the next of them.
  constexpr int64_t kRowsAtATime = 4;
  const size_t cols = static_cast<size_t>(weight.cols);
  std::vector<float> dequantized(cols);
  std::vector<double> rows(kRowsAtATime * cols);
  for (int64_t first = begin; first < end; first += kRowsAtATime) {
    const int64_t last = std::min(end, first + kRowsAtATime);
    for (int64_t row = first; row < last; ++row) {
      DequantizeRow(weight, row, dequantized.data());
      std::copy(dequantized.begin(), dequantized.end(), rows.begin() + (row - first) * weight.cols);
    }
    for (int64_t token = 0; token < num_tokens; ++token) {
      for (int64_t row = first; row < last; ++row) {
        emit(token, row, Dot(x + token * x_stride, rows.data() + (row - first) * weight.cols, weight.cols));
      }
    }
  }
}

int64_t RowGrain(int64_t cols, int64_t num_tokens) {
  constexpr int64_t kProductsPerTask = 1 << 16;
  return std::max<int64_t>(1, kProductsPerTask / std::max<int64_t>(1, cols * num_tokens));
}

}  // namespace dsv4::backend::reference
