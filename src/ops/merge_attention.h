// MergeAttention: parts of attention (AttentionPart) put together, with the sink, which counts once.
//   parts  [num_parts, num_tokens, num_heads, head_dim + 2]  f32, contiguous: disjoint keys of the same queries
//   sink   [num_heads]                                       f32
//   o      [num_tokens, num_heads, head_dim]                 bf16 or f32, contiguous, no overlap with parts
// With v_i, M_i and s_i the values, maximum and sum of part i, and M = max_i M_i over the parts that have
// keys:
//   o = round((sum_i exp(M_i - M) v_i) / (sum_i exp(M_i - M) s_i + exp(sink - M)))
// A part without keys adds nothing; a query without any key gets 0, the sink having it all. Sums in fp32 or
// wider, in order of the parts. One rounding point: the store to o.
// Errors: InvalidArgument if dims or dtypes disagree. num_tokens == 0 does nothing.
#pragma once

#include "ops/op_context.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

struct MergeAttentionArgs {
  TensorView parts;
  TensorView sink;
  TensorView o;
  DSV4_OPERANDS(parts, sink, o)
};

Status Validate(const MergeAttentionArgs& args);

}  // namespace dsv4::ops
