// Engine: requests in, events out. One thread calls Step in a loop; each call runs one ragged batch of prefill chunks and decode
// tokens through the model and samples for the sequences that reached the end of what they know.
//
// A sequence's tokens depend on its request alone: not on its batch neighbours, the chunk sizes, when it was admitted, whether
// its prompt's beginning was reused, or whether it was preempted.
// Not thread-safe except where noted: one owner calls all functions. The model outlives the engine.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "engine/prefix_disk.h"
#include "engine/prefix_store.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_watcher.h"
#include "model/runtime/model.h"
#include "speculation/draft_policy.h"
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
  // Prefill tokens of a batch that also decodes; prompts then read slower and answers run smoother.
  int64_t max_prefill_beside_decode = 512;
  // Seconds from a request's arrival to its first token that are aimed at: a prompt that is older gets what prompts may have before
  // younger ones. 0: no aim.
  double first_token_target = 0.0;
  // Seconds that a step with answers may take: prompts get as many tokens beside them as keep to it, as far as former steps tell, and no
  // more than max_prefill_beside_decode unless a prompt is overdue. 0: no bound.
  double max_gap = 0.0;
  int max_sequences = 16;  // Sequences with a state at one time; further requests wait.
  // A sequence runs so long, before it may be preempted for a request whose owner has none running. Its own owner keeps at least one.
  double turn_seconds = 0.25;
  // A sequence with events that were not taken for so long gives its place to any other owner, its own owner's last one too.
  double unread_seconds = 1.0;
  int64_t max_context = 0;  // Prompt and answer together; 0: as many as the model knows.
  // Of the states of running sequences on the rank that keeps most of them; where ranks divide the sequences, of the average rank. When they
  // outgrow it, the youngest is preempted: it gives its state up, waits, and is computed again from what the prefix store has. 0: no limit.
  int64_t max_state_bytes = 0;
  int64_t prefix_cache_bytes =
      0;  // Of states kept for reuse, on the rank that max_state_bytes counts; 0: none is kept.
  // A long prompt's state is kept after every so many tokens too, or every kMostCheckpoints-th part where that is more, for prompts that
  // leave its path at a place that nothing foretold. In memory only. 0: nowhere but at the ends and branches.
  int64_t checkpoint_tokens = 0;
  // Keeps states beyond memory and process; wants prefix_cache_bytes > 0. Outlives the engine; null: none.
  PrefixDisk* prefix_disk = nullptr;
  StepWatcher* watcher = nullptr;  // Outlives the engine; null: none.
  // Samples for several sequences at a time with these, which must be idle between steps of the model: those of its backend. Outlives
  // the engine; null: one after the other.
  ThreadPool* threads = nullptr;
  // Decode steps are queued before the tokens of the step in front of them are known (async_scheduling.cc). Unset: where the model's backend
  // works while the host goes on. Tokens are the same either way.
  std::optional<bool> async_scheduling;
  // Drafts are left out of steps that a watcher or an observer sees, and of those that read prompts.
  SpeculationOptions speculation;
  // Sees every tensor of every step, with the logits of all rows instead of the sampled ones. Rows of sequences that run at one
  // time are mixed: for one request at a time. Outlives the engine; null: none.
  model::Observer* observer = nullptr;
};

constexpr int64_t kMostCheckpoints = 8;  // Of one prompt: their rings are not shared.

constexpr size_t kDraftPlaces = 8;  // Of EngineStats; the last is for all further ones.

struct EngineStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_steps = 0;
  int64_t num_steps_ahead = 0;     // Of these, queued before the tokens of the step in front were known,
  int64_t num_steps_replayed = 0;  // and queued without a walk through the model (ops/step_replay.h);
  int64_t num_steps_verified_on_backend = 0;  // with drafts, and chose their tokens on the backend.
  int64_t num_prefill_tokens = 0;             // Computed.
  int64_t num_cached_tokens = 0;              // Reused instead.
  int64_t num_output_tokens = 0;
  int64_t num_preemptions = 0;
  // Of drafts, by source and place: tokens that steps verified, and that were right.
  using DraftCounts = std::array<std::array<int64_t, kDraftPlaces>, speculation::kNumSources>;
  DraftCounts num_draft_tokens = {};
  DraftCounts num_accepted_tokens = {};
  DraftCounts num_reached_tokens = {};  // Verified behind tokens that were all right.
  double drafting_seconds = 0;          // Of the model's drafter.
  int64_t num_decode_steps = 0;         // A step counts once for every sequence that gets tokens of it.
  int64_t state_bytes = 0;              // Of running sequences, as EngineOptions::max_state_bytes counts.
  // Of any sequence on the rank that has most: what does not grow, and what a token adds to its entries and its indexer keys.
  int64_t fixed_state_bytes = 0;
  double entry_bytes_per_token = 0;
  double indexer_key_bytes_per_token = 0;
  int64_t cache_bytes = 0;
  int64_t cache_states = 0;
  int64_t cache_evictions = 0;
};

class Engine {
 public:
  // `allowed_tokens`: one entry per vocabulary id, 0 for ids that have no string and must not be sampled; empty allows all.
  Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens);
  ~Engine();

  // What Submit would say; from any thread. InvalidArgument names the field; OutOfRange when the prompt leaves no room in the
  // context.
  Status Check(const Request& request) const;

  // Checks the request and queues it.
  Result<RequestId> Submit(Request request);

  // Finishes the request with kCancelled at the next Step; unknown or finished ids do nothing.
  void Cancel(RequestId id);

  // Runs one batch. Returns what happened, in order; an empty list when there is no work. A failing model step finishes the
  // requests of that batch with kError and its status, which names the op. Out of memory with several sequences running, the
  // youngest is preempted instead. Where the host's memory runs out in the midst of it (std::bad_alloc), the requests that run are
  // finished with kError and kUnavailable; it throws only if there is none for saying so, and the next call then says it.
  std::vector<Event> Step();

  // Asks since when events of each request wait to be taken; none: they do not. Before a step while there are requests that wait for a place.
  void SetUnread(const std::function<std::optional<std::chrono::steady_clock::time_point>(RequestId)>& since);
  bool has_waiting() const { return !waiting_.empty(); }

  // Gives back all memory that running sequences and kept states have. The next Step finishes the requests that ran, as above.
  void Abandon();

  bool idle() const;
  // Tokens that prompt and answer may have together: from any thread.
  int64_t context_length() const { return context_length_; }
  EngineStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Sequence;

  void Step(std::vector<Event>& events);
  void DropEnded(std::vector<Event>& events);
  void Admit(std::vector<Event>& events);
  // Index of the waiting sequence to run next, or waiting_.size().
  size_t ChooseWaiting();
  int64_t RunningOf(uint64_t owner) const;
  // Index of the running sequence that gives way when an owner with none running waits: the youngest, of those that have had their turn, of
  // the owner that has most. running_.size() when there is none, or no such owner.
  size_t ChooseToGiveWay() const;
  // Late ones (late.cc). Works on the masks of what the step may sample, within bounds of time; those that are not ready sit it out.
  void PrepareMasks();
  bool IsUnread(const Sequence& sequence) const;
  // Index of the running sequence that has not been read for longest, or running_.size().
  size_t LongestUnread() const;
  // Whether a running sequence is just computing what this one could reuse.
  bool WaitsForAnother(Sequence& sequence);
  // Whether a state that this one could start from is on its way from the disk. What has come is in the store.
  bool WaitsForDisk(Sequence& sequence);
  int64_t RunningBytes() const;
  int64_t BytesOf(const Sequence& sequence) const;
  // A kept state to begin with; nullopt: none.
  std::optional<kv::SequenceState> FindState(const Sequence& sequence);
  // Preempts until the states of the running sequences are within the budget.
  void MakeRoom();
  // After a step ran out of memory. False when there is nothing to give up.
  bool FreeMemory();
  void Preempt(size_t index);
  void KeepState(const Sequence& sequence);
  void Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
              std::vector<Event>& events);
  // Async scheduling (async_scheduling.cc). A step that chooses its tokens on the backend, queued and not waited for.
  struct StepInFlight;
  // Starts async scheduling if all that run may: then a step is in flight.
  bool QueuesAhead();
  // Whether nothing is to be done before the next step is queued.
  bool MayGoOn() const;
  // Queues the step behind the one in flight, if it may, and takes what that one has given. False if no request wanted that.
  bool GoOn(std::vector<Event>& events);
  // allowed_on_backend_, where there is anything to allow.
  Status UploadAllowed();
  // Queues a step of `sequences`, behind the one in flight if there is one; null if that fails.
  std::unique_ptr<StepInFlight> Queue(const std::vector<Sequence*>& sequences, const StepInFlight* before);
  // Waits for the step, and advances its sequences.
  void Settle(StepInFlight& step, std::vector<Event>& events);
  // Runs the step that verifies the chosen drafts, if it may choose its tokens on the backend as well.
  bool VerifyOnBackend(std::vector<Event>& events);
  // A token that the backend has chosen, into sequence.sampled; whether the one behind it may be taken too.
  bool Take(Sequence& sequence, const model::ChosenToken& token) const;
  // Takes back what the state has read beyond the tokens that are known.
  static void TakeBack(Sequence& sequence);

  // Speculation (speculate.cc).
  // Decides which drafts the next step verifies, besides one row of each running sequence; whether there are any. Those of the model's drafter
  // are then to be made.
  bool PlanDrafts();
  // The same, and makes them.
  bool ChooseDrafts();
  bool MakeModelDrafts();
  // What of the blocks that have been drafted is verified, now that it is known how sure the drafter is; the rest is watched.
  void ShortenBlocks(std::span<Sequence* const> drafted);
  // What the drafts of the step cost each sequence; of those in `made` the model's drafter made up to `longest` tokens.
  void PriceDrafts(std::span<Sequence* const> made, int64_t longest);
  // What the token that came says of a block of which nothing was verified.
  void LearnUnverified(Sequence& sequence);
  void SawDraft(Sequence& sequence, const speculation::Draft& draft, int64_t verified, int64_t accepted);
  void Learn(Sequence& sequence);
  // Up to `most` tokens that may follow: what the constraint forces, or the drafter's as far as the constraint allows them.
  static speculation::Draft Propose(Sequence& sequence, int64_t most);
  // What of the options the request may use.
  bool MayAskModel(const Sequence& sequence) const;
  // Its drafts' length where it says one, else 0.
  int64_t AlwaysOf(const Sequence& sequence) const;
  // What a step of decode rows alone took.
  void SawDecodeStep(int64_t rows, int64_t num_sequences, Clock::time_point begin);

  // What sequences begin with, and what they read in a step (reading.cc).
  // What each running one has to read.
  std::vector<Pending> Wanted() const;
  // What the next step may do.
  StepBudget Budget(std::span<const Pending> pending) const;
  // What of each sequence; where few rows have other bits than many, in pieces that have those of a run alone (reading_pieces.h).
  std::vector<ScheduledChunk> Schedule(std::span<const Pending> pending) const;
  // The prompt's tokens behind those of the chunk, into sequence.scored.
  static void Score(Sequence& sequence, const model::StepOutput& output, size_t chunk);
  // Samples into sequence.sampled, from the chunk's last rows: one, and one for every draft that was right. For different sequences
  // from several threads.
  static void Sample(Sequence& sequence, const model::StepOutput& output, size_t chunk);
  // Takes what was sampled and decides whether the sequence goes on.
  void Advance(Sequence& sequence, std::vector<Event>& events);
  // The same for one token.
  void AdvanceBy(Sequence& sequence, Result<sampling::SampledToken>& token, std::vector<Event>& events);

  model::Model& model_;
  EngineOptions options_;
  std::vector<uint8_t> allowed_tokens_;
  int64_t context_length_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // In order of admission.
  PrefixStore store_;
  EngineStats stats_;
  RequestId next_id_ = 1;
  Buffer allowed_on_backend_;  // Of allowed_tokens_, once a step was queued.
  int64_t most_running_ = 0;   // Fewer than max_sequences after memory ran out.
  int64_t num_good_steps_ = 0;
  std::vector<Event> events_;  // Of the step that runs, and of one that was abandoned.
  std::unique_ptr<StepInFlight> in_flight_;
  speculation::DraftPolicy draft_policy_;
  // Steps of so many rows, and drafts of so many tokens, that have been there before. The first of a kind pays for memory that later ones
  // find: a price that no short answer could afford would not be seen again, and so not be corrected.
  std::set<int64_t> known_rows_;
  std::set<int64_t> known_drafts_;
  StepPrice step_price_;
  int64_t few_rows_ = 0;                      // Model::most_rows_like_steps
  uint64_t last_mask_owner_ = 0;              // The owner of the last masks that had a turn.
  std::optional<Clock::time_point> settled_;  // When the step in front of the one in flight was.
};

}  // namespace dsv4::engine
