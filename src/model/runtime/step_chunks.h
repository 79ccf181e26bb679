// Parts of a step or a draft that are one sequence's, and what a step gives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/sequence_state.h"
#include "sampling/choice.h"
#include "tensor/tensor.h"

namespace dsv4::model {

// A draft of how a sequence goes on (Model::Draft).
struct DraftChunk {
  kv::SequenceState* state = nullptr;  // Made by this model's NewSequence, of at least one token.
  int32_t token = 0;                   // Token that follows the state's length, and has not been read.
  // The choice of each token behind it. As many are drafted, at most Model::most_drafts. With the sampler's
  // own choice at that position the draft is the token that it will choose, where the draft's logits are like
  // the model's.
  std::vector<sampling::ChoiceParams> choices = {};
  float* logits = nullptr;  // Unless null the logits come here: host [choices.size(), vocab_size].
  // Unless null, of a DSpark drafter: the chance that the draft at each position is right if those before it
  // are; host [choices.size()].
  float* confidence = nullptr;
};

// Which rows of a chunk want logits.
enum class LogitsRows : uint8_t { kNone, kLast, kAll };

// How many of a chunk's tokens those are.
inline int64_t NumRows(LogitsRows rows, int64_t num_tokens) {
  return rows == LogitsRows::kNone ? 0 : rows == LogitsRows::kLast ? 1 : num_tokens;
}

struct SequenceChunk {
  kv::SequenceState* state = nullptr;  // Made by this model's NewSequence.
  std::span<const int32_t> tokens;     // They follow the state's length.
  LogitsRows logits = LogitsRows::kLast;
  // Known tokens of a prompt that will follow in later steps, whatever happens. Layers behind the last one that makes entries leave out what
  // only positions in front of these want (pass_tail.h). Until they have followed the state may not be whole (kv::SequenceState::whole).
  // It then has no logits and no draft, and goes on with the prompt alone.
  int64_t num_following = 0;
};

struct StepOutput {
  int64_t vocab_size = 0;
  std::span<const float> logits;  // [rows, vocab_size]: chunk after chunk
  Buffer owner;                   // Owner of the logits.
  // One a chunk, and the total: chunk i has rows row_begin[i] .. row_begin[i + 1].
  std::vector<int64_t> row_begin;

  int64_t num_rows(size_t chunk) const { return row_begin[chunk + 1] - row_begin[chunk]; }
  std::span<const float> Row(size_t chunk, int64_t row) const {
    return logits.subspan(static_cast<size_t>((row_begin[chunk] + row) * vocab_size),
                          static_cast<size_t>(vocab_size));
  }
};

}  // namespace dsv4::model
