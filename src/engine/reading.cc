// Prompt tokens that a step on the host reads of each sequence.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/host_stepper.h"
#include "engine/schedule/reading_pieces.h"

namespace dsv4::engine {
namespace {

// Logits of a prompt's rows in one step: a row of them is half a megabyte.
constexpr int64_t kMostScoredRows = 128;

}  // namespace

std::vector<Pending> HostStepper::Wanted() const {
  std::vector<Pending> pending;
  for (const auto& sequence : core_.running) {
    const int64_t next_kept = sequence->NextKept();
    int64_t max_chunk = next_kept > 0 ? next_kept - sequence->length() : 0;
    if (sequence->wants_scores())
      max_chunk = max_chunk > 0 ? std::min(max_chunk, kMostScoredRows) : kMostScoredRows;
    // Chosen tokens are read again as steps read them.
    if (core_.few_rows > 0 && !sequence->reading())
      max_chunk = max_chunk > 0 ? std::min(max_chunk, core_.few_rows) : core_.few_rows;
    // Without its mask nothing can be sampled. A prompt goes on up to its last pieces, for others may wait
    // for it.
    int64_t num_tokens = sequence->num_pending();
    if (sequence->mask_late && core_.few_rows == 0 && num_tokens > 1)
      max_chunk = max_chunk > 0 ? std::min(max_chunk, num_tokens - 1) : num_tokens - 1;
    else if (sequence->mask_late && num_tokens <= core_.options.max_step_tokens)
      num_tokens = 0;
    // Priorities count among an owner's own prompts: the lowest number of all must not stop others.
    const auto passes = [&](const auto& other) {
      return other->request.owner == sequence->request.owner && other->num_pending() > 1 &&
             other->request.priority < sequence->request.priority;
    };
    pending.push_back({.num_tokens = num_tokens,
                       .max_chunk = max_chunk,
                       .arrival = sequence->id,
                       .priority = std::ranges::count_if(core_.running, passes),
                       .overdue = core_.options.first_token_target > 0.0 &&
                                  sequence->num_output_tokens() == 0 &&
                                  sequence->Age() > core_.options.first_token_target,
                       .owner = sequence->request.owner});
  }
  return pending;
}

StepBudget HostStepper::Budget(std::span<const Pending> pending) const {
  PromptLoad load;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].num_tokens == 1) {
      ++load.answering;
    } else if (pending[i].num_tokens > 1) {
      load.Add(pending[i].num_tokens, core_.running[i]->Age());
      load.overdue = load.overdue || pending[i].overdue;
    }
  }
  StepBudget budget = {.max_tokens = core_.options.max_step_tokens};
  if (load.num_prompts == 0) return budget;
  if (load.answering == 0) {
    // Another owner's prompt may come in the midst of a step.
    if (core_.has_several_owners())
      budget.max_tokens = std::min(budget.max_tokens, core_.prefill_policy.PieceBesideOthers());
    return budget;
  }
  budget.max_prefill_beside_decode = core_.prefill_policy.Piece(load);
  core_.stats.prefill_beside_decode = budget.max_prefill_beside_decode;
  core_.stats.gap_aim = core_.prefill_policy.Gap(load.answering);
  return budget;
}

std::vector<ScheduledChunk> HostStepper::Schedule(std::span<const Pending> pending) const {
  std::vector<ScheduledChunk> schedule = ScheduleStep(pending, Budget(pending));
  if (core_.few_rows == 0) return schedule;
  int64_t room = core_.options.max_step_tokens;
  std::vector<PromptPiece> pieces;
  std::vector<ScheduledChunk*> of_pieces;
  for (ScheduledChunk& chunk : schedule) {
    room -= chunk.num_tokens;
    const Sequence& sequence = *core_.running[chunk.sequence];
    if (!sequence.reading()) continue;
    pieces.push_back({.left = sequence.num_prompt_tokens - sequence.length(), .tokens = chunk.num_tokens});
    of_pieces.push_back(&chunk);
  }
  EnlargePieces(pieces, std::max<int64_t>(room, 0), core_.few_rows);
  for (size_t i = 0; i < pieces.size(); ++i) of_pieces[i]->num_tokens = pieces[i].tokens;
  std::erase_if(schedule, [](const ScheduledChunk& chunk) { return chunk.num_tokens == 0; });
  return schedule;
}

}  // namespace dsv4::engine
