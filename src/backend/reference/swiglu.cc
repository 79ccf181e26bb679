// Reference swiglu: gate clamped from above, up on both sides, SiLU and the product of one element.
#include "backend/reference/swiglu.h"

#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status Swiglu(ops::OpContext& context, const ops::SwigluArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const size_t width = static_cast<size_t>(args.gate.shape[1]);
  context.threads().ParallelFor(args.gate.shape[0], 4, [&](int64_t begin, int64_t end) {
    std::vector<double> gate(width);
    std::vector<double> up(width);
    for (int64_t t = begin; t < end; ++t) {
      LoadRow(args.gate, t, gate);
      LoadRow(args.up, t, up);
      const double weight =
          args.row_weights.is_null() ? 1.0 : static_cast<double>(args.row_weights.as<const float>()[t]);
      for (size_t i = 0; i < width; ++i) {
        gate[i] = ClampedSwiglu(gate[i], up[i], static_cast<double>(args.limit), weight);
      }
      StoreRow(gate, args.y, t);
    }
  });
  return {};
}

}  // namespace dsv4::backend::reference
