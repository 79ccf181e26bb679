// StepQueue: steps that choose their tokens by themselves, one behind the other on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/runtime/model_parts.h"
#include "model/runtime/queued_step.h"
#include "ops/step_replay.h"

namespace dsv4::model {

struct ChosenTokens;
struct DraftRow;
struct PassChunk;

class StepQueue {
 public:
  // `model` outlives it.
  explicit StepQueue(ModelParts& model) : model_(model) {}

  // Model::can_queue.
  bool works() const;
  // Model::QueueDecode.
  Result<std::unique_ptr<QueuedStep>> Queue(std::span<const DecodeChunk> chunks, const Buffer& allowed,
                                            bool chooses_later);
  // Model::Choose.
  Status Choose(QueuedStep& step, std::span<const sampling::TokenRule> rules);
  // No step waits for Choose. In a group that ends where one has gone without it: the others wait for its tokens.
  Status CheckChosen();
  // The part of a rank other than 0 in a step; `ready`: why this rank cannot, which then no rank does.
  Result<std::unique_ptr<QueuedStep>> QueueOfRank0(std::span<PassChunk> pass, const Status& ready);

 private:
  Status CheckDecode(std::span<const DecodeChunk> chunks, std::span<const int32_t> tokens) const;
  Status AnnounceQueued(std::span<const PassChunk> chunks);
  // Memory for the tokens that `count` rows choose, and where the pass finds those before.
  Result<ChosenTokens> ReserveChosen(int64_t count, const Buffer& allowed);
  // Token that a row of the step queued last has chosen. Waits for it.
  Result<int32_t> AwaitChosen(int64_t row) const;
  // Queues the pass and the copy of its chosen tokens. It replays a step like it that the backend knows, or
  // walks through the graph. `logits`: where the pass ends with them.
  Result<std::unique_ptr<PendingCopy>> QueuePass(std::span<const PassChunk> pass, const ChosenTokens& chosen,
                                                 const ops::StepReplayer::End& end,
                                                 std::vector<TensorView>* logits);
  // Begins the appends, runs the pass and ends them. An error changes nothing, or has ended the group.
  Result<std::unique_ptr<QueuedStep>> Run(std::span<PassChunk> pass, const ChosenTokens& chosen,
                                          const Status& ready);
  Status ChooseBetween(QueuedStep& step, const LaterChoice& later,
                       std::span<const sampling::TokenRule> rules);
  // Rows of op `sample`, by their numbers in the pass.
  Status ChooseRows(const LaterChoice& later, std::span<const sampling::TokenRule* const> rules,
                    const TensorView& scores);
  Result<TensorView> ReserveScores(int64_t num_rows, int64_t width);
  // Slots that a draft will want of the rows of a step that was queued, with the device at once.
  Status MakeSlotsBehind(std::vector<DraftRow> rows);

  ModelParts& model_;
  // I32 [1 + ranks, 2 * max_chunk_tokens]: tokens and faults of the step queued last, then all ranks'.
  Buffer chosen_;
  int64_t num_chosen_ = 0;                       // Its chunks that others may follow.
  std::weak_ptr<QueuedNumbers> queued_numbers_;  // Numbers of the step queued last.
  std::vector<size_t> chosen_rows_;  // On rank 0: where among them each of the caller's chunks is.
  Buffer scores_;                    // I32, of the rows that were scored last.
  size_t num_scores_bytes_ = 0;
  std::weak_ptr<LaterChoice> waits_for_choice_;
  bool owes_choice_ = false;  // To the other ranks.
  // Memory of the host, I32: destination of the copy that ends a pass with its logits. It is not read.
  Buffer end_of_logits_;
};

}  // namespace dsv4::model
