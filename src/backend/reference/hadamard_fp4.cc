#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"
#include "formats/quantize.h"

namespace dsv4::backend::reference {

namespace {

// x = H x with H in natural (Sylvester) order, H_2n = [[H_n, H_n], [H_n, -H_n]]: log2(width) rounds of butterflies.
void WalshHadamard(std::span<double> x) {
  for (size_t half = 1; half < x.size(); half *= 2) {
    for (size_t block = 0; block < x.size(); block += 2 * half) {
      for (size_t i = block; i < block + half; ++i) {
        const double sum = x[i] + x[i + half];
        x[i + half] = x[i] - x[i + half];
        x[i] = sum;
      }
    }
  }
}

}  // namespace

Status HadamardFp4(ops::OpContext& context, const ops::HadamardFp4Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t width = args.x.shape[1];
  const double factor = 1.0 / std::sqrt(static_cast<double>(width));
  context.threads().ParallelFor(args.x.shape[0], 16, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>(width));
    std::vector<float> rotated(x.size());
    for (int64_t row = begin; row < end; ++row) {
      LoadRow(args.x, row, x);
      WalshHadamard(x);
      // First rounding point: the rotated row is a tensor of x's dtype.
      for (size_t i = 0; i < x.size(); ++i)
        rotated[i] = static_cast<float>(HeldAs(args.x.dtype, x[i] * factor));
      // Second: the e2m1 grid.
      RoundToFp4Groups(rotated, ops::kIndexerFp4Group, rotated);
      std::copy(rotated.begin(), rotated.end(), x.begin());
      StoreRow(x, args.x, row);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
