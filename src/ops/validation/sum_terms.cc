// Checks of sum_terms' choices, parts and output.
#include "ops/sum_terms.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const SumTermsArgs& args) {
  OperandChecker check("sum_terms");
  check.Operand("parts", args.parts, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim, kAnyDim, kAnyDim});
  const Shape& shape = args.parts.shape;
  check.Operand("indices", args.indices, {DType::kI32}, {shape[1], shape[2]});
  check.Operand("y", args.y, {DType::kF32}, {shape[1], shape[3]});
  check.Disjoint("y", args.y, "parts", args.parts);
  check.Disjoint("y", args.y, "indices", args.indices);
  check.Require(shape[0] >= 1 && shape[0] <= kMaxTermParts, "parts", shape[0],
                fmt::format("1 to {}", kMaxTermParts));
  check.Require(static_cast<int64_t>(args.begins.size()) == shape[0] + 1, "begins",
                static_cast<int64_t>(args.begins.size()), fmt::format("{} of them", shape[0] + 1));
  DSV4_RETURN_IF_ERROR(check.status());
  check.Require(args.begins[0] == 0 && std::ranges::is_sorted(args.begins), "begins",
                fmt::format("[{}]", fmt::join(args.begins, ", ")), "ids from 0 on, ascending");
  return check.status();
}

}  // namespace dsv4::ops
