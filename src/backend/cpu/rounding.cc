// The ops that simulate narrow formats: simulate_fp8 and hadamard_fp4.
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"
#include "formats/quantize.h"

namespace dsv4::backend::cpu {

namespace {

constexpr int64_t kRowsPerTask = 16;

}  // namespace

Status SimulateFp8(ops::OpContext& context, const ops::SimulateFp8Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const DType dtype = args.x.dtype;
  context.threads().ParallelFor(args.x.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(args.num_columns));
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* const data = args.x.as<uint8_t>() + row * args.x.strides[0] * ElementBytes(dtype);
      LoadFloats(kernels, data, dtype, args.num_columns, x.data());
      kernels.round_fp8(x.data(), args.num_columns, args.group, x.data());
      StoreFloats(kernels, x.data(), args.num_columns, data, dtype);
    }
  });
  return {};
}

Status HadamardFp4(ops::OpContext& context, const ops::HadamardFp4Args& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const Kernels& kernels = KernelsOf(context);
  const DType dtype = args.x.dtype;
  const int64_t width = args.x.shape[1];
  const double factor = 1.0 / std::sqrt(static_cast<double>(width));
  context.threads().ParallelFor(args.x.shape[0], kRowsPerTask, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<double> scratch(row.size());
    for (int64_t i = begin; i < end; ++i) {
      uint8_t* const data = args.x.as<uint8_t>() + i * width * ElementBytes(dtype);
      LoadFloats(kernels, data, dtype, width, row.data());
      // First rounding point: the rotated row is a tensor of x's dtype. Second: the e2m1 grid.
      if (args.rotate)
        kernels.rows.hadamard(row.data(), width, factor, dtype == DType::kBF16, scratch.data(), row.data());
      if (args.scale == CacheScale::kE4m3) {
        RoundToFp4E4m3Groups(row, args.group, row);
      } else if (!kernels.rows.round_fp4(row.data(), width, args.group)) {
        RoundToFp4Groups(row, args.group, row);
      }
      StoreFloats(kernels, row.data(), width, data, dtype);
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
