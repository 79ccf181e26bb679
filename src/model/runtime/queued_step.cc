// Queued decode steps whose tokens the backend chooses, recorded and replayed.
#include "model/runtime/queued_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/collectives.h"
#include "model/graph/dspark.h"
#include "model/graph/mtp.h"
#include "model/graph/pass_tail.h"
#include "model/graph/step.h"
#include "model/runtime/model.h"
#include "model/runtime/step_message.h"
#include "ops/sample.h"

namespace dsv4::model {

Result<std::vector<ChosenToken>> QueuedStep::Wait() {
  const Status copied = numbers_->copy->Wait();
  if (check_) DSV4_TRY(check_());  // Names what made it fail.
  DSV4_TRY(copied);
  const auto* const numbers = static_cast<const int32_t*>(numbers_->host.data());
  std::vector<ChosenToken> tokens;
  for (const size_t row : rows_) tokens.push_back({numbers[row], numbers[rows_.size() + row]});
  return tokens;
}

Result<Buffer> Model::UploadAllowedTokens(std::span<const uint8_t> allowed) const {
  if (static_cast<int64_t>(allowed.size()) != config_.vocab_size) {
    return Error(
        InvalidArgument(fmt::format("allowed tokens: got {}, want {}", allowed.size(), config_.vocab_size)));
  }
  ops::OpContext& context = *backend_.context;
  DSV4_ASSIGN_OR_RETURN(Buffer buffer, context.memory().Allocate(allowed.size()));
  DSV4_TRY(context.memory().CopyFromHost(buffer.data(), allowed.data(), allowed.size(), context.stream()));
  return buffer;
}

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

// `tokens`: of all chunks.
Status Model::CheckDecode(std::span<const DecodeChunk> chunks, std::span<const int32_t> tokens) const {
  if (!can_queue()) {
    return Unimplemented(fmt::format("queued step: want one stage and up to {} tokens in the vocabulary",
                                     sampling::kMaxChoices));
  }
  if (static_cast<int64_t>(tokens.size()) > options_.max_chunk_tokens) {
    return InvalidArgument(fmt::format("queued step: got {} rows, want at most max_chunk_tokens {}",
                                       tokens.size(), options_.max_chunk_tokens));
  }
  std::vector<SequenceChunk> sequences;
  size_t begin = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DecodeChunk& chunk = chunks[i];
    if (chunk.draft.size() != chunk.draft_choices.size() || (chunk.follows >= 0 && !chunk.draft.empty())) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: got a draft of {} tokens with {} choices{}, want as many of both, "
          "and none behind a token that is not known",
          i, chunk.draft.size(), chunk.draft_choices.size(),
          chunk.follows >= 0 ? " that follows a chunk" : ""));
    }
    if (chunk.follows >= num_chosen_) {
      return InvalidArgument(fmt::format("queued step, chunk {}: follows chunk {}, the step before had {}", i,
                                         chunk.follows, num_chosen_));
    }
    if (chunk.drafts_next && (!can_draft() || chunk.draft.empty())) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: drafts_next wants a model that can draft, and a draft in this step", i));
    }
    if (!chunk.prompt.empty() && (chunk.follows >= 0 || !chunk.draft.empty())) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: got a prompt of {} tokens with a draft or a chunk to follow, want neither",
          i, chunk.prompt.size()));
    }
    if (!chunk.chooses && !chunk.draft.empty()) {
      return InvalidArgument(
          fmt::format("queued step, chunk {}: got a draft where nothing is chosen, want none", i));
    }
    if (chunk.num_following != 0 && (chunk.prompt.empty() || chunk.chooses)) {
      return InvalidArgument(fmt::format(
          "queued step, chunk {}: got {} tokens that follow, want none but behind a piece of a prompt", i,
          chunk.num_following));
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
  return CheckChunks(sequences);
}

Result<ChosenTokens> Model::ReserveChosen(int64_t count, const Buffer& allowed) {
  Memory& memory = backend_.context->memory();
  const int64_t most = 2 * options_.max_chunk_tokens;
  const int64_t num_ranks = in_group_ ? options_.group->size() : 0;
  if (!chosen_) {
    const std::vector<int32_t> zeros(static_cast<size_t>((1 + num_ranks) * most));
    const size_t num_bytes = zeros.size() * sizeof(int32_t);
    DSV4_ASSIGN_OR_RETURN(chosen_, memory.Allocate(num_bytes));
    DSV4_TRY(memory.CopyFromHost(chosen_.data(), zeros.data(), num_bytes, backend_.context->stream()));
  }
  const auto view = [&](int64_t begin, Shape shape) {
    return TensorView::Contiguous(static_cast<int32_t*>(chosen_.data()) + begin, DType::kI32, shape,
                                  chosen_.device());
  };
  // Rank 0's numbers are the first of all ranks'.
  ChosenTokens chosen = {.allowed = {},
                         .previous = view(in_group_ ? most : 0, {num_chosen_}),
                         .numbers = view(0, {2, count}),
                         .gathered = view(in_group_ ? most : 0, {num_ranks, 2, count})};
  if (allowed) {
    chosen.allowed =
        TensorView::Contiguous(allowed.data(), DType::kU8, {config_.vocab_size}, allowed.device());
  }
  return chosen;
}

namespace {

LogitsRows RowsOf(const PassChunk& chunk) {
  if (chunk.num_logits_rows == 0) return LogitsRows::kNone;
  return chunk.num_logits_rows == std::ssize(chunk.tokens) ? LogitsRows::kAll : LogitsRows::kLast;
}

}  // namespace

Status Model::AnnounceQueued(std::span<const PassChunk> chunks) {
  StepMessage message{.kind = StepKind::kQueued, .events = journal_->Take(), .chunks = {}};
  for (const PassChunk& chunk : chunks) {
    message.chunks.push_back({.state = chunk.state->number(),
                              .length = chunk.state->length(),
                              .logits = static_cast<uint8_t>(RowsOf(chunk)),
                              .tokens = {chunk.tokens.begin(), chunk.tokens.end()},
                              .follows = chunk.follows,
                              .slots_later = chunk.slots_later});
  }
  return SendToRanks(message);
}

ops::ReplayCounters Model::replay_counters() const {
  const ops::StepReplayer* const replayer = backend_.context->replayer();
  return replayer == nullptr ? ops::ReplayCounters() : replayer->replay_counters();
}

Result<std::unique_ptr<PendingCopy>> Model::QueuePass(std::span<const PassChunk> pass,
                                                      const ChosenTokens& chosen,
                                                      const ops::StepReplayer::End& end) {
  const Graph graph = MakeGraph();
  ops::OpContext& context = *backend_.context;
  const auto walk = [&](PassArrays& arrays) -> Result<std::unique_ptr<PendingCopy>> {
    DSV4_TRY(RunPass(graph, arena_, pass, &chosen, arrays, nullptr));
    return context.memory().StartCopyToHost(end.destination, end.source, end.num_bytes, context.stream());
  };
  ops::StepReplayer* const replayer = context.replayer();
  std::string key;
  if (replayer != nullptr) {
    PassPlan plan = PlanPass(graph, pass);
    key = StepKey(graph, arena_, pass, plan, chosen);
    if (!key.empty()) {
      DSV4_TRY(PlanEngram(graph, plan));
      DSV4_ASSIGN_OR_RETURN(std::unique_ptr<PendingCopy> copy,
                            replayer->Replay(key, end, [&](ops::StepArrays& arrays) {
                              static_cast<PassArrays&>(arrays).SetPass(&plan);  // Made below.
                            }));
      if (copy != nullptr) return copy;
    }
  }
  const auto arrays = std::make_shared<PassArrays>();
  if (key.empty()) return walk(*arrays);
  replayer->BeginRecording(key, arrays);
  Result<std::unique_ptr<PendingCopy>> copy = walk(*arrays);
  replayer->EndRecording(copy.has_value());
  arrays->EndPass();
  return copy;
}

Result<std::unique_ptr<QueuedStep>> Model::RunQueued(std::span<PassChunk> pass, const ChosenTokens& chosen,
                                                     const Status& ready) {
  Memory& memory = backend_.context->memory();
  Status status = ready;
  for (size_t i = 0; i < pass.size() && status.ok(); ++i) {
    status = pass[i]
                 .state->BeginAppend(static_cast<int64_t>(pass[i].tokens.size()))
                 .WithContext(fmt::format("queued step, chunk {}", i));
  }
  const int64_t num_chosen = NumChosen(pass);
  const size_t num_bytes = 2 * static_cast<size_t>(num_chosen) * sizeof(int32_t);
  Result<Buffer> host = Buffer();
  if (status.ok()) host = memory.AllocateOnHost(num_bytes);
  if (status.ok() && !host) status = host.error();
  if (in_group_) status = comm::Agree(*options_.group, status);
  const bool begun = status.ok();
  std::unique_ptr<PendingCopy> copy;
  if (begun) {
    num_chosen_ = 0;  // Tokens of a step that was begun may be partly written.
    auto queued = QueuePass(pass, chosen, {host->data(), chosen_.data(), num_bytes});
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
    return Error(begun && in_group_ ? EndGroup(status) : status);
  }
  std::vector<int64_t> first_slots;
  for (const PassChunk& chunk : pass) {
    first_slots.push_back(chunk.state->num_draft_slots());
    chunk.state->CommitAppend();
  }
  if (status = MakeSlotsBehind(pass, first_slots); !status.ok()) {
    for (const PassChunk& chunk : pass) {
      if (!chunk.state->Rewind(std::ssize(chunk.tokens)).ok()) chunk.state->Reset();
    }
    return Error(in_group_ ? EndGroup(status) : status);
  }
  const bool one_each =
      std::ranges::all_of(pass, [](const PassChunk& chunk) { return chunk.num_logits_rows == 1; });
  num_chosen_ = one_each ? num_chosen : 0;
  std::function<Status()> check;
  if (device_shards_ != nullptr) {
    check = [this] {
      const Status whole = CheckDeviceGroups();
      return whole.ok() ? whole : EndGroup(whole);
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
  const auto numbers = std::make_shared<QueuedNumbers>(QueuedNumbers{std::move(*host), std::move(copy)});
  queued_numbers_ = numbers;
  return std::make_unique<QueuedStep>(numbers, std::move(rows), std::move(check));
}

// The copy of the step's tokens is on its way, and the device is free behind it. It makes the slots until the
// host has the tokens.
Status Model::MakeSlotsBehind(std::span<const PassChunk> pass, std::span<const int64_t> first_slots) {
  std::vector<DraftRow> rows;
  Status status;
  for (size_t i = 0; i < pass.size() && status.ok(); ++i) {
    if (!pass[i].slots_later) continue;
    rows.push_back({.state = pass[i].state, .first_slot = first_slots[i]});
    status = rows.back().state->BeginDraft();
    if (!status.ok()) rows.pop_back();
  }
  if (rows.empty()) return status;
  if (status.ok()) {
    status = [&]() -> Status {
      DSV4_RETURN_IF_ERROR(arena_.Recycle());
      const Arena::Scope scope(arena_);
      PassArrays arrays;
      const auto run = has_dspark() ? RunDsparkDraft : RunDraft;
      DSV4_RETURN_IF_ERROR(run(MakeGraph(), arena_, arrays, rows, {}, {}, {}));
      if (!asynchronous()) return {};
      // A copy of no bytes hands over what was queued, while its arrays are there.
      ops::OpContext& context = *backend_.context;
      const auto handed_over = context.memory().StartCopyToHost(nullptr, nullptr, 0, context.stream());
      return handed_over ? Status() : handed_over.error();
    }();
  }
  for (const DraftRow& row : rows) row.state->EndDraft(status.ok());
  return status.WithContext("rows for drafts");
}

namespace {

int64_t NumLogitsRows(const ChunkMessage& message) {
  switch (static_cast<LogitsRows>(message.logits)) {
    case LogitsRows::kNone:
      return 0;
    case LogitsRows::kLast:
      return 1;
    case LogitsRows::kAll:
      break;
  }
  return std::ssize(message.tokens);
}

}  // namespace

Status Model::FollowQueued(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<PassChunk> pass;
  for (const ChunkMessage& message : messages) {
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    pass.push_back({.state = copy ? *copy : nullptr,
                    .tokens = message.tokens,
                    .chunk = static_cast<int32_t>(pass.size()),
                    .num_logits_rows = NumLogitsRows(message),
                    .follows = message.follows,
                    .prompt = NumLogitsRows(message) != std::ssize(message.tokens),
                    .slots_later = message.slots_later});
  }
  Result<ChosenTokens> chosen = ReserveChosen(NumChosen(pass), {});
  if (!chosen && ready.ok()) ready = chosen.error();
  Result<std::unique_ptr<QueuedStep>> step = RunQueued(pass, chosen ? *chosen : ChosenTokens(), ready);
  // Failures of rank 0 alone are its report; the group goes on.
  if (!step) return options_.group->Check();
  // As far ahead as rank 0, which queues a step and then waits for the one in front of it.
  const std::unique_ptr<QueuedStep> before = std::exchange(followed_, std::move(*step));
  if (before == nullptr) return {};
  const auto tokens = before->Wait();
  return tokens ? Status() : EndGroup(tokens.error());
}

Result<int32_t> Model::AwaitChosen(int64_t row) const {
  const std::shared_ptr<QueuedNumbers> step = queued_numbers_.lock();
  if (step == nullptr)
    return Error(FailedPrecondition("the step that it follows is gone; n-gram tables are read by its token"));
  DSV4_TRY(step->copy->Wait());
  const auto* const numbers = static_cast<const int32_t*>(step->host.data());
  const int32_t token = numbers[row];
  const int32_t fault = numbers[num_chosen_ + row];
  if (fault == ops::kNoFault && token >= 0 && token < config_.vocab_size) return token;
  return Error(FailedPrecondition("the step that it follows chose no token"));
}

Result<std::unique_ptr<QueuedStep>> Model::QueueDecode(std::span<const DecodeChunk> chunks,
                                                       const Buffer& allowed) {
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
    if (engram_ != nullptr && follows >= 0) {
      const Result<int32_t> token = AwaitChosen(follows);
      if (!token) return Error(token.error().WithContext(fmt::format("queued step, chunk {}", pass.size())));
      read.front() = *token;
    }
    pass.push_back({.state = chunk.state,
                    .tokens = read,
                    .chunk = static_cast<int32_t>(pass.size()),
                    .num_logits_rows = chunk.chooses ? 1 + std::ssize(chunk.draft) : 0,
                    .follows = engram_ != nullptr ? -1 : follows,
                    .choice = chunk.choice,
                    .draft_choices = chunk.draft_choices,
                    .biases = chunk.biases,
                    .prompt = !chunk.prompt.empty(),
                    .exact_from = chunk.prompt.empty()
                                      ? 0
                                      : ExactFrom(*chunk.state, std::ssize(read), chunk.chooses ? 1 : 0,
                                                  chunk.num_following),
                    .slots_later = chunk.drafts_next});
  }
  DSV4_ASSIGN_OR_RETURN(const ChosenTokens chosen, ReserveChosen(NumChosen(pass), allowed));
  SortByPlace(pass);
  if (in_group_) DSV4_TRY(AnnounceQueued(pass));
  return RunQueued(pass, chosen, {});
}

}  // namespace dsv4::model
