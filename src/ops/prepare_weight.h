// PrepareWeight: turns a weight of the mapped checkpoint into the form that a backend's linear ops read. It
// is moved to a device, or repacked for an architecture. The loader calls it once for every weight and knows
// nothing of tiles.
//   source    host memory, validated; stays mapped for as long as the model lives
//   prepared  the backend's form: borrowing views (then `owner` stays empty) or views into `owner`
//   tier      where a backend on a device keeps it; for a backend of the host all are one
// The values do not change. Errors: ResourceExhausted when device memory runs out, or memory of the host that
// a device can read.
#pragma once

#include "formats/weight.h"
#include "ops/op_context.h"

namespace dsv4::ops {

// Tier of a routed expert's weights; all others are resident.
enum class WeightTier : uint8_t {
  kResident,  // The device's memory.
  kCached,    // The host's, from where they are brought to the device's when they are chosen.
  kHost,      // The host's, as they lie in the checkpoint: the host multiplies them.
};

struct PrepareWeightArgs {
  const Weight* source = nullptr;
  Weight* prepared = nullptr;
  WeightTier tier = WeightTier::kResident;
  int64_t slots = 0;  // Cached tier: how many of its experts, of all layers, the device has room for at once.
  DSV4_OPERANDS()     // Both are of the host.
};

Status Validate(const PrepareWeightArgs& args);

}  // namespace dsv4::ops
