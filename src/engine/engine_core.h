// EngineCore: the model, the options and the sequences, which all parts of an engine look at. One thread at a
// time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/schedule/prefill_policy.h"
#include "engine/sequence.h"

namespace dsv4::engine {

struct EngineCore {
  // Options whose numbers are 0 or unset get what they stand for.
  EngineCore(model::Model& model_to_run, EngineOptions given, std::vector<uint8_t> allowed);

  // Steps may choose their tokens on the backend, and be queued ahead.
  bool queues() const;
  // allowed_on_backend, where there is anything to allow.
  Status UploadAllowed();
  void DropFinished();
  // Counts a request of this owner.
  void CameFrom(uint64_t owner);
  // Requests of more than one owner came lately.
  bool has_several_owners() const;
  // Tokens of a prompt that a state can have for another run of the same prompt. One of all tokens is taken
  // back by one, where so few rows have the bits that they have with others.
  int64_t MostReusable(int64_t num_prompt_tokens) const {
    return few_rows == 0 ? num_prompt_tokens : std::max<int64_t>(num_prompt_tokens - few_rows - 1, 0);
  }

  model::Model& model;
  EngineOptions options;
  std::vector<uint8_t> allowed_tokens;
  Buffer allowed_on_backend;  // Made of allowed_tokens, once a step was queued.
  int64_t context_length;
  int64_t few_rows;  // Model::most_rows_like_steps
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> running;  // In order of admission.
  // Requests that have ended but for the file of their prompt's state (Request::publish).
  struct Publishing {
    Event finished;
    std::shared_ptr<PrefixDisk::Publication> publication;
    bool cancelled = false;
  };
  std::vector<Publishing> publishing;
  EngineStats stats;
  PrefillPolicy prefill_policy;
  std::optional<uint64_t> last_owner;  // The owner of the request that came last.
  std::optional<std::chrono::steady_clock::time_point> other_owner_came;  // When it last was another one.
};

}  // namespace dsv4::engine
