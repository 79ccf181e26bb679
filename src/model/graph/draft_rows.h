// What both drafters (mtp.h, dspark.h) do with the rows that they keep of a sequence. A pass of the model leaves in rings what a slot is made of,
// where a slot is the window row of a position in the drafter's layers. Slots are made in blocks, or when a draft wants them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/graph/step_context.h"

namespace dsv4::model {

// A sequence of a draft.
struct DraftRow {
  kv::SequenceState* state = nullptr;  // Between BeginDraft and EndDraft.
  int32_t token = 0;                   // At position state->length(), not yet read.
  // How the tokens behind it are chosen: one for every token that is drafted. None: the slots in front are made, and that is all.
  std::span<const sampling::ChoiceParams> choices;
  float* logits = nullptr;  // Written here unless null: host [choices.size(), vocab_size].
  // Of a DSpark drafter: that the draft at each place is accepted if those before it were; host [choices.size()].
  float* confidence = nullptr;
};

// How many rows want a draft at `place`. Those with most choices come first.
int64_t NumRowsAt(std::span<const DraftRow> rows, int64_t place);
// The first `num_rows` of one place: [num_rows] of [places, rows].
TensorView AtPlace(const TensorView& all, int64_t place, int64_t num_rows);
// Chooses the tokens of one place, logits [rows at the place, vocab_size] F32, and brings logits to the rows that want them. tokens, faults:
// [places, rows], as of RunDraft (mtp.h).
Status SampleDrafts(const LayerStep& step, std::span<const DraftRow> rows, int64_t place,
                    const TensorView& logits, const TensorView& allowed, const TensorView& tokens,
                    const TensorView& faults);

// The ring of the drafter's first layer.
RingRows DraftRing(const kv::SequenceState& state, kv::RingKind kind);

// The slots that a sequence is to have at the pass's end in any case, and lacks: those behind which no query looks are left out.
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

// What slots are made of: the rows that a pass has left, `width` wide, and of MTP the token behind each.
struct Slots {
  Slots(int64_t width, DType activations) : streams(width, activations), tokens(1, DType::kI32) {}

  // Slots [begin, end) of the sequence.
  void Add(kv::SequenceState& state, int64_t begin, int64_t end);

  PassPlan plan;
  Stretches streams;
  Stretches tokens;
};

Result<TensorView> UploadToStep(const LayerStep& step, DType dtype, const Shape& shape, const void* values);
// Of all tokens of the plan, [num_tokens] I32.
Result<TensorView> UploadPositions(const LayerStep& step, const PassPlan& plan);

// Where the last rows of a pass go in the rings of the drafter. `which`: 0 streams, 1 tokens.
void KeptRuns(const PassPlan& plan, const PassArrays::Of& of, std::vector<RowRun>* out);

}  // namespace dsv4::model
