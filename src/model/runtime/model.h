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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/sequence_state.h"
#include "kv/snapshot.h"
#include "model/graph/observer.h"
#include "model/runtime/model_options.h"
#include "model/runtime/model_parts.h"
#include "model/runtime/queued_step.h"
#include "model/runtime/step_chunks.h"
#include "ops/step_replay.h"

namespace dsv4::model {

class Follower;
class StepQueue;

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

  const ModelConfig& config() const { return parts_->config; }
  const ModelOptions& options() const { return parts_->options; }
  // Layers that run: config().num_hidden_layers, or fewer with ModelOptions::max_layers.
  int64_t num_layers() const { return parts_->num_layers; }
  // Which part of the model this rank has.
  const RankPlace& place() const { return parts_->place(); }
  // Plan that each layer of this rank does.
  std::span<const LayerPlan> layers() const { return parts_->layers; }
  // Cache that a sequence keeps on this rank; StateBytes gives its size.
  const kv::CacheLayout& cache_layout() const { return *parts_->layout; }
  // The same of every stage of the group, by its first shard, which has most of what shards divide; alone, of this process.
  std::span<const kv::CacheLayout> stage_layouts() const;
  // Bytes of a sequence of so many tokens on the rank that keeps most of it.
  int64_t MostStateBytes(int64_t length) const;

  // The most rows of one sequence in a step that have the bits of a step each; 0: any number. More of them
  // may be computed another way where shards divide entries (ops::ParallelPolicy::few_queries), with other
  // last bits. All pieces of more rows are alike.
  int64_t most_rows_like_steps() const {
    return place().entries().count > 1 ? parts_->backend.policy.few_queries : 0;
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
  // Whether what it reads of its files is what it was loaded from. DataLoss names a file that was changed since. A model whose weights are all
  // copies, as on a device, asks no file. Any thread; a system call a file.
  Status FilesUnchanged() const;
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
  const LayerRows& layer_rows() const { return parts_->layer_rows; }
  // Rows at a prompt's end that go through all layers, where others do not; 0: all do.
  int64_t tail_rows() const;

  // Whether QueueDecode works: the model is one stage, and its vocabulary is one that op `sample` takes.
  bool can_queue() const;
  // One byte a token, for QueueDecode, which never chooses one whose byte is 0. InvalidArgument for another number of them.
  Result<Buffer> UploadAllowedTokens(std::span<const uint8_t> allowed) const;
  // Queues a step that reads one token of every sequence, or tokens of its prompt, and chooses the next. It
  // moves each sequence on by the tokens that it reads, and by those of its draft too, where it has one.
  // With asynchronous memory of the backend it returns at once. The step behind it may then be queued
  // before this one has been waited for. Errors change nothing. They are those of Step, and Unimplemented
  // where can_queue is false. InvalidArgument is for more than max_chunk_tokens rows or a draft that
  // DecodeChunk does not allow. So it is for a chunk to follow that the step queued last does not have. None
  // can follow a step with drafts. N-gram tables are read by tokens: with them, a chunk that follows waits
  // for the step in front. The caller must still have that (FailedPrecondition). Wait tells the errors of the
  // device, and in a group the error that ended it. `allowed`: of UploadAllowedTokens, or none, which allows
  // all.
  // `chooses_later`: up to the logits, which the device computes while the caller finds out how tokens are chosen from them. Choices and biases
  // of chunks are not looked at then. Until Choose no other step, and no draft, may be queued: FailedPrecondition.
  Result<std::unique_ptr<QueuedStep>> QueueDecode(std::span<const DecodeChunk> chunks, const Buffer& allowed,
                                                  bool chooses_later = false);
  // Queues the choice: of each token that Wait will report, by a rule, in the same order; `permitted` and all else is read before it returns.
  // After an error the sequences are as after one of Wait.
  Status Choose(QueuedStep& step, std::span<const sampling::TokenRule> rules);
  // Counters of the backend: queued steps that were replayed, and walked. Zeros where it cannot replay.
  ops::ReplayCounters replay_counters() const;
  // Whether it has a drafter (ModelOptions::mtp, dspark); if not, why.
  bool can_draft() const { return parts_->can_draft(); }
  bool has_dspark() const { return parts_->has_dspark(); }
  std::string why_no_draft() const { return parts_->why_no_draft(); }
  // Tokens of one draft: a block of DSpark, or as many as a state has room for.
  int64_t most_drafts() const { return parts_->most_drafts(); }
  // Drafts of all chunks, with the drafter. No length and no row of the model changes; a state goes on as if nothing had been drafted.
  // InvalidArgument for what no chunk may be, FailedPrecondition without a drafter; later errors name the op, and in a group end it. `allowed`
  // as above. In a group rank 0 chooses the tokens of a draft, as it does those of a step: the others need not agree.
  Result<std::vector<std::vector<int32_t>>> Draft(std::span<const DraftChunk> chunks, const Buffer& allowed);
  // Whether the backend works while the host goes on.
  bool asynchronous() const { return parts_->asynchronous(); }

  // Ranks other than 0: runs the steps of rank 0 until its model is gone, or dismisses them. Otherwise returns what ended the group.
  Status Follow();
  // Rank 0: Follow returns on the others, whose models stay. No step may come, and the model may go, before they are recalled.
  Status Dismiss();
  // Rank 0: the others have called Follow again, or are about to.
  void Recall() { parts_->group.Recall(); }

 private:
  explicit Model(std::unique_ptr<ModelParts> parts);

  static Result<std::unique_ptr<Model>> MakePart(ModelConfig config,
                                                 std::shared_ptr<const io::Checkpoint> checkpoint,
                                                 const ops::Backend& backend, const ModelOptions& options);

  std::unique_ptr<ModelParts> parts_;
  std::unique_ptr<StepQueue> queue_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace dsv4::model
