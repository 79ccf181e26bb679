// The wait for a queued step, and what it has chosen.
#include "model/runtime/queued_step.h"

#include <cstring>
#include <utility>

#include "ops/sample.h"

namespace dsv4::model {
namespace {

// Reads a row of scores as op `sample` writes it.
void TakeScores(const int32_t* scores, int num_top, ChosenToken& token) {
  ops::ScoresHead head;
  std::memcpy(&head, scores, sizeof(head));
  const auto whole = [](const uint32_t(&halves)[2]) { return uint64_t{halves[1]} << 32 | halves[0]; };
  const sampling::LogSum sum = {.highest = head.highest, .high = whole(head.high), .low = whole(head.low)};
  std::vector<sampling::TokenLogprob> top;
  for (int i = 0; i < num_top; ++i) {
    ops::TopScore score;
    std::memcpy(&score, scores + ops::ScoresWidth(i), sizeof(score));
    if (score.token < 0) break;
    top.push_back({score.token, score.logit});
  }
  sampling::SampledToken scored = sampling::WithLogprobs(token.id, head.logit, sum, top);
  token.logprob = scored.logprob;
  token.top = std::move(scored.top);
}

}  // namespace

Result<std::vector<ChosenToken>> QueuedStep::Wait() {
  if (numbers_->copy == nullptr)
    return Error(FailedPrecondition("queued step: its tokens have not been chosen"));
  Status copied = front_copy_ == nullptr ? Status() : front_copy_->Wait();
  if (const Status last = numbers_->copy->Wait(); copied.ok()) copied = last;
  if (scores_copy_ != nullptr) {
    if (const Status last = scores_copy_->Wait(); copied.ok()) copied = last;
  }
  if (check_) DSV4_TRY(check_());  // Names what made it fail.
  DSV4_TRY(copied);
  const auto* const numbers = static_cast<const int32_t*>(numbers_->host.data());
  std::vector<ChosenToken> tokens;
  for (const size_t row : rows_) tokens.push_back({numbers[row], numbers[rows_.size() + row]});
  for (size_t i = 0; i < num_logprobs_.size(); ++i) {
    if (num_logprobs_[i] < 0 || tokens[i].fault != ops::kNoFault) continue;
    TakeScores(static_cast<const int32_t*>(scores_.data()) + rows_[i] * scores_width_, num_logprobs_[i],
               tokens[i]);
  }
  return tokens;
}

}  // namespace dsv4::model
