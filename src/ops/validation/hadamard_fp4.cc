#include "ops/hadamard_fp4.h"

#include <string>

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const HadamardFp4Args& args) {
  OperandChecker check("hadamard_fp4");
  check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim});
  const int64_t width = args.x.shape[1];
  check.Require(width >= kIndexerFp4Group && (width & (width - 1)) == 0, "x",
                "width " + std::to_string(width),
                "a power of two of at least " + std::to_string(kIndexerFp4Group));
  return check.status();
}

}  // namespace dsv4::ops
