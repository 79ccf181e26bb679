// What goes into the engine and what comes out: token ids only. Text, stop strings and chat grammar live above.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/status.h"
#include "kv/sequence_state.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace dsv4::engine {

using RequestId = uint64_t;

// A sequence state that has already consumed the first state.length() tokens of a prompt.
struct Request {
  std::vector<int32_t> prompt;  // At least one token.
  sampling::SamplingParams sampling;
  int64_t max_tokens = 0;         // Output tokens at most; > 0.
  std::set<int32_t> stop_tokens;  // Ends the answer; the token itself is not part of it.
  int num_logprobs = -1;          // < 0: none; otherwise that many of the most probable per token.
  // Continues from here instead of from nothing: its tokens must be a proper prefix of the prompt (the caller's promise; only
  // the length can be checked). At least the prompt's last token is always computed.
  std::optional<kv::SequenceState> prefix;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };

// One event about one request, in order.
struct Event {
  enum class Kind : uint8_t { kPrefill, kToken, kFinished };
  RequestId request = 0;
  Kind kind = Kind::kToken;
  // kPrefill: prompt tokens in the state so far.
  int64_t num_prompt_tokens_done = 0;
  // kToken.
  sampling::SampledToken token;
  // kFinished. `status` says why for kError. stop_token is the token that ended the answer, -1 otherwise.
  FinishReason finish_reason = FinishReason::kStop;
  int32_t stop_token = -1;
  Status status;
  // kFinished, unless the request never ran or its state is spoilt: the sequence's state, for reuse as Request::prefix. It holds the
  // prompt and the output without the last token (nothing asked for its logits).
  std::optional<kv::SequenceState> state;
};

}  // namespace dsv4::engine
