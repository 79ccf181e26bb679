// Plan of a pass: its sequences, and what of their positions steers the graph.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/sequence_state.h"
#include "ops/sample.h"
#include "sampling/choice.h"
#include "tensor/tensor.h"

namespace dsv4::model {

// One sequence's part of a pass: rows token_begin .. token_begin + num_tokens of every token-wise tensor.
struct PassSequence {
  kv::SequenceState* state = nullptr;  // Between BeginAppend and CommitAppend.
  int64_t token_begin = 0;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  bool slots_later = false;  // As PassChunk.
};

// Entries of the layers of one compress ratio. Two passes of equal sizes whose numbers here are equal take
// the same way through the graph, unless they are long (StepKey).
struct PassEntries {
  int64_t ratio = 0;
  int64_t num_new = 0;        // Entries that the pass completes,
  int64_t num_new_rows = 0;   // and those of them whose rows are here.
  bool beyond_top_k = false;  // Whether a query may see more of them than the indexer chooses.
  TensorView
      positions;  // [num_new] I32, in the arena: the rotary positions (of the first tokens) of the new ones.
};

// Made once. Tensors are uploaded once, and are in the arena.
struct PassPlan {
  int64_t num_tokens = 0;  // None, where other shards have all sequences of the pass.
  std::vector<PassSequence> sequences;
  std::vector<int32_t> tokens;                  // Ids of all tokens; of chosen ones any.
  std::vector<sampling::ChoiceParams> choices;  // Behind all tokens of the pass, on whichever shard.
  std::vector<ops::RowChange> biases;           // Row i is the logits of choice i.
  bool windows_fit = true;                      // WindowFits of all sequences.
  int64_t num_draft_slots = 0;                  // Slots of a draft block that the pass makes (mtp.h).
  std::vector<PassEntries> entries;             // By compress ratio.
  // Rows of n-gram tables that the tokens read, by table: [num_tokens, rows a token].
  std::vector<std::vector<int64_t>> engram_rows;
  // These rows' values, by table, as words of 32 bits; empty where each layer reads its own (engram.h).
  std::vector<std::vector<int32_t>> engram_words;
  TensorView token_ids;  // [num_tokens] I32
  TensorView positions;  // [num_tokens] I32

  const PassEntries& EntriesOf(int64_t ratio) const;
};

}  // namespace dsv4::model
