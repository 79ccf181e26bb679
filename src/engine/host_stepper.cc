// A step that is waited for, and whose tokens the host samples.
#include "engine/host_stepper.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/parallel.h"
#include "engine/masks.h"
#include "engine/row_rules.h"
#include "model/runtime/queued_step.h"

namespace dsv4::engine {
namespace {

bool IsDecode(const model::SequenceChunk& chunk) {
  return chunk.tokens.size() == 1 && chunk.logits == model::LogitsRows::kLast;
}

// The log-probabilities of the prompt's tokens behind those of the chunk, into sequence.scored.
void Score(Sequence& sequence, const model::StepOutput& output, size_t chunk) {
  // Row 0 is that of the first token that this step has read, and foretells the one behind it.
  const int64_t begin = sequence.length() - output.num_rows(chunk);
  for (int64_t row = 0; row < output.num_rows(chunk); ++row) {
    const int64_t position = begin + row + 1;
    if (position < sequence.num_scored || position >= sequence.num_prompt_tokens) continue;
    sequence.scored.push_back(sampling::ScoreToken(output.Row(chunk, row),
                                                   sequence.tokens[static_cast<size_t>(position)],
                                                   sequence.request.num_prompt_logprobs));
  }
  sequence.num_scored += static_cast<int64_t>(sequence.scored.size());
}

// Samples into sequence.sampled, from the chunk's last rows: one, and one for every draft that was right. For different sequences from
// several threads.
void Sample(Sequence& sequence, const model::StepOutput& output, size_t chunk) {
  sampling::TokenConstraint* constraint = sequence.request.constraint.get();
  const int64_t first_row = output.num_rows(chunk) - 1 - sequence.num_verified;
  for (int64_t i = 0; i <= sequence.num_verified; ++i) {
    // The mask in front of the first is ready. A later one may be dear: then the rest of the draft is as if it had been wrong.
    if (i > 0 && constraint != nullptr &&
        !constraint->Prepare(std::chrono::steady_clock::now() + kMaskAtOnce))
      return;
    std::span<const uint64_t> allowed;
    if (constraint != nullptr) allowed = constraint->Allowed();
    if (!allowed.empty() && std::ranges::all_of(allowed, [](uint64_t word) { return word == 0; })) {
      sequence.sampled.emplace_back(Error(constraint->WhyNone()));
      return;
    }
    sequence.sampled.push_back(sequence.sampler.Sample(output.Row(chunk, first_row + i), allowed));
    const Result<sampling::SampledToken>& token = sequence.sampled.back();
    if (!token || sequence.request.stop_tokens.contains(token->id)) return;
    if (constraint != nullptr) constraint->Accept(token->id);
    if (i < sequence.num_verified && token->id != sequence.draft.tokens[static_cast<size_t>(i)]) return;
  }
}

}  // namespace

HostStepper::HostStepper(EngineCore& core, StateKeeper& keeper, Admission& admission, Answers& answers,
                         Speculator& speculator)
    : core_(core), keeper_(keeper), admission_(admission), answers_(answers), speculator_(speculator) {}

bool HostStepper::Plan::DecodesAlone() const {
  return std::ranges::all_of(pending, [](const Pending& p) { return p.num_tokens <= 1; });
}

HostStepper::Plan HostStepper::MakePlan() {
  Plan plan;
  plan.pending = Wanted();
  plan.schedule = Schedule(plan.pending);
  for (size_t i = 0; i < plan.schedule.size(); ++i) {
    const ScheduledChunk& chunk = plan.schedule[i];
    Sequence& sequence = *core_.running[chunk.sequence];
    const bool verifies = sequence.num_verified > 0;
    std::span<const int32_t> tokens =
        std::span(sequence.tokens)
            .subspan(static_cast<size_t>(sequence.length()), static_cast<size_t>(chunk.num_tokens));
    if (verifies) {
      sequence.rows.assign(tokens.begin(), tokens.end());
      sequence.rows.insert(sequence.rows.end(), sequence.draft.tokens.begin(),
                           sequence.draft.tokens.begin() + sequence.num_verified);
      tokens = sequence.rows;
    }
    plan.num_rows += static_cast<int64_t>(tokens.size());
    const model::LogitsRows logits = verifies || sequence.wants_scores() || core_.options.observer != nullptr
                                         ? model::LogitsRows::kAll
                                     : plan.IsLast(i) ? model::LogitsRows::kLast
                                                      : model::LogitsRows::kNone;
    const int64_t end = sequence.length() + chunk.num_tokens;
    plan.batch.push_back({.state = &*sequence.state,
                          .tokens = tokens,
                          .logits = logits,
                          .num_following = logits == model::LogitsRows::kNone
                                               ? std::max<int64_t>(0, sequence.ReadsTo() - end)
                                               : 0});
  }
  return plan;
}

Result<model::StepOutput> HostStepper::Run(const Plan& plan) {
  StepWatcher* const watcher = core_.options.watcher;
  const auto id = [&](size_t chunk) { return core_.running[plan.schedule[chunk].sequence]->id; };
  for (size_t i = 0; watcher != nullptr && i < plan.batch.size(); ++i) {
    const model::SequenceChunk& chunk = plan.batch[i];
    if (IsDecode(chunk)) watcher->BeforeDecode(id(i), *chunk.state, chunk.tokens[0]);
  }
  Result<model::StepOutput> output = core_.model.Step(plan.batch, core_.options.observer);
  ++core_.stats.num_steps;
  for (size_t i = 0; watcher != nullptr && i < plan.batch.size(); ++i) {
    if (IsDecode(plan.batch[i]))
      watcher->AfterDecode(id(i), output ? output->Row(i, 0) : std::span<const float>());
  }
  return output;
}

void HostStepper::SampleAll(const Plan& plan, const model::StepOutput& output) {
  const auto sample = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Sequence& sequence = *core_.running[plan.schedule[i].sequence];
      if (sequence.wants_scores()) Score(sequence, output, i);
      if (plan.IsLast(i) && sequence.max_tokens > 0) Sample(sequence, output, i);
    }
  };
  const auto num_chunks = static_cast<int64_t>(plan.schedule.size());
  if (core_.options.threads != nullptr) {
    core_.options.threads->ParallelFor(num_chunks, 1, sample);
  } else {
    sample(0, num_chunks);
  }
}

Status HostStepper::RunOnHost(const Plan& plan) {
  const Result<model::StepOutput> output = Run(plan);
  if (!output) return output.error();
  SampleAll(plan, *output);
  return {};
}

bool HostStepper::MayChooseOnBackend(const Plan& plan) const {
  if (!core_.queues() || core_.options.watcher != nullptr || core_.options.observer != nullptr) return false;
  if (plan.num_rows > core_.model.options().max_chunk_tokens) return false;
  bool any_chooses = false;
  for (size_t i = 0; i < plan.schedule.size(); ++i) {
    const Sequence& sequence = *core_.running[plan.schedule[i].sequence];
    if (sequence.num_verified > 0 || !sequence.MayChooseOnBackend()) return false;
    any_chooses = any_chooses || (plan.IsLast(i) && sequence.max_tokens > 0);
  }
  return any_chooses;
}

Result<bool> HostStepper::RunOnBackend(const Plan& plan) {
  if (!MayChooseOnBackend(plan) || !core_.UploadAllowed().ok()) return false;
  std::vector<model::DecodeChunk> chunks;
  std::vector<Sequence*> choosing;
  for (size_t i = 0; i < plan.batch.size(); ++i) {
    Sequence& sequence = *core_.running[plan.schedule[i].sequence];
    model::DecodeChunk chunk = {.state = plan.batch[i].state,
                                .chooses = plan.IsLast(i) && sequence.max_tokens > 0,
                                .num_following = plan.batch[i].num_following,
                                .choice = sequence.sampler.ChoiceAfter(0),
                                .biases = sequence.sampler.biases()};
    if (plan.pending[plan.schedule[i].sequence].num_tokens == 1 && sequence.num_output_tokens() > 0) {
      chunk.token = plan.batch[i].tokens[0];
    } else {
      chunk.prompt = plan.batch[i].tokens;
    }
    if (chunk.chooses) choosing.push_back(&sequence);
    chunks.push_back(chunk);
  }
  const bool plain =
      std::ranges::all_of(choosing, [](const Sequence* sequence) { return sequence->IsPlain(); });
  // An error changes nothing; a step on the host will meet it and say so.
  const auto step = core_.model.QueueDecode(chunks, core_.allowed_on_backend, /*chooses_later=*/!plain);
  if (!step) return false;
  Status chosen;
  if (!plain) {
    RowRules rules;
    for (Sequence* const sequence : choosing) rules.AddNext(*sequence);
    chosen = core_.model.Choose(**step, rules.rules());
  }
  const Result<std::vector<model::ChosenToken>> tokens =
      chosen.ok() ? (*step)->Wait() : Result<std::vector<model::ChosenToken>>(Error(chosen));
  ++core_.stats.num_steps;
  ++core_.stats.num_mixed_steps_on_backend;
  // The states hold rows of no use: the step cannot be tried again, whatever it lacked.
  if (!tokens) return Error(Internal(tokens.error().message()));
  for (size_t row = 0; row < choosing.size(); ++row) {
    // There is an error already where a constraint allows no token.
    if (choosing[row]->sampled.empty()) answers_.Take(*choosing[row], (*tokens)[row]);
  }
  return true;
}

bool HostStepper::Step(std::vector<Event>& events) {
  const Plan plan = MakePlan();
  if (plan.schedule.empty()) return false;
  const auto began = std::chrono::steady_clock::now();
  const Result<bool> on_backend = RunOnBackend(plan);
  const Status status = !on_backend ? on_backend.error() : *on_backend ? Status() : RunOnHost(plan);
  // The step was taken back; with more memory the next may succeed.
  if (status.code() == StatusCode::kResourceExhausted && admission_.FreeMemory()) return true;
  if (!status.ok()) {
    for (const ScheduledChunk& chunk : plan.schedule)
      answers_.Fail(*core_.running[chunk.sequence], status, events);
    core_.DropFinished();
    return true;
  }
  admission_.CountGoodStep();
  if (plan.DecodesAlone()) {
    speculator_.RecordDecodeStep(plan.num_rows, std::ssize(plan.schedule), began);
  } else {
    const int64_t num_decode = std::ranges::count_if(plan.schedule, [&](const ScheduledChunk& chunk) {
      return plan.pending[chunk.sequence].num_tokens == 1;
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    core_.prefill_policy.RecordStep(num_decode, plan.num_rows - num_decode, seconds);
  }
  for (size_t i = 0; i < plan.schedule.size(); ++i) Settle(plan, i, events);
  core_.DropFinished();
  return true;
}

void HostStepper::Settle(const Plan& plan, size_t chunk, std::vector<Event>& events) {
  Sequence& sequence = *core_.running[plan.schedule[chunk].sequence];
  if (plan.pending[plan.schedule[chunk].sequence].num_tokens > 1)
    core_.stats.num_prefill_tokens += plan.schedule[chunk].num_tokens;
  if (sequence.num_output_tokens() == 0) {
    events.push_back(
        {.request = sequence.id, .kind = Event::Kind::kPrefill, .num_prompt_tokens_done = sequence.length()});
  }
  keeper_.KeepIfWanted(sequence);
  if (!sequence.scored.empty()) {
    events.push_back({.request = sequence.id,
                      .kind = Event::Kind::kPromptScored,
                      .scored = std::exchange(sequence.scored, {})});
  }
  if (!plan.IsLast(chunk)) return;
  if (sequence.max_tokens > 0)
    answers_.Advance(sequence, events);
  else
    answers_.Finish(sequence, FinishReason::kLength, {}, -1, events);
}

}  // namespace dsv4::engine
