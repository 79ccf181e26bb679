// Speculation: a step reads, behind a sequence's last token, a draft of the tokens that may follow, and samples from its rows one after the
// other for as long as the token that was sampled is the one that the draft had. What was read beyond that is taken back.
//
// A row's logits do not depend on the rows behind it, nor on how a text is cut into steps (model.h), and a sampled token depends on the
// logits in front of it and on its number in the answer alone (sampling::Sampler). So every token is the one that would have come without
// a draft, whatever the sampling, the constraint or the drafter; and as nothing is sampled twice, its distribution is the sampler's.
#include <algorithm>
#include <utility>

#include "engine/sequence.h"

namespace dsv4::engine {

void Engine::Learn(Sequence& sequence) {
  if (sequence.drafter == nullptr) sequence.drafter = options_.speculation.make_drafter();
  // A draft that no step has verified shows nevertheless whether its first token was right.
  const auto num_known = static_cast<int64_t>(sequence.tokens.size());
  if (!sequence.draft.tokens.empty() && sequence.draft_at < num_known) {
    const bool right =
        sequence.tokens[static_cast<size_t>(sequence.draft_at)] == sequence.draft.tokens.front();
    draft_policy_.SawDraft(sequence.acceptance, sequence.draft.evidence, 1, right ? 1 : 0);
    sequence.draft = {};
  }
  sequence.drafter->Read(sequence.tokens);
}

speculation::Draft Engine::Propose(Sequence& sequence, int64_t most) {
  speculation::Draft draft = sequence.drafter->Propose(most);
  sampling::TokenConstraint* constraint = sequence.request.constraint.get();
  if (constraint == nullptr) return draft;
  draft.tokens.resize(constraint->CountAllowed(draft.tokens));
  std::vector<int32_t> forced = constraint->Forced(static_cast<size_t>(most));
  if (forced.empty()) return draft;
  // A draft of the same text in other tokens has been written so before.
  if (draft.tokens.size() >= forced.size()) return {std::move(draft.tokens), speculation::kForcedEvidence};
  return {std::move(forced), speculation::kForcedEvidence};
}

bool Engine::ChooseDrafts() {
  const SpeculationOptions& options = options_.speculation;
  for (const auto& sequence : running_) sequence->num_verified = 0;
  if (options.make_drafter == nullptr || options_.watcher != nullptr || options_.observer != nullptr)
    return false;
  if (running_.empty()) return false;
  const auto num_running = static_cast<int64_t>(running_.size());
  int64_t room = std::min(options_.max_step_tokens, model_.options().max_chunk_tokens) - num_running;
  std::vector<speculation::Candidate> candidates;
  std::vector<Sequence*> drafted;
  for (const auto& sequence : running_) {
    // While a prompt is read beside it, a step's time is that of the prompt.
    if (sequence->num_pending() > 1 || sequence->num_output_tokens() == 0) return false;
    if (!sequence->request.speculate) continue;
    Learn(*sequence);
    // The last token of an answer is never read.
    const int64_t most = std::min({options.most_tokens, model_.cache_layout().max_rewind_tokens,
                                   sequence->max_tokens - sequence->num_output_tokens() - 1});
    const auto num_known = static_cast<int64_t>(sequence->tokens.size());
    sequence->draft = most > 0 ? Propose(*sequence, most) : speculation::Draft();
    sequence->draft_at = num_known;
    if (sequence->draft.tokens.empty()) continue;
    candidates.push_back({&sequence->draft, &sequence->acceptance});
    drafted.push_back(sequence.get());
  }
  if (drafted.empty() || room <= 0) return false;
  std::vector<int64_t> lengths;
  if (options.always) {
    for (const Sequence* sequence : drafted) {
      lengths.push_back(std::min(room, static_cast<int64_t>(sequence->draft.tokens.size())));
      room -= lengths.back();
    }
  } else {
    lengths = draft_policy_.Lengths(candidates, num_running, num_running + room);
  }
  int64_t num_bytes = 0;
  bool any = false;
  for (size_t i = 0; i < drafted.size(); ++i) {
    drafted[i]->num_verified = lengths[i];
    any = any || lengths[i] > 0;
  }
  // Drafts must not cost others their state.
  if (any && options_.max_state_bytes > 0) {
    for (const auto& sequence : running_) {
      num_bytes += kv::StateBytes(model_.cache_layout(),
                                  static_cast<int64_t>(sequence->tokens.size()) + sequence->num_verified);
    }
    if (num_bytes > options_.max_state_bytes && running_.size() > 1) {
      for (const auto& sequence : running_) sequence->num_verified = 0;
      return false;
    }
  }
  return any;
}

void Engine::SawDecodeStep(int64_t rows, int64_t num_sequences, Clock::time_point begin) {
  if (options_.speculation.make_drafter == nullptr) return;
  draft_policy_.SawStep(rows, num_sequences, std::chrono::duration<double>(Clock::now() - begin).count());
}

void Engine::Sample(Sequence& sequence, const model::StepOutput& output, size_t chunk) {
  sampling::TokenConstraint* constraint = sequence.request.constraint.get();
  const int64_t first_row = output.num_rows(chunk) - 1 - sequence.num_verified;
  for (int64_t i = 0; i <= sequence.num_verified; ++i) {
    sequence.sampled.push_back(
        sequence.sampler.Sample(output.Row(chunk, first_row + i),
                                constraint != nullptr ? constraint->Allowed() : std::span<const uint64_t>()));
    const Result<sampling::SampledToken>& token = sequence.sampled.back();
    if (!token || sequence.request.stop_tokens.contains(token->id)) return;
    if (constraint != nullptr) constraint->Accept(token->id);
    if (i < sequence.num_verified && token->id != sequence.draft.tokens[static_cast<size_t>(i)]) return;
  }
}

void Engine::Advance(Sequence& sequence, std::vector<Event>& events) {
  ++stats_.num_decode_steps;
  std::vector<Result<sampling::SampledToken>> sampled = std::exchange(sequence.sampled, {});
  const auto num_sampled = static_cast<int64_t>(sampled.size());
  if (sequence.num_verified > 0) {
    const int64_t accepted = num_sampled - 1;  // All in front of the last were the draft's.
    draft_policy_.SawDraft(sequence.acceptance, sequence.draft.evidence, sequence.num_verified, accepted);
    for (int64_t place = 0; place < sequence.num_verified; ++place) {
      const size_t counted = std::min<size_t>(static_cast<size_t>(place), kDraftPlaces - 1);
      ++stats_.num_draft_tokens[counted];
      if (place < accepted) ++stats_.num_accepted_tokens[counted];
    }
    sequence.draft = {};
    const Status status = sequence.state->Rewind(sequence.num_verified - accepted);
    sequence.num_verified = 0;
    if (!status.ok()) return Finish(sequence, FinishReason::kError, status, -1, events);
  }
  for (Result<sampling::SampledToken>& token : sampled) {
    AdvanceBy(sequence, token, events);
    if (sequence.finished) return;
  }
}

}  // namespace dsv4::engine
