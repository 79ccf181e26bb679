// Members of Model that draft: the draft block and DSpark, on one rank or several.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <numeric>

#include "comm/collectives.h"
#include "model/graph/dspark.h"
#include "model/graph/mtp.h"
#include "model/runtime/model.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {

std::string Model::why_no_draft() const {
  if (can_draft()) return {};
  const std::string& mtp = weights_.no_mtp;
  const std::string& dspark = weights_.no_dspark;
  return mtp.empty() || dspark.empty() ? mtp + dspark : fmt::format("{}; {}", dspark, mtp);
}

Status Model::CheckDraft(std::span<const DraftChunk> chunks) const {
  if (!can_draft()) {
    const std::string why = why_no_draft();
    return FailedPrecondition(
        fmt::format("draft: {}", why.empty() ? "the model was loaded without a drafter" : why));
  }
  if (config_.vocab_size > sampling::kMaxChoices) {
    return Unimplemented(fmt::format("draft: got {} tokens in the vocabulary, want at most {}",
                                     config_.vocab_size, sampling::kMaxChoices));
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DraftChunk& chunk = chunks[i];
    const std::string where = fmt::format("draft, chunk {}", i);
    if (chunk.state == nullptr || &chunk.state->layout() != layout_.get())
      return InvalidArgument(where + ": want a sequence state of this model");
    for (size_t k = 0; k < i; ++k) {
      if (chunks[k].state == chunk.state)
        return InvalidArgument(fmt::format("{}: the sequence state is already in chunk {}", where, k));
    }
    if (chunk.token < 0 || chunk.token >= config_.vocab_size) {
      return InvalidArgument(
          fmt::format("{}: got token {}, want 0 to {}", where, chunk.token, config_.vocab_size - 1));
    }
    if (static_cast<int64_t>(chunk.choices.size()) > most_drafts()) {
      return InvalidArgument(fmt::format("{}: got {} tokens to draft, want at most {}", where,
                                         chunk.choices.size(), most_drafts()));
    }
    if (chunk.confidence != nullptr && !has_dspark())
      return InvalidArgument(where + ": only a DSpark drafter says how confident it is");
  }
  return {};
}

Result<std::vector<std::vector<int32_t>>> Model::Draft(std::span<const DraftChunk> chunks,
                                                       const Buffer& allowed) {
  DSV4_TRY(CheckChosen());
  DSV4_TRY(CheckDraft(chunks));
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
  if (in_group_) DSV4_TRY(AnnounceDraft(rows));
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, DraftTogether(rows, allowed, {}));
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t place = 0; place < rows[i].choices.size(); ++place)
      drafts[order[i]].push_back(tokens[place * order.size() + i]);
  }
  return drafts;
}

Status Model::AnnounceDraft(std::span<const DraftRow> rows) {
  StepMessage message{.kind = StepKind::kDrafts, .events = journal_->Take(), .chunks = {}};
  for (const DraftRow& row : rows) {
    message.chunks.push_back({.state = row.state->number(),
                              .length = row.state->length(),
                              .tokens = {row.token},
                              .num_drafts = std::ssize(row.choices)});
  }
  return SendToRanks(message);
}

Status Model::FollowDraft(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<std::vector<sampling::ChoiceParams>> choices;  // As many as rank 0 makes.
  std::vector<DraftRow> rows;
  for (const ChunkMessage& message : messages) {
    if (message.tokens.size() != 1 || message.num_drafts < 0 || message.num_drafts > most_drafts())
      return EndGroup(DataLoss("draft of rank 0: what it says is no draft"));
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    choices.emplace_back(static_cast<size_t>(message.num_drafts));
    rows.push_back({.state = copy ? *copy : nullptr, .token = message.tokens[0], .choices = choices.back()});
  }
  const auto drafted = DraftTogether(rows, {}, ready);
  // Failures of rank 0 alone are its report; the group goes on.
  return drafted ? Status() : options_.group->Check();
}

Result<std::vector<int32_t>> Model::DraftTogether(std::span<const DraftRow> rows, const Buffer& allowed,
                                                  const Status& ready) {
  Status status = ready;
  size_t num_begun = 0;
  // The first stage drafts; the others have nothing to do, and hear that.
  if (!place().first_stage()) rows = {};
  for (; num_begun < rows.size() && status.ok(); ++num_begun)
    status = rows[num_begun].state->BeginDraft().WithContext(fmt::format("draft, row {}", num_begun));
  if (in_group_) status = comm::Agree(*options_.group, status);
  std::vector<int32_t> tokens;
  if (status.ok() && !rows.empty()) {
    Result<std::vector<int32_t>> drafted = Error(ResourceExhausted("draft: memory ran out"));
    try {
      drafted = RunDrafts(rows, allowed);
    } catch (const std::bad_alloc&) {
      if (!in_group_) throw;
    }
    if (drafted) {
      tokens = std::move(*drafted);
    } else {
      status = in_group_ ? EndGroup(drafted.error()) : drafted.error();
    }
  }
  for (size_t i = 0; i < num_begun; ++i) rows[i].state->EndDraft(status.ok());
  if (!status.ok()) return Error(std::move(status));
  return tokens;
}

Result<std::vector<int32_t>> Model::RunDrafts(std::span<const DraftRow> rows, const Buffer& allowed) {
  ops::OpContext& context = *backend_.context;
  DSV4_TRY(arena_.Recycle());
  const Arena::Scope scope(arena_);
  const auto most = static_cast<int64_t>(rows[0].choices.size());
  const auto num_rows = static_cast<int64_t>(rows.size());
  DSV4_ASSIGN_OR_RETURN(const TensorView numbers, arena_.Allocate(DType::kI32, {2 * most, num_rows}));
  TensorView allowed_tokens;
  if (allowed) {
    allowed_tokens =
        TensorView::Contiguous(allowed.data(), DType::kU8, {config_.vocab_size}, allowed.device());
  }
  PassArrays arrays;
  const auto run = has_dspark() ? RunDsparkDraft : RunDraft;
  DSV4_TRY(run(MakeGraph(), arena_, arrays, rows, allowed_tokens, numbers.Rows(0, most),
               numbers.Rows(most, 2 * most)));
  std::vector<int32_t> tokens(static_cast<size_t>(most * num_rows));
  if (place().rank != 0) {
    DSV4_TRY(EndOnDevice());
    return tokens;
  }
  if (!tokens.empty()) {
    DSV4_TRY(context.memory().CopyToHost(tokens.data(), numbers.data, tokens.size() * sizeof(int32_t),
                                         context.stream()));
  }
  DSV4_TRY(CheckDeviceGroups());
  return tokens;
}

}  // namespace dsv4::model
