// Sample: chooses a token from every row of logits, as sampling/choice.h defines it to the last bit. It scores the choice if a rule asks.
//   logits   [num_rows, vocab_size]  f32, vocab_size 1 to sampling::kMaxChoices; only read.
//   allowed  [vocab_size]            u8 or null; a token whose byte is 0 counts as one of logit -infinity, in all rows.
//   choices  one for each row, in the host's memory.
//   changes  any number, in the host's memory, by row and then by token, each pair once. The row chooses by sampling::Adjusted of that
//            token's logit, with the penalties of its rule.
//   rules    none, or one for each row, in the host's memory.
//   masks    any number of masks of (vocab_size + 63) / 64 words, in the host's memory. A rule may name one. Its row leaves tokens out
//            for which bit token % 64 of word token / 64 is 0.
//   tokens   [num_rows]              i32; 0 where the row is wrong, so that a reader finds a token.
//   faults   [num_rows]              i32; -1, or what is wrong with the row. A logit that is NaN or +infinity, allowed or not: the lowest id.
//                                    No token left with a finite logit: vocab_size.
//   scores   [num_rows, width]       i32, or null where no rule asks for any. A row is a ScoresHead and TopScores, of logits as they are given.
//                                    Unspecified in rows that are wrong or ask for none.
// A wrong row is not the op's error: it is for one sequence to bear, not for its neighbours.
// Errors: InvalidArgument if dims or dtypes disagree, operands overlap or a choice or a rule is out of its range. So for a change of no token,
// one that is NaN, and one out of order. num_rows == 0 does nothing.
#pragma once

#include <cstdint>
#include <span>

#include "ops/op_context.h"
#include "sampling/choice.h"
#include "sampling/log_sum.h"

namespace dsv4::ops {

inline constexpr int32_t kNoFault = -1;

struct RowChange {
  int32_t row = 0;
  int32_t token = 0;
  float bias = 0.0F;
  int32_t count = 0;  // Times that the penalties have seen it.
};

struct RowRule {
  sampling::Penalties penalties = {};
  int32_t mask = -1;     // < 0: none.
  int32_t num_top = -1;  // >= 0: scores are wanted, of the token and of so many of the highest logits.
};
inline constexpr int32_t kMostTopScores = 128;

// A row of `scores` begins with the token's logit and the sum over the row. Behind it are the highest logits with their tokens, of equals the
// lowest token first. -infinity is not among them. Token -1 ends them early.
struct ScoresHead {
  float logit;
  float highest;
  uint32_t high[2];  // sampling::LogSum's, the low 32 bits first.
  uint32_t low[2];
};
struct TopScore {
  int32_t token;
  float logit;
};
constexpr TopScore kNoTopScore = {-1, 0.0F};
constexpr int64_t ScoresWidth(int64_t num_top) {
  return static_cast<int64_t>((sizeof(ScoresHead) + static_cast<size_t>(num_top) * sizeof(TopScore)) / 4);
}

struct SampleArgs {
  TensorView logits;
  TensorView allowed;  // May be null.
  std::span<const sampling::ChoiceParams> choices;
  std::span<const RowChange> changes = {};
  std::span<const RowRule> rules = {};
  std::span<const uint64_t> masks = {};
  TensorView tokens;
  TensorView faults;
  TensorView scores = {};  // May be null.
  DSV4_OPERANDS(logits, allowed, tokens, faults, scores)

  int64_t mask_words() const { return (logits.shape[1] + 63) / 64; }
};

Status Validate(const SampleArgs& args);

}  // namespace dsv4::ops
