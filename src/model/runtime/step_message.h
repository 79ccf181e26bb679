// Message that rank 0 sends the others before a step. It has the changes to the states of sequences since the
// last one, and each sequence's next tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/state_journal.h"

namespace dsv4::model {

struct ChunkMessage {
  uint64_t state = 0;  // Its number in the journal.
  int64_t length = 0;  // Before the step: where the others' copies must be too.
  uint8_t logits = 0;  // LogitsRows.
  std::vector<int32_t> tokens;
  int64_t follows = -1;       // Reference of a queued step: DecodeChunk,
  bool slots_later = false;   // and PassChunk.
  int64_t num_drafts = 0;     // Count of drafts: tokens that are drafted behind the one of `tokens`.
  int64_t num_following = 0;  // Field of SequenceChunk, in a step that is waited for.
  int64_t exact_from = 0;     // Field of PassChunk, in a queued one.
};

enum class StepKind : uint8_t {
  kStep,    // Model::Step
  kQueued,  // A step that chooses its tokens and is not waited for (Model::QueueDecode).
  kDrafts,  // Model::Draft: those with most tokens first.
  kLeave,   // There will be no more steps.
};

struct StepMessage {
  StepKind kind = StepKind::kStep;
  std::vector<kv::StateEvent> events;
  std::vector<ChunkMessage> chunks;
};

std::vector<std::byte> Encode(const StepMessage& message);
// DataLoss for bytes that Encode did not write.
Result<StepMessage> DecodeStepMessage(std::span<const std::byte> bytes);

}  // namespace dsv4::model
