// One pass of tokens through all layers: a ragged batch of prefill chunks and decode tokens. Token-wise ops run over all
// rows at once; attention, compressors and indexer work per sequence.
//
// Every op computes a row from that row and its own sequence alone. A result does not depend on how tokens
// are cut into chunks or on the neighbours in the batch. On the reference backend it is the same bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "io/chosen_reads.h"
#include "model/checkpoint/weights.h"
#include "model/graph/layer_rows.h"
#include "model/graph/step_context.h"
#include "sampling/choice.h"

namespace dsv4::model {

// A model ready to run; borrowed.
struct Graph {
  uint64_t number = 0;  // Number of the model, among all that this process has had.
  const ModelConfig& config;
  const ModelWeights& weights;        // As the backend wants them.
  std::span<const LayerPlan> layers;  // Plans of weights.layers, one by one.
  const ops::Backend& backend;
  RopeTables rope;
  Numerics numerics = Numerics::kRelease;
  bool clamp_shared_expert = true;
  // For tensors of the backend; null where the model is on one rank.
  comm::Communicator* group = nullptr;
  Shards shards;                     // Shards in the stage.
  EngramLookup* engram = nullptr;    // For a model that has n-gram tables.
  io::ChosenReads* reads = nullptr;  // ModelOptions::experts_from_disk, where experts are not divided.
  LayerRows* layer_rows = nullptr;   // Counts, unless it is null.
};

struct PassChunk {
  kv::SequenceState* state = nullptr;  // Between BeginAppend(tokens.size()) and CommitAppend.
  std::span<const int32_t> tokens;     // Ids of chosen ones, which `follows`, any number.
  int32_t chunk = 0;                   // Its number in the caller's batch, for the observer.
  int64_t num_logits_rows = 0;         // How many of the last tokens want logits,
  float* logits = nullptr;  // written here: host [num_logits_rows, vocab_size]. Null except on rank 0.
  // In a pass with ChosenTokens the logits stay on the device, and choose the token behind each. Row i of
  // ChosenTokens belongs to the pass's i-th row of logits.
  int64_t follows = -1;                // >= 0: the one token is what this row of the pass before has chosen.
  sampling::ChoiceParams choice = {};  // For what comes behind the first row of logits,
  std::span<const sampling::ChoiceParams> draft_choices = {};  // and behind the others.
  std::span<const sampling::TokenBias> biases = {};            // Added to all its rows of logits; by token.
  bool prompt = false;     // Its tokens come once, so that no pass is like this one.
  int64_t exact_from = 0;  // The first position that counts behind the last layer (pass_tail.h).
  // The pass makes no rows of slots of a drafter (draft_rows.h): they are made behind it.
  bool slots_later = false;
};

// Tokens that a pass chooses (op `sample`), in the backend's memory, and finds what the pass before has
// chosen.
struct ChosenTokens {
  TensorView allowed;   // [vocab_size] U8, or null.
  TensorView previous;  // [rows of the pass before] I32, or null.
  TensorView
      numbers;  // [2, rows of logits] I32, tokens and faults; may be where `previous` is, of which all has been read by then.
  // If the stage has several ranks, of which rank 0 chooses: all ranks' numbers, [ranks, 2, rows of logits]
  // I32, of which rank 0's count.
  TensorView gathered;
  // The pass ends with its logits, in PassArrays::logits; its caller has the tokens chosen, and shares the choice (ShareChosen).
  bool later = false;
};

// Brings what rank 0 has chosen to all.
Status ShareChosen(const Shards& shards, const ChosenTokens& chosen);

// Context of the sub-layers of a pass, or of a drafting one. Without an observer, and with the shards of the
// graph. Its arguments outlive it.
StepContext ContextOf(const Graph& graph, Arena& arena, const PassPlan& plan, PassArrays& arrays);

// The order in which RunPass wants chunks. States that are null, which do not run here, count as of the first
// shard.
void SortByPlace(std::vector<PassChunk>& chunks);

// Plan of the pass over these chunks, without tensors.
PassPlan PlanPass(const Graph& graph, std::span<const PassChunk> chunks);

// The rows of n-gram tables that the pass reads, for arrays of a step that may be replayed; nothing of a model that has none.
Status PlanEngram(const Graph& graph, PassPlan& plan);

// All that steers RunPass with ChosenTokens: passes of one key differ in what their arrays hold, and in nothing else. Beside
// the plan it is what is uploaded once for all steps. Empty: there is more to it, and the pass has to be walked.
std::string StepKey(const Graph& graph, const Arena& arena, std::span<const PassChunk> chunks,
                    const PassPlan& plan, const ChosenTokens& chosen);

// With several stages, the streams come from the stage before and go on to the next. Rows whose logits are
// wanted go back to the first, which has the head. So do rows for drafts, which are made there. Where shards
// divide the sequences, all get all chunks in one order: by shard, shards in order. Each shard runs the
// chunks whose rows it has. Errors name the layer and the op; rows of the appends may then be partly written.
// `arena` is empty before and after. `chosen` may be null: then nothing is chosen. `arrays` are empty before,
// and must live until the backend has been given all of the pass.
Status RunPass(const Graph& graph, Arena& arena, std::span<const PassChunk> chunks,
               const ChosenTokens* chosen, PassArrays& arrays, Observer* observer);

}  // namespace dsv4::model
