// EngineOptions: how an engine runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/parallel.h"
#include "engine/kept_blocks.h"
#include "engine/prefix_disk.h"
#include "engine/step_watcher.h"
#include "model/runtime/model.h"
#include "speculation/drafter.h"

namespace dsv4::engine {

// Drafts (speculation/drafter.h) that steps verify. Tokens are the same with and without, and with any of these numbers.
struct SpeculationOptions {
  // Makes a sequence's drafter; empty: none.
  std::function<std::unique_ptr<speculation::Drafter>()> make_drafter;
  // Asks the model's drafter (Model::can_draft), which is a draft block or one of DSpark.
  bool mtp = false;
  bool dspark = false;
  // Tokens of a draft at most; no more than the model can take back (ModelOptions::max_rewind_tokens). Of one of the draft block, which
  // makes them one after the other, at most most_mtp_tokens; of DSpark a block.
  int64_t most_tokens = 7;
  int64_t most_mtp_tokens = 4;
  // Verifies as much of every draft as there is. Otherwise as much as pays (speculation/draft_policy.h).
  bool always = false;

  bool any() const { return make_drafter != nullptr || mtp || dspark; }
};

struct EngineOptions {
  // Tokens of one batch, prefill and decode together; 0: as many as the model takes in one pass.
  int64_t max_step_tokens = 0;
  // Prefill tokens of a batch that also decodes; prompts then read slower and answers run smoother. 0: by the prices of steps
  // (schedule/prefill_policy.h).
  int64_t max_prefill_beside_decode = 0;
  // Target of seconds from a request's arrival to its first token. A prompt that is older gets the prompts'
  // tokens of a step before younger ones. 0: no target.
  double first_token_target = 0.0;
  // Seconds that a step with answers may take. Prompts get as many tokens beside them as keep to it, as far as former steps tell. They get no
  // more than max_prefill_beside_decode unless one is overdue. 0: no bound. Unset: an aim of kGapAim where a device computes, else none.
  std::optional<double> max_gap;
  int max_sequences = 16;  // Sequences with a state at one time; further requests wait.
  // A sequence runs so long before it may be preempted for a request whose owner has none running. The only
  // one of its owner runs four times as long.
  double turn_seconds = 0.25;
  // A sequence with events that were not taken for so long gives its place to any other owner, its own owner's last one too.
  double unread_seconds = 1.0;
  int64_t max_context = 0;  // Prompt and answer together; 0: as many as the model knows.
  // Bytes of the states of running sequences on the rank that keeps most of them; where ranks divide the sequences, of the average rank. When they
  // outgrow it, the youngest is preempted: it gives its state up, waits, and is computed again from what the prefix store has. 0: no limit.
  int64_t max_state_bytes = 0;
  int64_t prefix_cache_bytes =
      0;  // Bytes of states kept for reuse, on the rank that max_state_bytes counts; 0: none is kept.
  // A long prompt's state is kept after every so many tokens too, or every kMostCheckpoints-th part where
  // that is more. It serves prompts that leave its path at a token that no one could predict. In memory only.
  // 0: nowhere but at the ends and branches.
  int64_t checkpoint_tokens = 0;
  // Tokens of a block, in which routers count what a prompt shares with kept states; > 0. States themselves are kept at any length.
  int64_t block_tokens = 64;
  // Is told of the blocks of kept states (kept_blocks.h). Outlives the engine; null: none.
  BlockWatcher* block_watcher = nullptr;
  // Keeps states beyond memory and process; wants prefix_cache_bytes > 0. Outlives the engine; null: none.
  PrefixDisk* prefix_disk = nullptr;
  StepWatcher* watcher = nullptr;  // Outlives the engine; null: none.
  // Samples for several sequences at a time with these, which must be idle between steps of the model: those of its backend. Outlives
  // the engine; null: one after the other.
  ThreadPool* threads = nullptr;
  // Decode steps are queued before the tokens of the step in front of them are known (queued_stepper.cc). Unset: where the model's backend
  // works while the host goes on. Tokens are the same either way.
  std::optional<bool> async_scheduling;
  // Drafts are left out of steps that a watcher or an observer sees, and of those that read prompts.
  SpeculationOptions speculation;
  // Sees every tensor of every step, with the logits of all rows instead of the sampled ones. Rows of sequences that run at one
  // time are mixed: for one request at a time. Outlives the engine; null: none.
  model::Observer* observer = nullptr;
};

constexpr double kGapAim = 0.1;
constexpr int64_t kMostCheckpoints = 8;  // In one prompt: their rings are not shared.
// A state is kept whole at the price of a tail's rows (model::Model::tail_rows), which a prompt without it leaves out.
constexpr int64_t kTailsApart = 8;

}  // namespace dsv4::engine
