// Reference simulate_fp8: groups of columns rounded to e4m3 under a power of two, and back.
#include <algorithm>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"
#include "formats/quantize.h"

namespace dsv4::backend::reference {

Status SimulateFp8(ops::OpContext& context, const ops::SimulateFp8Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  context.threads().ParallelFor(args.x.shape[0], 16, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(args.num_columns));
    std::vector<double> rounded(x.size());
    for (int64_t row = begin; row < end; ++row) {
      const int64_t offset = row * args.x.strides[0];
      LoadValues(args.x.data, args.x.dtype, offset, std::span<float>(x));
      RoundToFp8Groups(x, args.group, x);
      std::copy(x.begin(), x.end(), rounded.begin());
      StoreValues(rounded, args.x.data, args.x.dtype, offset);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
