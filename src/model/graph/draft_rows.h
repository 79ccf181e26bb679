// Rows of a sequence that both drafters (mtp.h, dspark.h) keep, and their use. A slot is the window row of a
// position in the drafter's layers. A pass of the model leaves the inputs of slots in rings. Slots are made
// in blocks, or when a draft wants them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/graph/step.h"
#include "model/graph/step_context.h"

namespace dsv4::model {

// A sequence of a draft.
struct DraftRow {
  kv::SequenceState* state = nullptr;  // Between BeginDraft and EndDraft.
  int32_t token = 0;                   // At position state->length(), not yet read.
  // How the tokens behind it are chosen: one for every token that is drafted. None: the slots in front are
  // made, and that is all.
  std::span<const sampling::ChoiceParams> choices;
  float* logits = nullptr;  // Written here unless null: host [choices.size(), vocab_size].
  // Chances of a DSpark drafter: that the draft at each position is accepted if those before it were; host
  // [choices.size()].
  float* confidence = nullptr;
  int64_t first_slot = -1;  // Slots that are not made; negative: the state knows.

  int64_t FirstSlot() const { return first_slot < 0 ? state->num_draft_slots() : first_slot; }
};

// Exchanges that shards do with a draft's rows. Where they divide the sequences, a row's hidden state is
// where its sequence is. The head, which is divided by vocabulary, wants all of them. Rank 0 chooses the
// tokens and sends them back. Elsewhere every shard has all rows.
class DraftShards {
 public:
  DraftShards(const Graph& graph, std::span<const DraftRow> rows);

  // The rows whose sequences are here, ascending.
  std::span<const int64_t> here() const { return here_; }
  // How many of the first `num_rows` of all rows are here.
  int64_t NumHere(int64_t num_rows) const;
  // For a pass over the sequences of the first `num_rows` rows that are here, `size` tokens each.
  void Enter(StepContext& context, int64_t num_rows, int64_t size) const;
  // `mine`: [NumHere(num_rows) * size, width]. All shards': [num_rows * size, width], in order of the rows.
  Result<TensorView> Gather(const LayerStep& step, const TensorView& mine, int64_t num_rows,
                            int64_t size) const;
  // [n, head's part of the vocabulary] of this shard to [n, vocab_size].
  Result<TensorView> GatherLogits(const LayerStep& step, const TensorView& part) const;
  // Rank 0's `tokens` [num_rows] to all shards. Those of the rows that are here, [NumHere(num_rows)]: in
  // `ids`, where there are other shards.
  Result<TensorView> Share(const LayerStep& step, const TensorView& tokens, const TensorView& ids) const;
  // Whether this rank chooses.
  bool chooses() const { return chooses_; }

 private:
  const Graph& graph_;
  bool divided_;
  bool chooses_;
  std::vector<int64_t> here_;
  std::vector<int> place_;  // Shard of every row.
};

// How many rows want a draft at `depth`. Those with most choices come first.
int64_t NumRowsAt(std::span<const DraftRow> rows, int64_t depth);
// The first `num_rows` of one position: [num_rows] of [depths, rows].
TensorView AtDepth(const TensorView& all, int64_t depth, int64_t num_rows);
// Chooses the tokens of one step of a draft, logits [rows of the step, vocab_size] F32, and brings logits to
// the rows that want them. Tensors tokens and faults are [steps, rows], as of RunDraft (mtp.h).
Status SampleDrafts(const LayerStep& step, std::span<const DraftRow> rows, int64_t depth,
                    const TensorView& logits, const TensorView& allowed, const TensorView& tokens,
                    const TensorView& faults);

// The ring of the drafter's first layer.
RingRows DraftRing(const kv::SequenceState& state, kv::RingKind kind);

// The rows of a pass of which a drafter keeps something: of a long one the last of each sequence.
struct KeptRows {
  explicit KeptRows(const PassPlan& pass);

  PassPlan plan;                   // Plan of them alone,
  std::vector<int64_t> first_row;  // and of each sequence the first one's row in the pass.
};
// Kept rows whose streams are here, as ranges of own_rows.
std::vector<Range> KeptHere(const StepContext& context, const KeptRows& kept);
int64_t NumRows(std::span<const Range> ranges);
// Rows of all shards, where they divide the streams: `mine` [rows that are here, width] to
// [kept.plan.num_tokens, width].
Result<TensorView> GatherKept(const StepContext& context, const KeptRows& kept, const TensorView& mine);

// The first stage drafts. Brings rows there that `stage` has, which gives them as `mine`: a tensor of
// `shape`, which both know. Called by both, and by others for nothing.
Result<TensorView> BringToFirstStage(const StepContext& context, const Graph& graph, int stage,
                                     const TensorView& mine, const Shape& shape);

// The slots that a sequence needs at the pass's end in any case, and lacks. Slots that no query sees are left
// out.
Range DraftSlotsToMake(const PassSequence& sequence, int64_t window);

// Rows that lie together, on their way to one tensor.
class Stretches {
 public:
  Stretches(int64_t width, const CacheFormat& format) : width_(width), format_(format) {}

  void Add(void* data, int64_t num_rows);
  // Rows of positions [begin, end).
  void Add(const RingRows& ring, int64_t begin, int64_t end);
  int64_t num_rows() const { return total_; }

  Result<TensorView> Gather(const LayerStep& step, std::string_view name) const;

 private:
  int64_t width_;
  CacheFormat format_;
  std::vector<void*> starts_;
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
};

// Rows that slots are made of: the rows that a pass has left, `width` wide, and of MTP the token behind each.
struct Slots {
  Slots(int64_t width, DType activations) : streams(width, activations), tokens(1, DType::kI32) {}

  // Slots [begin, end) of the sequence.
  void Add(kv::SequenceState& state, int64_t begin, int64_t end);

  PassPlan plan;
  Stretches streams;
  Stretches tokens;
};

Result<TensorView> UploadToStep(const LayerStep& step, DType dtype, const Shape& shape, const void* values);
// Positions of all tokens of the plan, [num_tokens] I32.
Result<TensorView> UploadPositions(const LayerStep& step, const PassPlan& plan);

// Runs in the drafter's rings for the last rows of a pass. `which`: 0 streams, 1 tokens.
void KeptRuns(const PassPlan& plan, const PassArrays::Of& of, std::vector<RowRun>* out);

}  // namespace dsv4::model
