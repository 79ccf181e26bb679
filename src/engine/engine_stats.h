// EngineStats: what an engine has done, and what it keeps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "speculation/drafter.h"

namespace dsv4::engine {

constexpr size_t kDraftDepths = 8;  // Depths of drafts in EngineStats; the last is for all further ones.

struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_steps = 0;
  // Steps of these that were queued before the tokens of the step in front were known,
  int64_t num_steps_ahead = 0;
  int64_t num_steps_replayed = 0;  // and queued without a walk through the model (ops/step_replay.h);
  int64_t num_steps_verified_on_backend = 0;  // with drafts, and chose their tokens on the backend.
  int64_t num_mixed_steps_on_backend = 0;     // waited for, of any mix, and chose their tokens there;
  int64_t num_steps_holding = 0;              // While prompts waited for others to be read with.
  int64_t num_prompt_tokens = 0;              // In admitted requests.
  int64_t num_prefill_tokens = 0;             // Computed.
  int64_t num_cached_tokens = 0;              // Reused instead,
  int64_t num_shared_tokens = 0;              // of those with which a kept text begins too.
  int64_t num_output_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t num_published = 0;        // Request::publish: states that other servers find,
  int64_t num_not_published = 0;    // and those that could not be written, or were too short.
  int64_t num_states_met = 0;       // Request::expects_state: the prompt's state was there,
  int64_t num_states_missing = 0;   // or the prompt had to be read.
  int64_t num_below_threshold = 0;  // FinishReason::kCacheThreshold
  // Counts of drafts, by source and position in the draft: tokens that steps verified, and that were right.
  using DraftCounts = std::array<std::array<int64_t, kDraftDepths>, speculation::kNumSources>;
  DraftCounts num_draft_tokens = {};
  DraftCounts num_accepted_tokens = {};
  DraftCounts num_reached_tokens = {};  // Verified behind tokens that were all right.
  double drafting_seconds = 0;          // Time of the model's drafter.
  int64_t num_decode_steps = 0;         // A step counts once for every sequence that gets tokens of it.
  int64_t state_bytes = 0;  // Bytes of running sequences, as EngineOptions::max_state_bytes counts.
  // Their room: that budget. Without one the longest sequences in all places, or what memory there was at the
  // start.
  int64_t state_room_bytes = 0;
  // EngineOptions::block_tokens, and how many of these blocks running and kept states have room for; 0: a
  // token adds nothing to a state.
  int64_t block_tokens = 0;
  int64_t num_blocks = 0;
  // Bytes of a sequence on the rank that has most: what does not grow, and what a token adds to entries and
  // indexer keys.
  int64_t fixed_state_bytes = 0;
  double entry_bytes_per_token = 0;
  double indexer_key_bytes_per_token = 0;
  int64_t cache_bytes = 0;
  int64_t cache_states = 0;
  int64_t cache_evictions = 0;
  // Prompt tokens that the latest step with prompts and answers could read, and the seconds that it could
  // take (schedule/prefill_policy.h); 0: no limit was known.
  int64_t prefill_beside_decode = 0;
  double gap_aim = 0;
};

}  // namespace dsv4::engine
