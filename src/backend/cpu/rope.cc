#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/values.h"

namespace dsv4::backend::cpu {

Status Rope(ops::OpContext& context, const ops::RopeArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.x.shape[0];
  const int64_t num_heads = args.x.shape[1];
  const int64_t width = args.x.shape[2];
  const int64_t rotary_width = 2 * args.frequencies.shape[0];
  const DType dtype = args.x.dtype;
  const Kernels& kernels = KernelsOf(context);
  const std::vector<float> frequencies = LoadAll(kernels, args.frequencies);
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (const int64_t position = LoadInteger(args.positions, t); position < 0) {
      return InvalidArgument(fmt::format("op rope: positions[{}]: {}, want 0 or more", t, position));
    }
  }
  constexpr int64_t kElementsPerTask = 1 << 13;
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, num_heads * rotary_width));
  context.threads().ParallelFor(num_tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<double> cosines(frequencies.size());
    std::vector<double> sines(frequencies.size());
    std::vector<float> rotary(2 * frequencies.size());
    std::vector<double> rotated(rotary.size());
    for (int64_t t = begin; t < end; ++t) {
      const float position = static_cast<float>(LoadInteger(args.positions, t));
      for (size_t i = 0; i < cosines.size(); ++i) {
        // The angle is one fp32 product; its cosine and sine are as exact as double makes them.
        const double angle = static_cast<double>(position * frequencies[i]);
        cosines[i] = std::cos(angle);
        sines[i] = args.inverse ? -std::sin(angle) : std::sin(angle);
      }
      for (int64_t head = 0; head < num_heads; ++head) {
        uint8_t* const data =
            args.x.as<uint8_t>() + ((t * num_heads + head + 1) * width - rotary_width) * ElementBytes(dtype);
        LoadFloats(kernels, data, dtype, rotary_width, rotary.data());
        for (size_t i = 0; i < cosines.size(); ++i) {
          const double even = static_cast<double>(rotary[2 * i]);
          const double odd = static_cast<double>(rotary[2 * i + 1]);
          rotated[2 * i] = even * cosines[i] - odd * sines[i];
          rotated[2 * i + 1] = even * sines[i] + odd * cosines[i];
        }
        StoreDoubles(rotated.data(), rotary_width, data, dtype);
      }
    }
  });
  return {};
}

}  // namespace dsv4::backend::cpu
