// Queued decode steps whose tokens the backend chooses, recorded and replayed.
#include "model/runtime/step_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.h"
#include "comm/collectives.h"
#include "model/graph/dspark.h"
#include "model/graph/engram.h"
#include "model/graph/mtp.h"
#include "model/graph/pass_tail.h"
#include "model/graph/step.h"
#include "model/runtime/run_step.h"
#include "model/runtime/step_message.h"
#include "ops/sample.h"

namespace dsv4::model {

// Source of the tokens of a step.
struct LaterChoice {
  std::vector<TensorView> logits;  // Logits of the pass's rows, in pieces; none but on rank 0.
  ChosenTokens chosen;
  std::vector<DraftRow> slots;  // Rows for drafts that are to be made behind the choice.
};

namespace {

size_t NumTokens(const DecodeChunk& chunk) {
  return chunk.prompt.empty() ? 1 + chunk.draft.size() : chunk.prompt.size();
}

int64_t NumChosen(std::span<const PassChunk> pass) {
  int64_t count = 0;
  for (const PassChunk& chunk : pass) count += chunk.num_logits_rows;
  return count;
}

}  // namespace

bool StepQueue::works() const {
  return model_.options.placement.num_stages == 1 && model_.config.vocab_size <= sampling::kMaxChoices;
}

// `tokens`: of all chunks.
Status StepQueue::CheckDecode(std::span<const DecodeChunk> chunks, std::span<const int32_t> tokens) const {
  if (!works()) {
    return Unimplemented(fmt::format("queued step: want one stage and up to {} in the vocabulary",
                                     Counted(sampling::kMaxChoices, "token")));
  }
  if (static_cast<int64_t>(tokens.size()) > model_.options.max_chunk_tokens) {
    return InvalidArgument(fmt::format("queued step: got {}, want at most max_chunk_tokens {}",
                                       Counted(tokens.size(), "row"), model_.options.max_chunk_tokens));
  }
  std::vector<SequenceChunk> sequences;
  size_t begin = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DecodeChunk& chunk = chunks[i];
    if (chunk.draft.size() != chunk.draft_choices.size() || (chunk.follows >= 0 && !chunk.draft.empty())) {
      return InvalidArgument(
          fmt::format("queued step, chunk {}: got a draft of {} with {}{}, want as many of both, "
                      "and none behind a token that is not known",
                      i, Counted(chunk.draft.size(), "token"), Counted(chunk.draft_choices.size(), "choice"),
                      chunk.follows >= 0 ? " that follows a chunk" : ""));
    }
    if (chunk.follows >= num_chosen_) {
      return InvalidArgument(fmt::format("queued step, chunk {}: follows chunk {}, the step before had {}", i,
                                         chunk.follows, num_chosen_));
    }
    if (chunk.drafts_next && (!model_.can_draft() || chunk.draft.empty())) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: drafts_next wants a model that can draft, and a draft in this step", i));
    }
    if (!chunk.prompt.empty() && (chunk.follows >= 0 || !chunk.draft.empty())) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: got a prompt of {} with a draft or a chunk to follow, want neither", i,
          Counted(chunk.prompt.size(), "token")));
    }
    if (!chunk.chooses && !chunk.draft.empty()) {
      return InvalidArgument(
          fmt::format("queued step, chunk {}: got a draft where nothing is chosen, want none", i));
    }
    if (chunk.num_following != 0 && (chunk.prompt.empty() || chunk.chooses)) {
      return InvalidArgument(
          fmt::format("queued step, chunk {}: got {} that follow, want none but behind a piece of a prompt",
                      i, Counted(chunk.num_following, "token")));
    }
    const LogitsRows logits = !chunk.chooses        ? LogitsRows::kNone
                              : chunk.draft.empty() ? LogitsRows::kLast
                                                    : LogitsRows::kAll;
    sequences.push_back({.state = chunk.state,
                         .tokens = tokens.subspan(begin, NumTokens(chunk)),
                         .logits = logits,
                         .num_following = chunk.num_following});
    begin += NumTokens(chunk);
  }
  if (!chunks.empty() && std::ranges::none_of(chunks, &DecodeChunk::chooses))
    return InvalidArgument("queued step: got no chunk that chooses a token, want one");
  return CheckChunks(model_, sequences);
}

Result<ChosenTokens> StepQueue::ReserveChosen(int64_t count, const Buffer& allowed) {
  Memory& memory = model_.backend.context->memory();
  const int64_t most = 2 * model_.options.max_chunk_tokens;
  const int64_t num_ranks = model_.group.entered() ? model_.group.hosts().size() : 0;
  if (!chosen_) {
    const std::vector<int32_t> zeros(static_cast<size_t>((1 + num_ranks) * most));
    const size_t num_bytes = zeros.size() * sizeof(int32_t);
    DSV4_ASSIGN_OR_RETURN(chosen_, memory.Allocate(num_bytes));
    DSV4_TRY(memory.CopyFromHost(chosen_.data(), zeros.data(), num_bytes, model_.backend.context->stream()));
  }
  const auto view = [&](int64_t begin, Shape shape) {
    return TensorView::Contiguous(static_cast<int32_t*>(chosen_.data()) + begin, DType::kI32, shape,
                                  chosen_.device());
  };
  // Rank 0's numbers are the first of all ranks'.
  ChosenTokens chosen = {.allowed = {},
                         .previous = view(model_.group.entered() ? most : 0, {num_chosen_}),
                         .numbers = view(0, {2, count}),
                         .gathered = view(model_.group.entered() ? most : 0, {num_ranks, 2, count})};
  if (allowed) {
    chosen.allowed =
        TensorView::Contiguous(allowed.data(), DType::kU8, {model_.config.vocab_size}, allowed.device());
  }
  return chosen;
}

namespace {

LogitsRows RowsOf(const PassChunk& chunk) {
  if (chunk.num_logits_rows == 0) return LogitsRows::kNone;
  return chunk.num_logits_rows == std::ssize(chunk.tokens) ? LogitsRows::kAll : LogitsRows::kLast;
}

}  // namespace

Status StepQueue::AnnounceQueued(std::span<const PassChunk> chunks) {
  StepMessage message{.kind = StepKind::kQueued, .events = model_.group.TakeEvents(), .chunks = {}};
  for (const PassChunk& chunk : chunks) {
    message.chunks.push_back({.state = chunk.state->number(),
                              .length = chunk.state->length(),
                              .logits = static_cast<uint8_t>(RowsOf(chunk)),
                              .tokens = {chunk.tokens.begin(), chunk.tokens.end()},
                              .follows = chunk.follows,
                              .slots_later = chunk.slots_later,
                              .exact_from = chunk.exact_from});
  }
  return model_.group.Send(message);
}

Result<std::unique_ptr<PendingCopy>> StepQueue::QueuePass(std::span<const PassChunk> pass,
                                                          const ChosenTokens& chosen,
                                                          const ops::StepReplayer::End& end,
                                                          std::vector<TensorView>* logits) {
  const Graph graph = model_.MakeGraph();
  ops::OpContext& context = *model_.backend.context;
  const auto walk = [&](PassArrays& arrays) -> Result<std::unique_ptr<PendingCopy>> {
    DSV4_TRY(RunPass(graph, model_.arena, pass, &chosen, arrays, nullptr));
    return context.memory().StartCopyToHost(end.destination, end.source, end.num_bytes, context.stream());
  };
  ops::StepReplayer* const replayer = context.replayer();
  std::string key;
  if (replayer != nullptr) {
    PassPlan plan = PlanPass(graph, pass);
    key = StepKey(graph, model_.arena, pass, plan, chosen);
    if (!key.empty()) {
      DSV4_TRY(PlanEngram(graph, plan));
      DSV4_ASSIGN_OR_RETURN(std::unique_ptr<PendingCopy> copy,
                            replayer->Replay(key, end, [&](ops::StepArrays& arrays) {
                              static_cast<PassArrays&>(arrays).SetPass(&plan);  // Made below.
                              *logits = static_cast<PassArrays&>(arrays).logits;
                            }));
      if (copy != nullptr) return copy;
    }
  }
  const auto arrays = std::make_shared<PassArrays>();
  if (!key.empty()) replayer->BeginRecording(key, arrays);
  Result<std::unique_ptr<PendingCopy>> copy = walk(*arrays);
  *logits = arrays->logits;
  if (key.empty()) return copy;
  replayer->EndRecording(copy.has_value());
  arrays->EndPass();
  return copy;
}

Result<std::unique_ptr<QueuedStep>> StepQueue::Run(std::span<PassChunk> pass, const ChosenTokens& chosen,
                                                   const Status& ready) {
  Memory& memory = model_.backend.context->memory();
  Status status = ready;
  for (size_t i = 0; i < pass.size() && status.ok(); ++i) {
    status = pass[i]
                 .state->BeginAppend(static_cast<int64_t>(pass[i].tokens.size()))
                 .WithContext(fmt::format("queued step, chunk {}", i));
  }
  const int64_t num_chosen = NumChosen(pass);
  // If tokens are chosen later there is nothing to bring but the end of the pass.
  const size_t num_bytes = (chosen.later ? 1 : 2 * static_cast<size_t>(num_chosen)) * sizeof(int32_t);
  Result<Buffer> host = Buffer();
  if (status.ok() && (!chosen.later || !end_of_logits_)) host = memory.AllocateOnHost(num_bytes);
  if (chosen.later && host) {
    if (!end_of_logits_) end_of_logits_ = std::move(*host);
    host = end_of_logits_;
  }
  if (status.ok() && !host) status = host.error();
  status = model_.group.Agree(status);
  const bool begun = status.ok();
  std::unique_ptr<PendingCopy> copy;
  std::vector<TensorView> logits;
  if (begun) {
    num_chosen_ = 0;  // Tokens of a step that was begun may be partly written.
    auto queued = QueuePass(pass, chosen, {host->data(), chosen_.data(), num_bytes}, &logits);
    if (queued) {
      copy = std::move(*queued);
    } else {
      status = queued.error();
    }
  }
  if (!status.ok()) {
    for (const PassChunk& chunk : pass) {
      if (chunk.state != nullptr) chunk.state->RollBack(chunk.state->length());
    }
    return Error(begun ? model_.group.End(status) : status);
  }
  std::vector<DraftRow> slots;
  for (const PassChunk& chunk : pass) {
    if (chunk.slots_later)
      slots.push_back({.state = chunk.state, .first_slot = chunk.state->num_draft_slots()});
    chunk.state->CommitAppend();
  }
  if (!chosen.later) status = MakeSlotsBehind(slots);
  if (!status.ok()) {
    for (const PassChunk& chunk : pass) {
      if (!chunk.state->Rewind(std::ssize(chunk.tokens)).ok()) chunk.state->Reset();
    }
    return Error(model_.group.End(status));
  }
  const bool one_each =
      std::ranges::all_of(pass, [](const PassChunk& chunk) { return chunk.num_logits_rows == 1; });
  num_chosen_ = one_each ? num_chosen : 0;
  std::function<Status()> check;
  if (model_.group.shards_meet_on_device()) {
    check = [&group = model_.group] {
      const Status whole = group.CheckDevice();
      return whole.ok() ? whole : group.End(whole);
    };
  }
  // In the caller's order.
  std::vector<size_t> first(pass.size());
  std::vector<size_t> of_chunk(pass.size());
  size_t row = 0;
  for (const PassChunk& chunk : pass) {
    const auto count = static_cast<size_t>(chunk.num_logits_rows);
    first[static_cast<size_t>(chunk.chunk)] = std::exchange(row, row + count);
    of_chunk[static_cast<size_t>(chunk.chunk)] = count;
  }
  std::vector<size_t> rows;
  for (size_t i = 0; i < pass.size(); ++i) {
    for (size_t k = 0; k < of_chunk[i]; ++k) rows.push_back(first[i] + k);
  }
  chosen_rows_ = std::move(first);
  const auto numbers = std::make_shared<QueuedNumbers>();
  queued_numbers_ = numbers;
  auto step = std::make_unique<QueuedStep>(numbers, std::move(rows), std::move(check));
  if (!chosen.later) {
    numbers->host = std::move(*host);
    numbers->copy = std::move(copy);
  } else {
    step->front_copy_ = std::move(copy);
    step->later_ = std::make_shared<LaterChoice>(
        LaterChoice{.logits = std::move(logits), .chosen = chosen, .slots = std::move(slots)});
    waits_for_choice_ = step->later_;
    owes_choice_ = model_.group.entered();
  }
  return step;
}

namespace {

// The changes of a row's logits: biases and counts of a token are one.
void AddChanges(const sampling::TokenRule& rule, int32_t row, std::vector<ops::RowChange>& changes) {
  size_t bias = 0;
  size_t count = 0;
  while (bias < rule.biases.size() || count < rule.counts.size()) {
    const int32_t of_bias =
        bias < rule.biases.size() ? rule.biases[bias].token : std::numeric_limits<int32_t>::max();
    const int32_t of_count =
        count < rule.counts.size() ? rule.counts[count].token : std::numeric_limits<int32_t>::max();
    ops::RowChange change = {.row = row, .token = std::min(of_bias, of_count)};
    if (of_bias == change.token) change.bias = rule.biases[bias++].bias;
    if (of_count == change.token) change.count = rule.counts[count++].count;
    changes.push_back(change);
  }
}

}  // namespace

Status StepQueue::ChooseRows(const LaterChoice& later, std::span<const sampling::TokenRule* const> rules,
                             const TensorView& scores) {
  const auto num_words = static_cast<size_t>((model_.config.vocab_size + 63) / 64);
  int64_t begin = 0;
  for (const TensorView& logits : later.logits) {
    const int64_t end = begin + logits.shape[0];
    std::vector<sampling::ChoiceParams> choices;
    std::vector<ops::RowChange> changes;
    std::vector<ops::RowRule> of_rows;
    std::vector<uint64_t> masks;
    for (int64_t row = begin; row < end; ++row) {
      const sampling::TokenRule& rule = *rules[static_cast<size_t>(row)];
      choices.push_back(rule.choice);
      AddChanges(rule, static_cast<int32_t>(row - begin), changes);
      of_rows.push_back({.penalties = rule.penalties, .num_top = rule.num_logprobs});
      if (rule.permitted.empty()) continue;
      of_rows.back().mask = static_cast<int32_t>(masks.size() / num_words);
      const std::span<const uint64_t> words =
          rule.permitted.first(std::min(rule.permitted.size(), num_words));
      masks.insert(masks.end(), words.begin(), words.end());
      masks.resize((static_cast<size_t>(of_rows.back().mask) + 1) * num_words);
    }
    const auto part = [&](int64_t which) {
      const TensorView& numbers = later.chosen.numbers;
      return numbers.Rows(which, which + 1).Reshaped({numbers.shape[1]}).Rows(begin, end);
    };
    DSV4_RETURN_IF_ERROR(
        model_.backend.table
            .sample(*model_.backend.context, {.logits = logits,
                                              .allowed = later.chosen.allowed,
                                              .choices = choices,
                                              .changes = changes,
                                              .rules = of_rows,
                                              .masks = masks,
                                              .tokens = part(0),
                                              .faults = part(1),
                                              .scores = scores.is_null() ? scores : scores.Rows(begin, end)})
            .WithContext("choice of tokens"));
    begin = end;
  }
  return {};
}

Result<TensorView> StepQueue::ReserveScores(int64_t num_rows, int64_t width) {
  const size_t num_bytes = static_cast<size_t>(num_rows * width) * sizeof(int32_t);
  if (num_scores_bytes_ < num_bytes) {
    num_scores_bytes_ = 0;
    DSV4_ASSIGN_OR_RETURN(scores_, model_.backend.context->memory().Allocate(num_bytes));
  }
  num_scores_bytes_ = std::max(num_scores_bytes_, num_bytes);
  return TensorView::Contiguous(scores_.data(), DType::kI32, {num_rows, width}, scores_.device());
}

Status StepQueue::Choose(QueuedStep& step, std::span<const sampling::TokenRule> rules) {
  if (!step.waits_for_choice()) return FailedPrecondition("choice of tokens: the step has none to make");
  const std::shared_ptr<LaterChoice> later = std::exchange(step.later_, nullptr);
  owes_choice_ = false;
  ops::StepReplayer* const replayer = model_.backend.context->replayer();
  Status status = replayer == nullptr ? Status() : replayer->SetBetweenSteps(true);
  if (status.ok()) status = ChooseBetween(step, *later, rules);
  if (replayer != nullptr) {
    if (const Status ended = replayer->SetBetweenSteps(false); status.ok()) status = ended;
  }
  if (status.ok()) status = MakeSlotsBehind(std::move(later->slots));
  return status.ok() ? status : model_.group.End(status);
}

Status StepQueue::ChooseBetween(QueuedStep& step, const LaterChoice& later,
                                std::span<const sampling::TokenRule> rules) {
  const size_t num_rows = step.rows_.size();
  if (rules.size() != num_rows)
    return InvalidArgument(fmt::format("choice of tokens: got {} for {}", Counted(rules.size(), "rule"),
                                       Counted(num_rows, "row")));
  int most_top = -1;
  std::vector<const sampling::TokenRule*> of_rows(num_rows);
  for (size_t i = 0; i < num_rows; ++i) {
    of_rows[step.rows_[i]] = &rules[i];
    most_top = std::max(most_top, rules[i].num_logprobs);
  }
  Memory& memory = model_.backend.context->memory();
  const Stream stream = model_.backend.context->stream();
  const size_t num_bytes = 2 * num_rows * sizeof(int32_t);
  DSV4_ASSIGN_OR_RETURN_STATUS(step.numbers_->host, memory.AllocateOnHost(num_bytes));
  TensorView scores;
  if (most_top >= 0) {
    DSV4_ASSIGN_OR_RETURN_STATUS(scores,
                                 ReserveScores(static_cast<int64_t>(num_rows), ops::ScoresWidth(most_top)));
    DSV4_ASSIGN_OR_RETURN_STATUS(step.scores_,
                                 memory.AllocateOnHost(static_cast<size_t>(scores.num_bytes())));
    step.scores_width_ = static_cast<size_t>(scores.shape[1]);
    for (const sampling::TokenRule& rule : rules) step.num_logprobs_.push_back(rule.num_logprobs);
  }
  DSV4_RETURN_IF_ERROR(ChooseRows(later, of_rows, scores));
  DSV4_RETURN_IF_ERROR(ShareChosen(model_.MakeGraph().shards, later.chosen));
  DSV4_ASSIGN_OR_RETURN_STATUS(
      step.numbers_->copy,
      memory.StartCopyToHost(step.numbers_->host.data(), chosen_.data(), num_bytes, stream));
  if (scores.is_null()) return {};
  DSV4_ASSIGN_OR_RETURN_STATUS(step.scores_copy_,
                               memory.StartCopyToHost(step.scores_.data(), scores.data,
                                                      static_cast<size_t>(scores.num_bytes()), stream));
  return {};
}

// The copy of the step's tokens is on its way, and the device is free behind it. It makes the slots until the
// host has the tokens.
Status StepQueue::MakeSlotsBehind(std::vector<DraftRow> rows) {
  Status status;
  for (size_t i = 0; i < rows.size(); ++i) {
    status = rows[i].state->BeginDraft();
    if (status.ok()) continue;
    rows.resize(i);
  }
  if (rows.empty()) return status;
  if (status.ok()) {
    status = [&]() -> Status {
      DSV4_RETURN_IF_ERROR(model_.arena.Recycle());
      const Arena::Scope scope(model_.arena);
      PassArrays arrays;
      const auto run = model_.has_dspark() ? RunDsparkDraft : RunDraft;
      DSV4_RETURN_IF_ERROR(run(model_.MakeGraph(), model_.arena, arrays, rows, {}, {}, {}));
      if (!model_.asynchronous()) return {};
      // A copy of no bytes hands over what was queued, while its arrays are there.
      ops::OpContext& context = *model_.backend.context;
      const auto handed_over = context.memory().StartCopyToHost(nullptr, nullptr, 0, context.stream());
      return handed_over ? Status() : handed_over.error();
    }();
  }
  for (const DraftRow& row : rows) row.state->EndDraft(status.ok());
  return status.WithContext("rows for drafts");
}

Result<int32_t> StepQueue::AwaitChosen(int64_t row) const {
  const std::shared_ptr<QueuedNumbers> step = queued_numbers_.lock();
  if (step == nullptr || step->copy == nullptr)
    return Error(FailedPrecondition("the step that it follows is gone; n-gram tables are read by its token"));
  DSV4_TRY(step->copy->Wait());
  const auto* const numbers = static_cast<const int32_t*>(step->host.data());
  const int32_t token = numbers[row];
  const int32_t fault = numbers[num_chosen_ + row];
  if (fault == ops::kNoFault && token >= 0 && token < model_.config.vocab_size) return token;
  return Error(FailedPrecondition("the step that it follows chose no token"));
}

Result<std::unique_ptr<QueuedStep>> StepQueue::QueueOfRank0(std::span<PassChunk> pass, const Status& ready) {
  const Result<ChosenTokens> chosen = ReserveChosen(NumChosen(pass), {});
  return Run(pass, chosen ? *chosen : ChosenTokens(), chosen || !ready.ok() ? ready : chosen.error());
}

Status StepQueue::CheckChosen() {
  if (!waits_for_choice_.expired())
    return FailedPrecondition("step: the tokens of the queued one in front have yet to be chosen");
  if (!std::exchange(owes_choice_, false)) return {};
  return model_.group.End(Internal("queued step: it was dropped before its tokens were chosen"));
}

Result<std::unique_ptr<QueuedStep>> StepQueue::Queue(std::span<const DecodeChunk> chunks,
                                                     const Buffer& allowed, bool later) {
  DSV4_TRY(CheckChosen());
  std::vector<int32_t> tokens;
  for (const DecodeChunk& chunk : chunks) {
    if (chunk.prompt.empty()) tokens.push_back(chunk.follows < 0 ? chunk.token : 0);
    tokens.insert(tokens.end(), chunk.prompt.begin(), chunk.prompt.end());
    tokens.insert(tokens.end(), chunk.draft.begin(), chunk.draft.end());
  }
  DSV4_TRY(CheckDecode(chunks, tokens));
  std::vector<PassChunk> pass;
  std::span<int32_t> left = tokens;
  for (const DecodeChunk& chunk : chunks) {
    const std::span<int32_t> read = left.first(NumTokens(chunk));
    left = left.subspan(read.size());
    const int64_t follows =
        chunk.follows < 0 ? -1 : static_cast<int64_t>(chosen_rows_[static_cast<size_t>(chunk.follows)]);
    if (model_.engram != nullptr && follows >= 0) {
      const Result<int32_t> token = AwaitChosen(follows);
      if (!token) return Error(token.error().WithContext(fmt::format("queued step, chunk {}", pass.size())));
      read.front() = *token;
    }
    pass.push_back({.state = chunk.state,
                    .tokens = read,
                    .chunk = static_cast<int32_t>(pass.size()),
                    .num_logits_rows = chunk.chooses ? 1 + std::ssize(chunk.draft) : 0,
                    .follows = model_.engram != nullptr ? -1 : follows,
                    .choice = chunk.choice,
                    .draft_choices = chunk.draft_choices,
                    .biases = later ? std::span<const sampling::TokenBias>() : chunk.biases,
                    .prompt = !chunk.prompt.empty(),
                    .exact_from = chunk.prompt.empty()
                                      ? 0
                                      : ExactFrom(*chunk.state, std::ssize(read), chunk.chooses ? 1 : 0,
                                                  chunk.num_following),
                    .slots_later = chunk.drafts_next});
  }
  DSV4_ASSIGN_OR_RETURN(ChosenTokens chosen, ReserveChosen(NumChosen(pass), allowed));
  chosen.later = later;
  SortByPlace(pass);
  if (model_.group.entered()) DSV4_TRY(AnnounceQueued(pass));
  return Run(pass, chosen, {});
}

}  // namespace dsv4::model
