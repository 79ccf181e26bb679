// The DSpark drafter: blocks of tokens, a block at a time, from what some of the model's layers leave
// (docs/speculation.md).
//
// Taps are the mean over the residual streams behind chosen layers. Projected and normed they are one row a
// token, main_x. It enters the stages as rows of their windows, the slots, and as nothing else. A pass of the
// model leaves its taps in a ring; slots are made of them in blocks, or when a draft wants them
// (draft_rows.h).
//
// A draft is one pass of the stages over a block: the token that is known and has not been read, and noise
// behind it. All rows of the block see one another and the window in front of it. Their window rows lie
// behind the sequence's end, where the next pass writes its own. The head gives each row's logits; the Markov
// head adds to them, row by row, what the token in front says.
#pragma once

#include <cstdint>
#include <span>

#include "model/graph/mtp.h"
#include "model/graph/step.h"

namespace dsv4::model {

// Taps of the rows of a pass of which the drafter keeps something: of a long prompt the last ones of each
// sequence.
class DsparkTaps {
 public:
  // `context` of the pass, and all borrowed.
  static Result<DsparkTaps> Begin(const StepContext& context, const Graph& graph);

  // Whether the layer is tapped and has rows of which something is kept.
  bool Taps(int64_t layer) const;
  // Behind layer `layer` of the model, if it is tapped.
  Status Tap(int64_t layer, const TrunkState& state);
  // Called behind the stage's last layer, between BeginAppend and CommitAppend. Keeps the rows, and makes the
  // slots that a sequence of its new length has in any case. Of several stages the first does it, with the
  // rows that the others send.
  Status Keep();

 private:
  DsparkTaps(const StepContext& context, const Graph& graph)
      : context_(&context), graph_(&graph), kept_(context.plan) {}

  // Which taps are of these layers.
  std::vector<int64_t> ColumnsOf(const Range& layers) const;
  // Adds the rows that make column `column` of `to`, which is as taps_. For the rows of `from`, kept row r
  // comes from row first + r * step of a tensor.
  void AddRuns(int64_t first, int64_t step, std::span<const Range> from, int64_t column, const TensorView& to,
               std::vector<RowRun>* runs) const;
  // The means over the streams of so many rows.
  Status Mean(const LayerStep& step, const TensorView& streams, const TensorView& rows) const;
  // On several stages: taps of the others' layers.
  Status BringToFirstStage();

  const StepContext* context_;
  const Graph* graph_;
  KeptRows kept_;
  std::vector<Range> here_;       // Among own_rows, those that are kept,
  int64_t num_here_ = 0;          // so many.
  std::vector<int64_t> columns_;  // Which taps this stage keeps: all in the first, elsewhere its own.
  TensorView taps_;               // [num_here * columns, D]
  // With few rows, on one stage: the streams that taps_ is the mean of, in one go; null elsewhere. [num_here
  // * columns, H, D]
  TensorView streams_;
};

// As RunDraft (mtp.h), with blocks: at most the block's size of choices for each row.
Status RunDsparkDraft(const Graph& graph, Arena& arena, PassArrays& arrays, std::span<const DraftRow> rows,
                      const TensorView& allowed, const TensorView& tokens, const TensorView& faults);

}  // namespace dsv4::model
