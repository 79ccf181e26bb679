// Op rope on the CPU: pairs of a row's last dimensions rotated by one tier's kernel, rows shared out to
// threads.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

Status Rope(ops::OpContext& context, const ops::RopeArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.x.shape[0];
  const int64_t num_heads = args.x.shape[1];
  const int64_t width = args.x.shape[2];
  const int64_t num_pairs = args.frequencies.shape[0];
  const int64_t rotary_width = 2 * num_pairs;
  const DType dtype = args.x.dtype;
  const Kernels& kernels = KernelsOf(context);
  const std::vector<float> frequencies = LoadAll(kernels, args.frequencies);
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (const int64_t position = LoadInteger(args.positions, t); position < 0) {
      return InvalidArgument(fmt::format("op rope: positions[{}]: {}, want 0 or more", t, position));
    }
  }
  constexpr int64_t kElementsPerTask = 1 << 11;
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, num_heads * rotary_width));
  context.threads().ParallelFor(num_tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> angles(frequencies.size());
    std::vector<double> cosines(frequencies.size());
    std::vector<double> sines(frequencies.size());
    for (int64_t t = begin; t < end; ++t) {
      // The angle is one fp32 product; its cosine and sine are as exact as double makes them.
      const float position = static_cast<float>(LoadInteger(args.positions, t));
      for (size_t i = 0; i < angles.size(); ++i) angles[i] = position * frequencies[i];
      kernels.rows.sine_cosine(angles.data(), num_pairs, sines.data(), cosines.data());
      if (args.inverse) {
        for (double& sine : sines) sine = -sine;
      }
      kernels.rows.rotate(
          args.x.as<uint8_t>() + ((t * num_heads + 1) * width - rotary_width) * ElementBytes(dtype),
          dtype == DType::kBF16, num_heads, width * ElementBytes(dtype), num_pairs, sines.data(),
          cosines.data());
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
