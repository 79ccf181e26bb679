// Engine: its parts, and the order in which a step asks them.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/text.h"
#include "engine/host_stepper.h"
#include "engine/masks.h"
#include "engine/queued_stepper.h"

namespace dsv4::engine {

struct Engine::Parts {
  Parts(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens)
      : core(model, std::move(options), std::move(allowed_tokens)) {}

  EngineCore core;
  StateKeeper keeper{core};
  Speculator speculator{core};
  Answers answers{core, keeper, speculator};
  Admission admission{core, keeper, answers};
  Masks masks{core};
  HostStepper on_host{core, keeper, admission, answers, speculator};
  QueuedStepper queued{core, admission, answers, speculator, masks};
};

Engine::Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens)
    : parts_(std::make_unique<Parts>(model, std::move(options), std::move(allowed_tokens))) {}

Engine::~Engine() = default;

int64_t Engine::context_length() const { return parts_->core.context_length; }

const PrefillPolicy& Engine::prefill_policy() const { return parts_->core.prefill_policy; }

bool Engine::has_waiting() const { return !parts_->core.waiting.empty(); }

void Engine::SetUnread(const UnreadSince& since) {
  for (const auto& sequence : parts_->core.running) sequence->unread_since = since(sequence->id);
  for (const auto& sequence : parts_->core.waiting) sequence->unread_since = since(sequence->id);
}

bool Engine::idle() const {
  return parts_->core.waiting.empty() && parts_->core.running.empty() && parts_->core.publishing.empty();
}

Status Engine::Check(const Request& request) const {
  const EngineCore& core = parts_->core;
  const auto& config = core.model.config();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return InvalidArgument("prompt: got no tokens, wanted at least one");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocab_size) {
      return InvalidArgument(fmt::format("prompt: token id {}, wanted 0..{}", token, config.vocab_size - 1));
    }
  }
  // A prompt that is only read may fill the context.
  if (prompt_tokens >= context_length() + (request.max_tokens == 0 ? 1 : 0)) {
    // Clients look for these words, OpenAI's and Anthropic's, to shorten a conversation by themselves.
    return OutOfRange(fmt::format(
        "prompt is too long: {} > {} maximum (this model's maximum context length is {})",
        Counted(prompt_tokens, "token"), context_length() - 1, Counted(context_length(), "token")));
  }
  if (request.max_tokens < 0) {
    return InvalidArgument(fmt::format("max_tokens: got {}, wanted 0 or more", request.max_tokens));
  }
  const speculation::Choice& choice = request.speculation;
  const SpeculationOptions& has = core.options.speculation;
  const bool has_it = (choice.suffix && has.make_drafter != nullptr) || (choice.mtp && has.mtp) ||
                      (choice.dspark && has.dspark);
  if (choice.any() && !choice.all() && !has_it) {
    return InvalidArgument(
        fmt::format("speculation: got {}, which this server runs without", speculation::ChoiceName(choice)));
  }
  return sampling::ValidateSamplingParams(request.sampling, config.vocab_size);
}

Result<RequestId> Engine::Submit(Request request) {
  EngineCore& core = parts_->core;
  DSV4_TRY(Check(request));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  auto sequence = std::make_unique<Sequence>(Sequence{
      .id = next_id_++,
      .request = {},
      .tokens = std::move(request.prompt),
      .num_prompt_tokens = prompt_tokens,
      .max_tokens = std::min(request.max_tokens, context_length() - prompt_tokens),
      .sampler = sampling::Sampler(request.sampling, core.allowed_tokens, request.num_logprobs),
  });
  for (const int64_t position : request.branch_points) {
    // Near the end the state of the whole prompt can be taken back; near the beginning there is little to save.
    const bool near_end = prompt_tokens - position <= core.model.cache_layout().max_rewind_tokens;
    if (position >= kWorthWaitingFor && !near_end) sequence->KeepAt(position);
  }
  sequence->KeepAt(prompt_tokens);
  if (request.publish && core.options.prefix_disk != nullptr)
    sequence->KeepAt(core.MostReusable(prompt_tokens));
  if (parts_->keeper.enabled() && core.options.checkpoint_tokens > 0) {
    sequence->checkpoint_every = std::max({core.options.checkpoint_tokens, prompt_tokens / kMostCheckpoints,
                                           kTailsApart * core.model.tail_rows()});
  }
  sequence->sampler.SeePrompt(sequence->tokens);
  sequence->request = std::move(request);
  parts_->admission.Add(std::move(sequence));
  return core.waiting.back()->id;
}

void Engine::Cancel(RequestId id) {
  EngineCore& core = parts_->core;
  for (const auto& sequence : core.waiting) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (const auto& sequence : core.running) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (EngineCore::Publishing& publishing : core.publishing) {
    if (publishing.finished.request == id) publishing.cancelled = true;
  }
}

EngineStats Engine::stats() const {
  const EngineCore& core = parts_->core;
  EngineStats stats = core.stats;
  stats.num_running = static_cast<int64_t>(core.running.size());
  stats.num_waiting = static_cast<int64_t>(core.waiting.size());
  parts_->keeper.Count(stats);
  return stats;
}

std::vector<Event> Engine::Step() {
  try {
    Step(events_);
  } catch (const std::bad_alloc&) {
    Abandon();
    parts_->answers.DropEnded(events_);
  }
  return std::exchange(events_, {});
}

void Engine::Abandon() {
  EngineCore& core = parts_->core;
  parts_->queued.Abandon();
  for (const auto& sequence : core.running) {
    sequence->abandoned = true;
    sequence->state.reset();
  }
  while (parts_->keeper.EvictState()) continue;
}

void Engine::DropKeptStates() { parts_->keeper.Clear(); }

std::vector<uint64_t> Engine::KeptBlocks() const { return parts_->keeper.Blocks(); }

void Engine::Step(std::vector<Event>& events) {
  parts_->keeper.Tidy();
  parts_->answers.EndPublished(events);
  if (parts_->queued.Continue(events)) return;
  parts_->answers.DropEnded(events);
  parts_->admission.Admit(events);
  if (parts_->core.running.empty() && events.empty() && parts_->keeper.AwaitDisk()) return;
  parts_->masks.Prepare();
  if (parts_->queued.Step(events)) return;
  parts_->on_host.Step(events);
}

}  // namespace dsv4::engine
