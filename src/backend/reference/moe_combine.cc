// Reference moe_combine: routed sum and shared expert added in fp32, rounded once.
#include <algorithm>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "backend/reference/values.h"

namespace dsv4::backend::reference {

Status MoeCombine(ops::OpContext&, const ops::MoeCombineArgs& args) {
  DSV4_RETURN_IF_ERROR(Validate(args));
  const int64_t dim = args.routed.shape[1];
  std::vector<double> routed(static_cast<size_t>(dim));
  std::vector<double> shared(static_cast<size_t>(dim));
  for (int64_t t = 0; t < args.routed.shape[0]; ++t) {
    LoadRow(args.routed, t, routed);
    std::ranges::fill(shared, 0.0);
    if (!args.shared.is_null()) LoadRow(args.shared, t, shared);
    AddScaled(1.0, routed, shared);
    StoreRow(shared, args.y, t);
  }
  return {};
}

}  // namespace dsv4::backend::reference
