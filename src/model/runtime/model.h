// Model: a loaded DeepSeek-V4 checkpoint on a backend. Token ids and sequence states in, logits out; no text, no requests,
// no sampling.
//
// A Step takes a ragged batch: any mix of prefill chunks and single decode tokens of different sequences. Results do not
// depend on how a sequence's tokens are cut into chunks or on its neighbours in the batch (step.h).
//
// Ownership: a Model owns its weights and keeps its backend's context alive; sequence states must not outlive the model.
// Threads: one Step at a time per model; the const functions from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "io/chosen_reads.h"
#include "kv/sequence_state.h"
#include "kv/snapshot.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/weights.h"
#include "model/config/cache_geometry.h"
#include "model/config/config.h"
#include "model/config/numerics.h"
#include "model/graph/layer_rows.h"
#include "model/graph/observer.h"
#include "model/placement/expert_split.h"
#include "model/runtime/queued_step.h"
#include "ops/op_table.h"
#include "ops/step_replay.h"
#include "tensor/arena.h"

namespace dsv4::model {

struct ChosenTokens;
struct ChunkMessage;
struct DraftRow;
struct EngramLookup;
struct Graph;
struct PassChunk;
struct StepMessage;
class WeightFiles;

// The ranks whose data a group on devices moves: a stage's shards, which all exchange at once, or stages,
// which send to each other.
enum class DeviceGroupOf : uint8_t { kShards, kStages };

struct ModelOptions {
  Numerics numerics = Numerics::kRelease;
  int64_t max_layers = 0;  // Runs only the first layers; 0: all.
  // The first release revision and transformers parity turn it off.
  bool clamp_shared_expert = true;
  int64_t max_chunk_tokens = 512;  // Most rows of one pass through the layers; longer chunks take several.
  int64_t max_rewind_tokens = 64;  // Tokens of a sequence that can always be taken back.
  // Loads the draft block (MTP) that a checkpoint may have: Draft. Sequences then keep rows for it.
  bool mtp = false;
  // Loads the DSpark drafter that a checkpoint may have (checkpoint/dspark_source.h), for Draft. With `mtp`
  // too, it is loaded only where there is no draft block: the checkpoint's own comes before a folder's
  // drafter.
  bool dspark = false;
  // Head that its drafts are projected with. A copy of the head in fewer bits is memory beside the drafter;
  // no answer changes.
  DraftHead draft_head = DraftHead::kStored;
  // A backend without Backend::packs_rows keeps them wide. The same on all ranks.
  CacheRows cache_rows = CacheRows::kPacked;
  // If routed experts are divided by id: the most bytes of a pass's terms for which every rank gathers rows
  // of all assignments. Bytes are of all ranks together. Beyond that hosts list the rows that there are. The
  // same on all ranks. 128 tokens of Flash on eight ranks, 64 of Pro.
  int64_t max_gathered_terms = int64_t{48} << 20;
  // On a device: experts that the host multiplies, or keeps for it (docs/expert-tiers.md). The split is of the experts of every layer, which
  // are on one rank; of none, all are resident. The order is by layer, as TiersOf takes it.
  ExpertSplit experts;
  std::vector<std::vector<int32_t>> expert_order;
  // Reader of experts of a model on the host that is larger than the memory it may use; null: it is not.
  // Routed experts are read from their files when they are chosen. Those of layers that choose by token are
  // asked for here before a step. All else is copied to memory. A backend that multiplies them asks for the
  // others (backend::CpuOptions::will_read).
  std::shared_ptr<io::ChosenReads> experts_from_disk;
  // Every byte of the checkpoint is hashed while the model loads, and behind it: soon Model::Origin then need not wait.
  bool hash_weights = false;
  // The backend looks at no number, so none is loaded.
  bool sizes_only = false;
  // The class of each token id, for a model with n-gram tables (tokenizer/token_classes.h); others have no use for them.
  std::vector<int32_t> token_classes;
  // Called while loading, after each layer; an error ends the load and is its result. May be empty.
  std::function<Status(const LoadProgress&)> progress;
  // The ranks that run the model together, each with its part; null: this process runs it alone.
  std::shared_ptr<comm::Communicator> group;
  Placement placement;  // Placement over as many ranks as the group has.
  // Makes a group whose data lies in the backend's memory, of ranks that have met on their hosts. It does not
  // outlive the hosts' group. All ranks call it together. Empty: the group reaches that memory itself.
  std::function<Result<std::unique_ptr<comm::Communicator>>(comm::Communicator& hosts, DeviceGroupOf of)>
      make_device_group;
};

// A draft of how a sequence goes on (Model::Draft).
struct DraftChunk {
  kv::SequenceState* state = nullptr;  // Made by this model's NewSequence, of at least one token.
  int32_t token = 0;                   // Token that follows the state's length, and has not been read.
  // The choice of each token behind it. As many are drafted, at most Model::most_drafts. With the sampler's
  // own choice at that position the draft is the token that it will choose, where the draft's logits are like
  // the model's.
  std::vector<sampling::ChoiceParams> choices = {};
  float* logits = nullptr;  // Unless null the logits come here: host [choices.size(), vocab_size].
  // Unless null, of a DSpark drafter: the chance that the draft at each position is right if those before it
  // are; host [choices.size()].
  float* confidence = nullptr;
};

// Which rows of a chunk want logits.
enum class LogitsRows : uint8_t { kNone, kLast, kAll };

struct SequenceChunk {
  kv::SequenceState* state = nullptr;  // Made by this model's NewSequence.
  std::span<const int32_t> tokens;     // They follow the state's length.
  LogitsRows logits = LogitsRows::kLast;
  // Known tokens of a prompt that will follow in later steps, whatever happens. Layers behind the last one that makes entries leave out what
  // only positions in front of these want (pass_tail.h). Until they have followed the state may not be whole (kv::SequenceState::whole).
  // It then has no logits and no draft, and goes on with the prompt alone.
  int64_t num_following = 0;
};

struct StepOutput {
  int64_t vocab_size = 0;
  std::span<const float> logits;  // [rows, vocab_size]: chunk after chunk
  Buffer owner;                   // Owner of the logits.
  std::vector<int64_t>
      row_begin;  // One a chunk, and the total: chunk i has rows row_begin[i] .. row_begin[i + 1].

  int64_t num_rows(size_t chunk) const { return row_begin[chunk + 1] - row_begin[chunk]; }
  std::span<const float> Row(size_t chunk, int64_t row) const {
    return logits.subspan(static_cast<size_t>((row_begin[chunk] + row) * vocab_size),
                          static_cast<size_t>(vocab_size));
  }
};

// With ModelOptions::group, rank 0 is the model as callers know it, and the other ranks call Follow. They are
// told of all changes to the sequences and run their part of every step. Loading, too, all ranks do together.
class Model {
 public:
  // Reads `directory` (config.json and safetensors). Unimplemented names the ops that the backend lacks,
  // before a weight is read. Otherwise the errors of LoadModelConfig, io::Checkpoint and LoadWeights.
  // InvalidArgument for options or a configuration that the graph cannot run.
  static Result<std::unique_ptr<Model>> Load(const std::string& directory, const ops::Backend& backend,
                                             const ModelOptions& options);
  // The same from a checkpoint that is open; `config` is its configuration.
  static Result<std::unique_ptr<Model>> FromCheckpoint(ModelConfig config,
                                                       std::shared_ptr<const io::Checkpoint> checkpoint,
                                                       const ops::Backend& backend,
                                                       const ModelOptions& options);
  // The same from weights in memory; options.max_layers must be 0.
  static Result<std::unique_ptr<Model>> FromWeights(ModelConfig config, ModelWeights weights,
                                                    const ops::Backend& backend, const ModelOptions& options);

  // Rank 0 tells the others to leave.
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  // Layers that run: config().num_hidden_layers, or fewer with ModelOptions::max_layers.
  int64_t num_layers() const { return num_layers_; }
  // Which part of the model this rank has.
  const RankPlace& place() const { return weights_.place; }
  // Plan that each layer of this rank does.
  std::span<const LayerPlan> layers() const { return layers_; }
  // Cache that a sequence keeps on this rank; StateBytes gives its size.
  const kv::CacheLayout& cache_layout() const { return *layout_; }
  // The same of every stage of the group, by its first shard, which has most of what shards divide; alone, of this process.
  std::span<const kv::CacheLayout> stage_layouts() const { return stage_layouts_; }
  // Bytes of a sequence of so many tokens on the rank that keeps most of it.
  int64_t MostStateBytes(int64_t length) const;

  // The most rows of one sequence in a step that have the bits of a step each; 0: any number. More of them
  // may be computed another way where shards divide entries (ops::ParallelPolicy::few_queries), with other
  // last bits. All pieces of more rows are alike.
  int64_t most_rows_like_steps() const {
    return weights_.place.entries().count > 1 ? backend_.policy.few_queries : 0;
  }

  // An empty sequence; where sequences are divided, on the rank that has the fewest. ResourceExhausted
  // without memory.
  Result<kv::SequenceState> NewSequence() const;
  // Reads a snapshot back; restore it into a sequence of NewSequence. Errors: kv::Snapshot::Deserialize;
  // Unimplemented in a group, whose ranks have a part of a state each.
  Result<kv::Snapshot> DeserializeSnapshot(std::span<const std::byte> bytes, uint64_t origin) const;

  // The producer of states: another value for any other byte of the checkpoint, number of its configuration, numerics, backend, instruction
  // set or build. A state of one origin is what a model of the same origin computes itself. Any thread; it waits at most so long until all
  // bytes are hashed, which begins here without ModelOptions::hash_weights. Errors: io::ContentDigest::Wait, so DataLoss from the moment a
  // file is changed under the model; FailedPrecondition for weights in memory.
  Result<uint64_t> Origin(std::chrono::milliseconds at_most) const;
  // All of the origin that two backends of one process can have alike, weights apart.
  uint64_t recipe() const;
  // io::Checkpoint::place of the files that the weights came from.
  std::optional<uint64_t> weights_place() const;

  // Runs all tokens of all chunks and moves each sequence on by its tokens.
  // Wrong arguments change nothing. InvalidArgument is for an empty batch or chunk, a null, foreign, poisoned
  // or repeated state, or an unknown token id. OutOfRange past max_position_embeddings. FailedPrecondition
  // for logits of a row in front of the first from which on its state is whole.
  // Any later error names the op and layer. Each sequence is then back at its old length, or poisoned
  // (SequenceState::poisoned) if more tokens had been written than its rings keep.
  // In a group a rank that has no memory for the step is such an error, named. An error in the midst of a
  // pass, or a rank that is gone, ends the group. This step and all later ones then return that error. An
  // observer sees this rank's part.
  Result<StepOutput> Step(std::span<const SequenceChunk> chunks, Observer* observer = nullptr);

  // Rows that steps have run since the model was loaded.
  const LayerRows& layer_rows() const { return layer_rows_; }
  // Rows at a prompt's end that go through all layers, where others do not; 0: all do.
  int64_t tail_rows() const;

  // Whether QueueDecode works: the model is one stage, and its vocabulary is one that op `sample` takes.
  bool can_queue() const;
  // One byte a token, for QueueDecode, which never chooses one whose byte is 0. InvalidArgument for another number of them.
  Result<Buffer> UploadAllowedTokens(std::span<const uint8_t> allowed) const;
  // Queues a step that reads one token of every sequence, or tokens of its prompt, and chooses the next. It
  // moves each sequence on by the tokens that it reads, and by those of its draft too, where it has one.
  // Where the backend's memory is asynchronous it returns at once, and the step behind it may be queued
  // before this one has been waited for. Errors change nothing. They are those of Step, and Unimplemented
  // where can_queue is false. InvalidArgument is for more than max_chunk_tokens rows or a draft that
  // DecodeChunk does not allow. So it is for a chunk to follow that the step queued last does not have. None
  // can follow a step with drafts. N-gram tables are read by tokens: with them, a chunk that follows waits
  // for the step in front. The caller must still have that (FailedPrecondition). Wait tells the errors of the
  // device, and in a group the error that ended it. `allowed`: of UploadAllowedTokens, or none, which allows
  // all.
  Result<std::unique_ptr<QueuedStep>> QueueDecode(std::span<const DecodeChunk> chunks, const Buffer& allowed);
  // The same up to the logits, which the device computes while the caller finds out how tokens are chosen from them. Choices and biases of
  // chunks are not looked at. Until Choose no other step, and no draft, may be queued: FailedPrecondition.
  Result<std::unique_ptr<QueuedStep>> QueueLogits(std::span<const DecodeChunk> chunks, const Buffer& allowed);
  // Queues the choice: of each token that Wait will report, by a rule, in the same order; `permitted` and all else is read before it returns.
  // After an error the sequences are as after one of Wait.
  Status Choose(QueuedStep& step, std::span<const sampling::TokenRule> rules);
  // Counters of the backend: queued steps that were replayed, and walked. Zeros where it cannot replay.
  ops::ReplayCounters replay_counters() const;
  // Whether it has a drafter (ModelOptions::mtp, dspark); if not, why.
  bool can_draft() const { return weights_.mtp.has_value() || has_dspark(); }
  bool has_dspark() const { return weights_.dspark.has_value(); }
  std::string why_no_draft() const;
  // Tokens of one draft: a block of DSpark, or as many as a state has room for.
  int64_t most_drafts() const {
    return has_dspark() ? weights_.dspark->config.block_size : kv::kMostDraftRows;
  }
  // Drafts of all chunks, with the drafter. No length and no row of the model changes; a state goes on as if nothing had been drafted.
  // InvalidArgument for what no chunk may be, FailedPrecondition without a drafter; later errors name the op, and in a group end it. `allowed`
  // as above. In a group rank 0 chooses the tokens of a draft, as it does those of a step: the others need not agree.
  Result<std::vector<std::vector<int32_t>>> Draft(std::span<const DraftChunk> chunks, const Buffer& allowed);
  // Whether the backend works while the host goes on.
  bool asynchronous() const { return backend_.context->memory().asynchronous(); }

  // Ranks other than 0: runs the steps of rank 0 until its model is gone, or dismisses them. Otherwise returns what ended the group.
  Status Follow();
  // Rank 0: Follow returns on the others, whose models stay. No step may come, and the model may go, before they are recalled.
  Status Dismiss();
  // Rank 0: the others have called Follow again, or are about to.
  void Recall() { dismissed_ = false; }

 private:
  Model(ModelConfig config, ModelWeights weights, const ops::Backend& backend, const ModelOptions& options);

  static Result<std::unique_ptr<Model>> MakePart(ModelConfig config,
                                                 std::shared_ptr<const io::Checkpoint> checkpoint,
                                                 const ops::Backend& backend, const ModelOptions& options);
  Status Prepare();
  Status EnterGroup();
  // InvalidArgument unless every byte of the weights is alike on all ranks.
  Status AgreeOnWeights(comm::Communicator& group);
  Status LearnStageLayouts();
  Status MakeDeviceGroups();
  // Data exchanged with ranks that are gone is worth nothing.
  Status CheckDeviceGroups();
  // After a pass whose ranks exchange in the device's order: waits for the device, and says whether the groups are whole.
  Status EndOnDevice();
  // A device fails where another rank ended a moment ago, which is then what the group is to hear: waits a little for that.
  void AwaitCause();
  Status UploadRopeTables();
  Status CheckChunks(std::span<const SequenceChunk> chunks) const;
  Status CheckDecode(std::span<const DecodeChunk> chunks, std::span<const int32_t> tokens) const;
  Status CheckDraft(std::span<const DraftChunk> chunks) const;
  Status AnnounceDraft(std::span<const DraftRow> rows);
  // Drafts of rows of which those with most choices come first; rank 0 gets all rows' tokens, [most choices, rows]. `ready`: why this rank
  // cannot, which then no rank does.
  Result<std::vector<int32_t>> DraftTogether(std::span<const DraftRow> rows, const Buffer& allowed,
                                             const Status& ready);
  Result<std::vector<int32_t>> RunDrafts(std::span<const DraftRow> rows, const Buffer& allowed);
  // Graph of passes; of members of this model.
  Graph MakeGraph() const;
  // Tells the other ranks what comes.
  Status SendToRanks(const StepMessage& message);
  Status Announce(std::span<const SequenceChunk> chunks);
  Status AnnounceQueued(std::span<const PassChunk> chunks);
  Result<kv::SequenceState> NewSequenceAt(int64_t place) const;
  Status FollowEvents(std::span<const kv::StateEvent> events);
  Status FollowStep(std::span<const ChunkMessage> messages, const Status& events);
  Status FollowQueued(std::span<const ChunkMessage> messages, const Status& events);
  Status FollowDraft(std::span<const ChunkMessage> messages, const Status& events);
  // This rank's copy of a state; FailedPrecondition where it is not as long as rank 0's, ResourceExhausted without memory.
  Result<kv::SequenceState*> CopyOf(const ChunkMessage& message);
  // Ends the group, which this rank cannot go on with: what the others then hear.
  Status EndGroup(const Status& why);
  // Memory for the tokens that `count` rows choose, and where the pass finds those before.
  Result<ChosenTokens> ReserveChosen(int64_t count, const Buffer& allowed);
  // Token that a row of the step queued last has chosen. Waits for it.
  Result<int32_t> AwaitChosen(int64_t row) const;
  // Queues the pass and the copy of its chosen tokens. It replays a step like it that the backend knows, or
  // walks through the graph. `logits`: where the pass ends with them.
  Result<std::unique_ptr<PendingCopy>> QueuePass(std::span<const PassChunk> pass, const ChosenTokens& chosen,
                                                 const ops::StepReplayer::End& end,
                                                 std::vector<TensorView>* logits);
  // No step waits for Choose. In a group that ends where one has gone without it: the others wait for its tokens.
  Status CheckChosen();
  Result<std::unique_ptr<QueuedStep>> QueueRows(std::span<const DecodeChunk> chunks, const Buffer& allowed,
                                                bool later);
  Status ChooseBetween(QueuedStep& step, const LaterChoice& later,
                       std::span<const sampling::TokenRule> rules);
  // Rows of op `sample`, by their numbers in the pass.
  Status ChooseRows(const LaterChoice& later, std::span<const sampling::TokenRule* const> rules,
                    const TensorView& scores);
  Result<TensorView> ReserveScores(int64_t num_rows, int64_t width);
  // Begins the appends, runs the pass and ends them; `ready`: why this rank cannot, which then no rank does. An error changes nothing,
  // or has ended the group.
  Result<std::unique_ptr<QueuedStep>> RunQueued(std::span<PassChunk> pass, const ChosenTokens& chosen,
                                                const Status& ready);
  // `ready`: why this rank cannot run the step, which then no rank does.
  Result<StepOutput> RunStep(std::span<const SequenceChunk> chunks, const Status& ready, Observer* observer);
  Status RunPasses(std::span<const SequenceChunk> chunks, const Status& ready, StepOutput& output,
                   Observer* observer);

  const uint64_t number_;  // Among all models of this process: what was recorded of one is no other's.
  ModelConfig config_;
  ModelWeights weights_;
  ops::Backend backend_;
  ModelOptions options_;
  std::vector<LayerPlan> layers_;  // Plans of weights_.layers.
  std::shared_ptr<const kv::CacheLayout> layout_;
  std::vector<kv::CacheLayout> stage_layouts_;
  Buffer rope_buffer_;
  TensorView rope_plain_;
  TensorView rope_compress_;
  Arena arena_;
  int64_t num_layers_ = 0;
  std::unique_ptr<EngramLookup> engram_;
  mutable LayerRows layer_rows_;
  std::unique_ptr<WeightFiles> files_;
  uint64_t group_recipe_ = 0;  // Hash of what all ranks must have alike, weights apart.

  // Slots that a draft will want of the rows of a step that was queued, with the device at once.
  Status MakeSlotsBehind(std::vector<DraftRow> rows);

  // Memory of queued steps.
  Buffer
      chosen_;  // I32 [1 + ranks, 2 * max_chunk_tokens]: tokens and faults of the step queued last, then all ranks'.
  int64_t num_chosen_ = 0;                       // Its chunks that others may follow.
  std::weak_ptr<QueuedNumbers> queued_numbers_;  // Numbers of the step queued last.
  std::vector<size_t> chosen_rows_;  // On rank 0: where among them each of the caller's chunks is.
  Buffer scores_;                    // I32, of the rows that were scored last.
  size_t num_scores_bytes_ = 0;
  std::weak_ptr<LaterChoice> waits_for_choice_;
  bool owes_choice_ = false;  // To the other ranks.
  Buffer
      end_of_logits_;  // Memory of the host, I32: destination of the copy that ends a pass with its logits. It is not read.

  // In a group.
  std::unique_ptr<comm::Communicator> shards_;  // This stage's; null where it is one rank.
  // On the device, where that has groups of its own: of this stage, and of all ranks where there are several stages.
  std::unique_ptr<comm::Communicator> device_shards_;
  std::unique_ptr<comm::Communicator> device_group_;
  std::shared_ptr<kv::StateJournal> journal_;  // Rank 0's.
  bool in_group_ = false;                      // All ranks have loaded.
  bool dismissed_ = false;                     // State of rank 0 where the others do not follow now.
  std::unique_ptr<QueuedStep> followed_;       // The step that a rank other than 0 has queued last.
  struct StateCopy {
    int64_t place = 0;
    std::optional<kv::SequenceState> state =
        {};  // Made when it is used, or with its source: then there may be memory.
  };
  // The other ranks' copies of the states, by their numbers.
  std::map<uint64_t, StateCopy> copies_;
};

}  // namespace dsv4::model
