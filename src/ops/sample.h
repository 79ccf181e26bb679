// Sample: chooses a token from every row of logits, as sampling/choice.h defines it to the last bit.
//   logits   [num_rows, vocab_size]  f32, vocab_size 1 to sampling::kMaxChoices; `biases` are added in place
//   allowed  [vocab_size]            u8 or null; a token whose byte is 0 counts as one of logit -infinity, in all rows
//   choices  one for each row, in the host's memory
//   biases   any number, in the host's memory, by row and then by token, each pair once: logits[row, token] += bias in fp32, before all else
//   tokens   [num_rows]              i32; 0 where the row is wrong, so that a reader finds a token
//   faults   [num_rows]              i32; -1, or what is wrong with the row: the lowest id whose logit, allowed or not, is NaN or
//                                    +infinity; vocab_size if no allowed logit is finite
// A wrong row is not the op's error: it is for one sequence to bear, not for its neighbours.
// Errors: InvalidArgument if dims or dtypes disagree, operands overlap or a choice is out of its range. So for a bias of no token, one that
// is NaN, and one out of order. num_rows == 0 does nothing.
#pragma once

#include <span>

#include "ops/op_context.h"
#include "sampling/choice.h"

namespace dsv4::ops {

inline constexpr int32_t kNoFault = -1;

struct RowBias {
  int32_t row = 0;
  sampling::TokenBias added = {};
};

struct SampleArgs {
  TensorView logits;
  TensorView allowed;  // May be null.
  std::span<const sampling::ChoiceParams> choices;
  std::span<const RowBias> biases = {};
  TensorView tokens;
  TensorView faults;
  DSV4_OPERANDS(logits, allowed, tokens, faults)
};

Status Validate(const SampleArgs& args);

}  // namespace dsv4::ops
