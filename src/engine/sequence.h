// Sequence: a request on its way through the engine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/prefix_disk.h"
#include "engine/request.h"
#include "kv/sequence_state.h"
#include "sampling/sampler.h"
#include "speculation/draft_policy.h"
#include "speculation/drafter.h"

namespace dsv4::engine {

inline bool IsByModel(const speculation::Draft& draft) {
  return draft.source == speculation::Source::kMtp || draft.source == speculation::Source::kDspark;
}

struct Sequence {
  RequestId id = 0;
  Request request;
  std::vector<int32_t> tokens;  // Prompt and output.
  int64_t num_prompt_tokens = 0;
  int64_t max_tokens = 0;
  sampling::Sampler sampler;
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  std::vector<Result<sampling::SampledToken>> sampled = {};  // Result of the step that runs.
  std::vector<sampling::ScoredToken> scored = {};            // Scores of the step that runs.
  int64_t num_scored = 1;  // Prompt tokens whose log-probabilities are known, with the first, which has none.
  std::unique_ptr<speculation::Drafter> drafter = nullptr;  // Made when it is first asked.
  speculation::AcceptanceRecord acceptance = {};
  speculation::Draft draft = {};  // Draft of which the step that runs
  int64_t num_verified = 0;       // verifies so many tokens. Of the draft block: which is to make so many.
  speculation::Draft watched =
      {};  // Guess of the drafter: what may follow the tokens that were known when it was made,
  int64_t watched_at = 0;  // so many.
  // Guess of the model's drafter the same, where nothing of it was verified.
  speculation::Draft unverified = {};
  int64_t unverified_at = 0;
  // Cost in the step that runs, in steps of one token: its part of what drafts cost.
  double draft_cost = 0.0;
  std::vector<int32_t> rows = {};               // Rows of the step that runs, where it verifies a draft.
  std::optional<kv::SequenceState> state = {};  // Absent while waiting.
  std::vector<int64_t> keep_at = {};            // Ascending: lengths at which the state is kept.
  int64_t checkpoint_every = 0;                 // > 0: and at the multiples of this within the prompt.
  RequestId waits_for = 0;  // A running request that is computing the beginning of this prompt,
  int64_t waits_until = 0;  // up to here; 0: waits for none.
  std::shared_ptr<PrefixDisk::Load> load = nullptr;  // Load of a state to start from.
  bool asked_disk = false;                           // Whether it has such a state.
  // The state of the prompt, where others are to have it.
  std::shared_ptr<PrefixDisk::Publication> publication = nullptr;
  int64_t expected_reuse = -1;  // Tokens at most that a kept state has; -1: not looked up.
  std::chrono::steady_clock::time_point running_since = {};  // Admitted at last.
  int64_t gives_way_past = 0;  // Length that it passes before it gives way again.
  double turn = 1.0;           // In those of an owner's only one.
  bool mask_late = false;      // It sits the step out.
  std::optional<std::chrono::steady_clock::time_point> unread_since = {};
  bool cancelled = false;
  bool abandoned = false;  // Has no state: memory ran out.
  bool finished = false;
  bool admitted = false;

  double Age() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - arrival).count();
  }
  int64_t length() const { return state ? state->length() : 0; }
  int64_t num_pending() const { return static_cast<int64_t>(tokens.size()) - length(); }
  int64_t num_output_tokens() const { return static_cast<int64_t>(tokens.size()) - num_prompt_tokens; }
  bool reading() const { return state && state->length() < num_prompt_tokens; }
  // Its tokens may be chosen without its constraint.
  bool GoesOn() const { return request.constraint == nullptr || request.constraint->IsWaiting(); }
  // Its next token takes no more than its logits.
  bool IsPlain() const { return GoesOn() && sampler.by_logits_alone(); }
  bool MayChooseOnBackend() const { return sampler.has_rule() && !wants_scores(); }
  // Rows of the prompt have to be computed for their logits.
  bool wants_scores() const { return request.num_prompt_logprobs >= 0 && num_scored < num_prompt_tokens; }
  std::span<const int32_t> Known() const { return std::span(tokens).first(static_cast<size_t>(length())); }
  void KeepAt(int64_t position) {
    const auto place = std::lower_bound(keep_at.begin(), keep_at.end(), position);
    if (place == keep_at.end() || *place != position) keep_at.insert(place, position);
  }
  bool IsKeptAt(int64_t position) const {
    return std::binary_search(keep_at.begin(), keep_at.end(), position);
  }
  // The last is as far from the prompt's end, which is kept, as from the one before.
  bool IsCheckpoint(int64_t position) const {
    return checkpoint_every > 0 && position % checkpoint_every == 0 &&
           position + checkpoint_every <= num_prompt_tokens;
  }
  // The length up to which it reads what it knows, whatever happens, without its state being looked at.
  int64_t ReadsTo() const {
    const int64_t kept = NextKept();
    return kept > 0 ? kept : static_cast<int64_t>(tokens.size());
  }
  // The next length at which the state is kept, or 0.
  int64_t NextKept() const {
    const auto next = std::upper_bound(keep_at.begin(), keep_at.end(), length());
    const int64_t kept = next == keep_at.end() ? 0 : *next;
    if (checkpoint_every == 0) return kept;
    const int64_t checkpoint = (length() / checkpoint_every + 1) * checkpoint_every;
    return IsCheckpoint(checkpoint) && (kept == 0 || checkpoint < kept) ? checkpoint : kept;
  }
};

}  // namespace dsv4::engine
