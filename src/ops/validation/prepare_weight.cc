// Checks of prepare_weight's source and destination.
#include "ops/prepare_weight.h"

#include "ops/validate.h"

namespace dsv4::ops {

Status Validate(const PrepareWeightArgs& args) {
  OperandChecker check("prepare_weight");
  check.WeightOperand("source", args.source, kAnyDim, kAnyDim);
  check.Require(args.prepared != nullptr, "prepared", "null", "a weight to fill");
  if (!check.ok()) return check.status();
  check.Require(args.source->data.device == Device{}, "source", "on a device", "host memory");
  check.Require(!args.source->repacked, "source", "a backend's own order", "as it is stored");
  return check.status();
}

}  // namespace dsv4::ops
