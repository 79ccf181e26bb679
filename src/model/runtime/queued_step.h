// QueuedStep: a step that chooses the next tokens by itself. The step behind it can thereby be queued before
// the host has seen them (Model::QueueDecode).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/sequence_state.h"
#include "sampling/choice.h"
#include "sampling/sampler.h"
#include "tensor/tensor.h"

namespace dsv4::model {

// One sequence's part: it reads one token and chooses the next. With a draft it reads that too, and chooses
// the token behind each of its tokens. Or it reads a prompt, or a piece of one.
struct DecodeChunk {
  kv::SequenceState* state = nullptr;  // Made by this model's NewSequence.
  // Token that it reads: `token`, or what chunk `follows` of the step queued last has chosen, if that is not
  // negative.
  int32_t token = 0;
  int64_t follows = -1;
  // Read instead of `token`, if there are any; then there is no draft, and no chunk is followed.
  std::span<const int32_t> prompt = {};
  // Without it nothing is chosen: behind a piece of a prompt.
  bool chooses = true;
  int64_t num_following = 0;  // As SequenceChunk, behind a piece of a prompt.
  sampling::ChoiceParams choice = {};
  std::span<const sampling::TokenBias> biases =
      {};                               // Added to all logits that it chooses from; by token, each once.
  std::span<const int32_t> draft = {};  // Behind `token`; none where `follows` is not negative.
  // Parameters for what comes behind each of the draft.
  std::span<const sampling::ChoiceParams> draft_choices = {};
  // The caller will want a draft of what comes next (Model::Draft). What that needs of this step's rows is made behind the step, while the
  // host looks at its tokens. Of a model that can draft, with a draft of this step.
  bool drafts_next = false;
};

struct ChosenToken {
  int32_t id = 0;
  int32_t fault = 0;  // As op `sample` reports it: ops::kNoFault, or `id` is no choice.
  // If the token's rule asks for them: as of sampling::SampledToken.
  float logprob = 0.0F;
  std::vector<sampling::TokenLogprob> top = {};
};

struct LaterChoice;  // step_queue.cc

// Memory of the host for tokens and their faults, [2, rows], and the copy that brings them there.
struct QueuedNumbers {
  Buffer host;
  std::unique_ptr<PendingCopy> copy;  // Goes before the memory that it writes.
};

class QueuedStep {
 public:
  // The caller's row i is number rows[i]. `check` says, once they are there, whether they are worth anything: what several ranks have
  // exchanged is not, if one of them is gone.
  QueuedStep(std::shared_ptr<QueuedNumbers> numbers, std::vector<size_t> rows, std::function<Status()> check)
      : numbers_(std::move(numbers)), rows_(std::move(rows)), check_(std::move(check)) {}

  // Its tokens have yet to be chosen (Model::Choose).
  bool waits_for_choice() const { return later_ != nullptr; }

  // Waits for the step: the tokens that were chosen, chunk after chunk: one where it chooses, and one for each
  // of its draft. After an error its sequences hold rows that are of no use, and so do those of steps queued
  // behind it: reset them. The model must still be there.
  Result<std::vector<ChosenToken>> Wait();

 private:
  friend class StepQueue;

  // Copy that ends the logits of a step whose tokens are chosen later. Goes last of all copies, so that the next step finds what
  // it gives back as this one did.
  std::unique_ptr<PendingCopy> front_copy_;
  std::shared_ptr<QueuedNumbers> numbers_;
  std::vector<size_t> rows_;
  std::function<Status()> check_;
  // Until its tokens are chosen, what from.
  std::shared_ptr<LaterChoice> later_;
  Buffer scores_;  // Scores of its rows, [rows, width].
  size_t scores_width_ = 0;
  std::unique_ptr<PendingCopy> scores_copy_;
  std::vector<int> num_logprobs_;  // By the caller's rows; empty: none has any.
};

}  // namespace dsv4::model
