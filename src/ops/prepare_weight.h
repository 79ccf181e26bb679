// PrepareWeight: turns a weight as it lies in the mapped checkpoint into the form a backend's linear ops read (moved to
// a device, repacked for an architecture). The loader calls it once for every weight and knows nothing of tiles.
//   source    host memory, validated; stays mapped for as long as the model lives
//   prepared  the backend's form: borrowing views (then `owner` stays empty) or views into `owner`
// The values do not change. Errors: ResourceExhausted when device memory runs out.
#pragma once

#include "formats/weight.h"
#include "ops/op_context.h"

namespace dsv4::ops {

struct PrepareWeightArgs {
  const Weight* source = nullptr;
  Weight* prepared = nullptr;
  DSV4_OPERANDS()  // Both are of the host.
};

Status Validate(const PrepareWeightArgs& args);

}  // namespace dsv4::ops
