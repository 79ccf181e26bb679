// Row operations that several ops share.
#pragma once

#include <cstdint>

namespace dsv4::backend::cpu {

// out[i] = fl32(row_weight * silu(min(gate[i], limit)) * clamp(up[i], -limit, limit)), computed in double. `out` may be
// `gate` or `up`.
void SwigluRow(const float* gate, const float* up, int64_t count, double limit, double row_weight,
               float* out);

}  // namespace dsv4::backend::cpu
