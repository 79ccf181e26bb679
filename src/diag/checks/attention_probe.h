// The measurement behind `visible` (visible_check.h says how it works), for one call of the attention op.
#pragma once

#include <cstdint>
#include <vector>

#include "diag/hooked_backend.h"

namespace dsv4::diag {

// Keys that one query saw.
struct SeenKeys {
  std::vector<int64_t> window;   // Positions, ascending.
  std::vector<int64_t> entries;  // Compressed entries, ascending.
  double denominator = 0;        // N + exp(sink) as measured on head 0; 0 when nothing was seen.
  bool uneven = false;           // Keys or heads did not weigh the same.
};

// `args` is a call with one sequence; `code_width` <= head_dim is how many elements of a row carry codes (not
// the rotary ones, which an op may treat on its own). One result a query.
Result<std::vector<SeenKeys>> ProbeAttention(ops::OpContext& context,
                                             const InnerOp<ops::AttentionArgs>& attention,
                                             const ops::AttentionArgs& args, int64_t code_width);

}  // namespace dsv4::diag
