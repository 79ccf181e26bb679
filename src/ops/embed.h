// Embed: the residual streams of a token are `hc_mult` copies of its embedding row.
//   token_ids [num_tokens]                  i32, each in [0, vocab_size)
//   table     [vocab_size, dim]             bf16, f16 or f32
//   streams   [num_tokens, hc_mult, dim]    bf16 or f32
// One rounding point: the store to streams (none when bf16 goes to bf16).
// Errors: InvalidArgument if dims or dtypes disagree; OutOfRange names an id outside the table. num_tokens ==
// 0 does nothing. Source: release inference code, Transformer.forward.
#pragma once

#include "ops/op_context.h"

namespace dsv4::ops {

struct EmbedArgs {
  TensorView token_ids;
  TensorView table;
  TensorView streams;
  DSV4_OPERANDS(table, streams, token_ids)
};

Status Validate(const EmbedArgs& args);

}  // namespace dsv4::ops
