// Drafts: the draft block and DSpark, on one rank or several.
#include "model/runtime/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>

#include "base/text.h"
#include "model/graph/dspark.h"
#include "model/graph/mtp.h"
#include "model/graph/step.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {
namespace {

Status CheckDraft(const ModelParts& model, std::span<const DraftChunk> chunks) {
  if (!model.can_draft()) {
    const std::string why = model.why_no_draft();
    return FailedPrecondition(
        fmt::format("draft: {}", why.empty() ? "the model was loaded without a drafter" : why));
  }
  if (model.config.vocab_size > sampling::kMaxChoices) {
    return Unimplemented(fmt::format("draft: got {} in the vocabulary, want at most {}",
                                     Counted(model.config.vocab_size, "token"), sampling::kMaxChoices));
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DraftChunk& chunk = chunks[i];
    const std::string where = fmt::format("draft, chunk {}", i);
    if (chunk.state == nullptr || &chunk.state->layout() != model.layout.get())
      return InvalidArgument(where + ": want a sequence state of this model");
    for (size_t k = 0; k < i; ++k) {
      if (chunks[k].state == chunk.state)
        return InvalidArgument(fmt::format("{}: the sequence state is already in chunk {}", where, k));
    }
    if (chunk.token < 0 || chunk.token >= model.config.vocab_size) {
      return InvalidArgument(
          fmt::format("{}: got token {}, want 0 to {}", where, chunk.token, model.config.vocab_size - 1));
    }
    if (static_cast<int64_t>(chunk.choices.size()) > model.most_drafts()) {
      return InvalidArgument(fmt::format("{}: got {} to draft, want at most {}", where,
                                         Counted(chunk.choices.size(), "token"), model.most_drafts()));
    }
    if (chunk.confidence != nullptr && !model.has_dspark())
      return InvalidArgument(where + ": only a DSpark drafter says how confident it is");
  }
  return {};
}

Status AnnounceDraft(ModelParts& model, std::span<const DraftRow> rows) {
  StepMessage message{.kind = StepKind::kDrafts, .events = model.group.TakeEvents(), .chunks = {}};
  for (const DraftRow& row : rows) {
    message.chunks.push_back({.state = row.state->number(),
                              .length = row.state->length(),
                              .tokens = {row.token},
                              .num_drafts = std::ssize(row.choices)});
  }
  return model.group.Send(message);
}

Result<std::vector<int32_t>> RunDrafts(ModelParts& model, std::span<const DraftRow> rows,
                                       const Buffer& allowed) {
  ops::OpContext& context = *model.backend.context;
  DSV4_TRY(model.arena.Recycle());
  const Arena::Scope scope(model.arena);
  const auto most = static_cast<int64_t>(rows[0].choices.size());
  const auto num_rows = static_cast<int64_t>(rows.size());
  DSV4_ASSIGN_OR_RETURN(const TensorView numbers, model.arena.Allocate(DType::kI32, {2 * most, num_rows}));
  TensorView allowed_tokens;
  if (allowed) {
    allowed_tokens =
        TensorView::Contiguous(allowed.data(), DType::kU8, {model.config.vocab_size}, allowed.device());
  }
  PassArrays arrays;
  const auto run = model.has_dspark() ? RunDsparkDraft : RunDraft;
  DSV4_TRY(run(model.MakeGraph(), model.arena, arrays, rows, allowed_tokens, numbers.Rows(0, most),
               numbers.Rows(most, 2 * most)));
  std::vector<int32_t> tokens(static_cast<size_t>(most * num_rows));
  if (model.place().rank != 0) {
    DSV4_TRY(model.group.EndOnDevice(*model.backend.context, model.rope_buffer));
    return tokens;
  }
  if (!tokens.empty()) {
    DSV4_TRY(context.memory().CopyToHost(tokens.data(), numbers.data, tokens.size() * sizeof(int32_t),
                                         context.stream()));
  }
  DSV4_TRY(model.group.CheckDevice());
  return tokens;
}

}  // namespace

Result<std::vector<int32_t>> DraftTogether(ModelParts& model, std::span<const DraftRow> rows,
                                           const Buffer& allowed, const Status& ready) {
  Status status = ready;
  size_t num_begun = 0;
  // The first stage drafts; the others have nothing to do, and hear that.
  if (!model.place().first_stage()) rows = {};
  for (; num_begun < rows.size() && status.ok(); ++num_begun)
    status = rows[num_begun].state->BeginDraft().WithContext(fmt::format("draft, row {}", num_begun));
  status = model.group.Agree(status);
  std::vector<int32_t> tokens;
  if (status.ok() && !rows.empty()) {
    Result<std::vector<int32_t>> drafted = Error(ResourceExhausted("draft: memory ran out"));
    try {
      drafted = RunDrafts(model, rows, allowed);
    } catch (const std::bad_alloc&) {
      if (!model.group.entered()) throw;
    }
    if (drafted) {
      tokens = std::move(*drafted);
    } else {
      status = model.group.End(drafted.error());
    }
  }
  for (size_t i = 0; i < num_begun; ++i) rows[i].state->EndDraft(status.ok());
  if (!status.ok()) return Error(std::move(status));
  return tokens;
}

Result<std::vector<std::vector<int32_t>>> DraftOnward(ModelParts& model, std::span<const DraftChunk> chunks,
                                                      const Buffer& allowed) {
  DSV4_TRY(CheckDraft(model, chunks));
  std::vector<std::vector<int32_t>> drafts(chunks.size());
  if (chunks.empty()) return drafts;
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return chunks[i].choices.size(); });
  std::vector<DraftRow> rows;
  for (const size_t i : order) {
    const DraftChunk& chunk = chunks[i];
    rows.push_back({.state = chunk.state,
                    .token = chunk.token,
                    .choices = chunk.choices,
                    .logits = chunk.logits,
                    .confidence = chunk.confidence});
  }
  if (model.group.entered()) DSV4_TRY(AnnounceDraft(model, rows));
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, DraftTogether(model, rows, allowed, {}));
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t place = 0; place < rows[i].choices.size(); ++place)
      drafts[order[i]].push_back(tokens[place * order.size() + i]);
  }
  return drafts;
}

}  // namespace dsv4::model
