// Reference rope: interleaved pairs of the last dimensions rotated by table and position, forwards or back.
#include <fmt/format.h>

#include <cmath>
#include <span>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status Rope(ops::OpContext& context, const ops::RopeArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t num_tokens = args.x.shape[0];
  const int64_t num_heads = args.x.shape[1];
  const int64_t width = args.x.shape[2];
  const int64_t num_frequencies = args.frequencies.shape[0];
  const float* frequencies = args.frequencies.as<const float>();
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (const int64_t position = LoadInteger(args.positions, t); position < 0) {
      return InvalidArgument(fmt::format("op rope: positions[{}]: {}, want 0 or more", t, position));
    }
  }
  context.threads().ParallelFor(num_tokens, 8, [&](int64_t begin, int64_t end) {
    std::vector<double> cosines(static_cast<size_t>(num_frequencies));
    std::vector<double> sines(static_cast<size_t>(num_frequencies));
    std::vector<double> rotary(static_cast<size_t>(2 * num_frequencies));
    for (int64_t t = begin; t < end; ++t) {
      const float position = static_cast<float>(LoadInteger(args.positions, t));
      for (size_t i = 0; i < cosines.size(); ++i) {
        // The angle is one fp32 product; its cosine and sine are as exact as double makes them.
        const float angle = position * frequencies[i];
        cosines[i] = std::cos(static_cast<double>(angle));
        sines[i] = (args.inverse ? -1.0 : 1.0) * std::sin(static_cast<double>(angle));
      }
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t offset = (t * num_heads + head + 1) * width - 2 * num_frequencies;
        LoadValues(args.x.data, args.x.dtype, offset, std::span<double>(rotary));
        for (size_t i = 0; i < cosines.size(); ++i) {
          const double even = rotary[2 * i];
          const double odd = rotary[2 * i + 1];
          rotary[2 * i] = even * cosines[i] - odd * sines[i];
          rotary[2 * i + 1] = even * sines[i] + odd * cosines[i];
        }
        StoreValues(rotary, args.x.data, args.x.dtype, offset);
      }
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
