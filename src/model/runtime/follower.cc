// Ranks other than 0: copies of rank 0's states, and its steps, one message each.
#include "model/runtime/follower.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "comm/collectives.h"
#include "kv/random_rows.h"
#include "model/graph/step.h"
#include "model/runtime/draft.h"
#include "model/runtime/run_step.h"
#include "model/runtime/step_message.h"

namespace dsv4::model {

Status Follower::Run() {
  DSV4_CHECK(model_.group.entered() && !model_.group.leads()) << "rank 0 does not follow";
  for (;;) {
    std::vector<std::byte> bytes;
    DSV4_RETURN_IF_ERROR(comm::BroadcastBytes(model_.group.hosts(), bytes, 0, comm::Wait::kForever));
    const Result<StepMessage> message = DecodeStepMessage(bytes);
    if (!message) {
      model_.group.hosts().Fail(message.error());
      return message.error();
    }
    if (message->kind != StepKind::kQueued) queued_.reset();  // Waits.
    if (message->kind == StepKind::kLeave) return model_.group.hosts().Barrier();
    const Status ready = TakeOver(message->events);
    switch (message->kind) {
      case StepKind::kQueued:
        DSV4_RETURN_IF_ERROR(Queue(message->chunks, ready));
        break;
      case StepKind::kDrafts:
        DSV4_RETURN_IF_ERROR(Draft(message->chunks, ready));
        break;
      default:
        DSV4_RETURN_IF_ERROR(Step(message->chunks, ready));
    }
  }
}

Status Follower::TakeOver(std::span<const kv::StateEvent> events) {
  Status first;
  const auto fail = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  for (const kv::StateEvent& event : events) {
    const auto found = copies_.find(event.state);
    const auto copy = found == copies_.end() || !found->second.state ? nullptr : &*found->second.state;
    switch (event.kind) {
      case kv::StateEvent::Kind::kCreated:
        copies_[event.state] = {.place = event.place};
        break;
      case kv::StateEvent::Kind::kCopied: {
        // Shares the memory of its source, as the original does.
        const auto source = copies_.find(event.source);
        StateCopy& made = copies_[event.state];
        made = {.place = event.place};
        if (source == copies_.end() || !source->second.state) break;
        Result<kv::SequenceState> fork = source->second.state->Fork();
        if (fork) {
          made.state = std::move(*fork);
        } else {
          fail(fork.error());
        }
        break;
      }
      case kv::StateEvent::Kind::kRewound:
        if (copy == nullptr) break;
        if (const Status rewound = copy->Rewind(event.num_tokens); !rewound.ok()) fail(rewound);
        break;
      case kv::StateEvent::Kind::kFilled: {
        StateCopy& filled = copies_[event.state];
        Result<kv::SequenceState> made = model_.NewSequenceAt(filled.place);
        if (!made) {
          fail(made.error());
          break;
        }
        filled.state = std::move(*made);
        const Status status = kv::FillWithRandomRows(*filled.state, event.num_tokens, event.source);
        if (!status.ok()) fail(status);
        break;
      }
      case kv::StateEvent::Kind::kReset:
        if (copy != nullptr) copy->Reset();
        break;
      case kv::StateEvent::Kind::kDestroyed:
        copies_.erase(event.state);
        break;
    }
  }
  return first;
}

Result<kv::SequenceState*> Follower::CopyOf(const ChunkMessage& message) {
  StateCopy& found = copies_[message.state];
  std::optional<kv::SequenceState>& copy = found.state;
  if (!copy && message.length == 0) {
    DSV4_ASSIGN_OR_RETURN(copy, model_.NewSequenceAt(found.place));
  }
  if (copy && copy->length() == message.length) return &*copy;
  return Error(FailedPrecondition(fmt::format("sequence {}: {} here, {} on rank 0", message.state,
                                              Counted(copy ? copy->length() : 0, "token"), message.length)));
}

Status Follower::Step(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<SequenceChunk> chunks;
  for (const ChunkMessage& message : messages) {
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    chunks.push_back({.state = copy ? *copy : nullptr,
                      .tokens = message.tokens,
                      .logits = static_cast<LogitsRows>(message.logits),
                      .num_following = message.num_following});
  }
  const Result<StepOutput> output = RunStep(model_, chunks, ready, nullptr);
  // Failures of rank 0 alone are its report; the group goes on.
  return output ? Status() : model_.group.Check();
}

Status Follower::Queue(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<PassChunk> pass;
  for (const ChunkMessage& message : messages) {
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    const int64_t num_rows = NumRows(static_cast<LogitsRows>(message.logits), std::ssize(message.tokens));
    pass.push_back({.state = copy ? *copy : nullptr,
                    .tokens = message.tokens,
                    .chunk = static_cast<int32_t>(pass.size()),
                    .num_logits_rows = num_rows,
                    .follows = message.follows,
                    .prompt = num_rows != std::ssize(message.tokens),
                    .exact_from = message.exact_from,
                    .slots_later = message.slots_later});
  }
  Result<std::unique_ptr<QueuedStep>> step = queue_.QueueOfRank0(pass, ready);
  // Failures of rank 0 alone are its report; the group goes on.
  if (!step) return model_.group.Check();
  // As far ahead as rank 0, which queues a step and then waits for the one in front of it.
  const std::unique_ptr<QueuedStep> before = std::exchange(queued_, std::move(*step));
  if (before == nullptr) return {};
  const auto tokens = before->Wait();
  return tokens ? Status() : model_.group.End(tokens.error());
}

Status Follower::Draft(std::span<const ChunkMessage> messages, const Status& events) {
  Status ready = events;
  std::vector<std::vector<sampling::ChoiceParams>> choices;  // As many as rank 0 makes.
  std::vector<DraftRow> rows;
  for (const ChunkMessage& message : messages) {
    if (message.tokens.size() != 1 || message.num_drafts < 0 || message.num_drafts > model_.most_drafts())
      return model_.group.End(DataLoss("draft of rank 0: what it says is no draft"));
    const Result<kv::SequenceState*> copy = CopyOf(message);
    if (!copy && ready.ok()) ready = copy.error();
    choices.emplace_back(static_cast<size_t>(message.num_drafts));
    rows.push_back({.state = copy ? *copy : nullptr, .token = message.tokens[0], .choices = choices.back()});
  }
  const auto drafted = DraftTogether(model_, rows, {}, ready);
  // Failures of rank 0 alone are its report; the group goes on.
  return drafted ? Status() : model_.group.Check();
}

}  // namespace dsv4::model
