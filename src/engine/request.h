// Requests and results of the engine: token ids only. Text, stop strings and chat grammar live above.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/status.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"
#include "sampling/token_constraint.h"
#include "speculation/drafter.h"

namespace dsv4::engine {

using RequestId = uint64_t;

struct Request {
  std::vector<int32_t> prompt;  // At least one token.
  sampling::SamplingParams sampling = {};
  int64_t max_tokens = 0;              // Output tokens at most; 0: the prompt is read, and that is all.
  std::set<int32_t> stop_tokens = {};  // Ends the answer; the token itself is not part of it.
  int num_logprobs = -1;               // < 0: none; otherwise that many of the most probable per token.
  // The same for the prompt's tokens (kPromptScored). Such a prompt is read from its beginning: kept states hold no logits.
  int num_prompt_logprobs = -1;
  // Limits every output token; may be null. Stop tokens included: a constraint that forbids them all never lets the answer end.
  std::unique_ptr<sampling::TokenConstraint> constraint = nullptr;
  // The request ends with kError and DeadlineExceeded at the first step after this.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  // States are reused among requests of one salt only.
  uint64_t cache_salt = 0;
  // Ascending positions in the prompt at which other prompts are likely to branch off (where the last turn begins): the state is
  // kept there. The prompt's end and the answer's end are kept anyway.
  std::vector<int64_t> branch_points = {};
  // Which drafts of this answer steps may verify, of those that the engine has (EngineOptions::speculation). The answer is the same.
  speculation::Choice speculation = {};
  // Waiting requests of the owner with the fewest running ones go first, then those of the owner that has had
  // none for longest. While all places are taken, a request of an owner that has none gets a place of another
  // owner. That owner has several, or has had one for long (EngineOptions::turn_seconds).
  uint64_t owner = 0;
  // Lower numbers are started and read before those of a higher one; answers that are being made are not
  // touched.
  int64_t priority = 0;
  // A request of whose prompt kept states have less than this part ends at once, with kCacheThreshold: 1 wants all that a state can have, 0 nothing.
  double least_cached_part = 0.0;
  // The request ends when the state of its prompt is in a file for other servers (EngineOptions::prefix_disk), or cannot be.
  bool publish = false;
  // Another server is to have written that state: whether it was there is counted.
  bool expects_state = false;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError, kCacheThreshold };

// One event about one request, in order.
struct Event {
  enum class Kind : uint8_t { kAdmitted, kPrefill, kPromptScored, kToken, kFinished };
  RequestId request = 0;
  Kind kind = Kind::kToken;
  // kAdmitted, once: prompt tokens that a kept state has read already.
  int64_t num_cached_tokens = 0;
  // kPrefill: prompt tokens in the state so far.
  int64_t num_prompt_tokens_done = 0;
  // kPromptScored: of prompt tokens, in order and without gaps, beginning with the second: nothing stands in front of the first.
  std::vector<sampling::ScoredToken> scored = {};
  // kToken.
  sampling::SampledToken token = {};
  // kFinished. `status` says why for kError. stop_token is the token that ended the answer, -1 otherwise.
  FinishReason finish_reason = FinishReason::kStop;
  int32_t stop_token = -1;
  Status status = {};
  // With Request::publish: tokens of the prompt that other servers find read; 0: the prompt is too short for a file, or it could not be written.
  int64_t num_published_tokens = 0;
};

}  // namespace dsv4::engine
