// Reference hadamard_fp4: a Walsh-Hadamard transform of each row, then rounding to the e2m1 grid by groups.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"
#include "formats/quantize.h"

namespace dsv4::backend::reference {

namespace {

// x = H x with H in natural (Sylvester) order, H_2n = [[H_n, H_n], [H_n, -H_n]]: log2(width) rounds of
// butterflies.
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
      if (args.rotate) {
        WalshHadamard(x);
        // First rounding point: the rotated row is a tensor of x's dtype.
        for (double& value : x) value = HeldAs(args.x.dtype, value * factor);
      }
      std::transform(x.begin(), x.end(), rotated.begin(),
                     [](double value) { return static_cast<float>(value); });
      // Second: the e2m1 grid.
      if (args.scale == CacheScale::kE8m0) {
        RoundToFp4Groups(rotated, args.group, rotated);
      } else {
        RoundToFp4E4m3Groups(rotated, args.group, rotated);
      }
      std::copy(rotated.begin(), rotated.end(), x.begin());
      StoreRow(x, args.x, row);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
