#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <unordered_map>
#include <utility>

#include "engine/measure_prices.h"
#include "engine/sequence.h"

namespace dsv4::engine {
namespace {

// A request whose prompt shares at least so much with one that is being read waits for that state instead of computing it too.
// Nor is an extra cut of a prompt worth less.
constexpr int64_t kWorthWaitingFor = 64;

// States on disk that a request asks for, one after the other, when files turn out to be damaged.
constexpr int kMaxLoads = 3;
// After memory ran out one sequence more may run with every so many steps that found what they needed.
constexpr int64_t kStepsOfTrust = 16;

// How long a step that has nothing else to do waits for the disk before it looks for cancelled requests.
constexpr std::chrono::milliseconds kLoadTick(10);

// The longest context whose state fits in the budget.
int64_t ContextLength(const model::Model& model, const EngineOptions& options) {
  int64_t longest = model.config().max_position_embeddings;
  if (options.max_context > 0) longest = std::min(longest, options.max_context);
  if (options.max_state_bytes == 0) return longest;
  int64_t shortest = 0;
  while (shortest < longest) {
    const int64_t middle = shortest + (longest - shortest + 1) / 2;
    if (model.MostStateBytes(middle) <= options.max_state_bytes)
      shortest = middle;
    else
      longest = middle - 1;
  }
  return shortest;
}

bool IsDecode(const model::SequenceChunk& chunk) {
  return chunk.tokens.size() == 1 && chunk.logits == model::LogitsRows::kLast;
}

}  // namespace

Engine::Engine(model::Model& model, EngineOptions options, std::vector<uint8_t> allowed_tokens)
    : model_(model),
      options_(options),
      allowed_tokens_(std::move(allowed_tokens)),
      context_length_(ContextLength(model, options)),
      store_(options.prefix_cache_bytes * model.cache_layout().num_places,
             {model.stage_layouts().begin(), model.stage_layouts().end()}) {
  // What a rank may have, many times over where each has sequences of its own, which are about as many.
  options_.max_state_bytes *= model.cache_layout().num_places;
  const int64_t pass_tokens = model.options().max_chunk_tokens;
  if (options_.max_step_tokens == 0) options_.max_step_tokens = pass_tokens;
  few_rows_ = model.most_rows_like_steps();
  // A longer step would be cut into passes anywhere.
  if (few_rows_ > 0) options_.max_step_tokens = std::min(options_.max_step_tokens, pass_tokens);
  for (const kv::CacheLayout& stage : model.stage_layouts()) {
    int64_t fixed = 0;
    double entries = 0;
    double keys = 0;
    for (const kv::CachePart& part : kv::CacheParts(stage)) {
      fixed += part.fixed_bytes;
      (part.name == kv::PageKindName(kv::PageKind::kEntries) ? entries : keys) += part.bytes_per_token;
    }
    stats_.fixed_state_bytes = std::max(stats_.fixed_state_bytes, fixed);
    stats_.entry_bytes_per_token = std::max(stats_.entry_bytes_per_token, entries);
    stats_.indexer_key_bytes_per_token = std::max(stats_.indexer_key_bytes_per_token, keys);
  }
  most_running_ = options_.max_sequences;
  SpeculationOptions& speculates = options_.speculation;
  speculates.mtp = speculates.mtp && model.can_draft() && !model.has_dspark();
  speculates.dspark = speculates.dspark && model.has_dspark();
  draft_policy_ = speculation::DraftPolicy(/*drafts_blocks=*/model.has_dspark());
  // Other backends are as fast at first as later; ranks that follow do so later.
  const bool ahead = options_.async_scheduling.value_or(model.asynchronous()) && model.can_queue();
  if (!ahead || !speculates.any() || speculates.always || model.options().group != nullptr) return;
  const int64_t most_drafted = speculates.dspark ? model.most_drafts()
                               : speculates.mtp  ? speculates.most_mtp_tokens
                                                 : 0;
  MeasurePrices(model, {.most_mtp_tokens = most_drafted}, draft_policy_);
}

Engine::~Engine() = default;  // A step in flight is waited for.

Status Engine::Check(const Request& request) const {
  const auto& config = model_.config();
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) return InvalidArgument("prompt: got no tokens, wanted at least one");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.vocab_size) {
      return InvalidArgument(fmt::format("prompt: token id {}, wanted 0..{}", token, config.vocab_size - 1));
    }
  }
  // A prompt that is only read may fill the context.
  if (prompt_tokens >= context_length_ + (request.max_tokens == 0 ? 1 : 0)) {
    // Clients look for these words, OpenAI's and Anthropic's, to shorten a conversation by themselves.
    return OutOfRange(fmt::format(
        "prompt is too long: {} tokens > {} maximum (this model's maximum context length is {} tokens)",
        prompt_tokens, context_length_ - 1, context_length_));
  }
  if (request.max_tokens < 0) {
    return InvalidArgument(fmt::format("max_tokens: got {}, wanted 0 or more", request.max_tokens));
  }
  const speculation::Choice& choice = request.speculation;
  const SpeculationOptions& has = options_.speculation;
  const bool has_it = (choice.suffix && has.make_drafter != nullptr) || (choice.mtp && has.mtp) ||
                      (choice.dspark && has.dspark);
  if (choice.any() && !choice.all() && !has_it) {
    return InvalidArgument(
        fmt::format("speculation: got {}, which this server runs without", speculation::ChoiceName(choice)));
  }
  return sampling::ValidateSamplingParams(request.sampling, config.vocab_size);
}

Result<RequestId> Engine::Submit(Request request) {
  DSV4_TRY(Check(request));
  if (idle()) most_running_ = options_.max_sequences;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  auto sequence = std::make_unique<Sequence>(Sequence{
      .id = next_id_++,
      .request = {},
      .tokens = std::move(request.prompt),
      .num_prompt_tokens = prompt_tokens,
      .max_tokens = std::min(request.max_tokens, context_length_ - prompt_tokens),
      .sampler = sampling::Sampler(request.sampling, allowed_tokens_, request.num_logprobs),
  });
  for (const int64_t position : request.branch_points) {
    // Near the end the state of the whole prompt can be taken back; near the beginning there is little to save.
    const bool near_end = prompt_tokens - position <= model_.cache_layout().max_rewind_tokens;
    if (position >= kWorthWaitingFor && !near_end) sequence->KeepAt(position);
  }
  sequence->KeepAt(prompt_tokens);
  if (store_.enabled() && options_.checkpoint_tokens > 0) {
    sequence->checkpoint_every = std::max(options_.checkpoint_tokens, prompt_tokens / kMostCheckpoints);
  }
  sequence->sampler.SeePrompt(sequence->tokens);
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
  return waiting_.back()->id;
}

void Engine::Cancel(RequestId id) {
  for (const auto& sequence : waiting_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (const auto& sequence : running_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
}

bool Engine::idle() const { return waiting_.empty() && running_.empty(); }

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.num_running = static_cast<int64_t>(running_.size());
  stats.num_waiting = static_cast<int64_t>(waiting_.size());
  stats.state_bytes = RunningBytes() / model_.cache_layout().num_places;
  stats.cache_bytes = store_.num_bytes() / model_.cache_layout().num_places;
  stats.cache_states = store_.num_states();
  stats.cache_evictions = store_.num_evictions();
  return stats;
}

void Engine::KeepState(const Sequence& sequence) {
  if (store_.enabled() && sequence.state && !sequence.state->poisoned()) {
    store_.Keep(sequence.request.cache_salt, sequence.Known(), *sequence.state);
    if (options_.prefix_disk != nullptr) {
      options_.prefix_disk->Offer(sequence.request.cache_salt, sequence.Known(), *sequence.state);
    }
  }
}

void Engine::Finish(Sequence& sequence, FinishReason reason, Status status, int32_t stop_token,
                    std::vector<Event>& events) {
  TakeBack(sequence);
  // What a cancelled prompt has read so far counts too: the client may come back with it.
  if (reason != FinishReason::kError) KeepState(sequence);
  // Memory that is lacking comes back; a full queue is another matter.
  if (status.code() == StatusCode::kResourceExhausted)
    status = Status(StatusCode::kUnavailable, status.message());
  events.push_back({.request = sequence.id,
                    .kind = Event::Kind::kFinished,
                    .finish_reason = reason,
                    .stop_token = stop_token,
                    .status = std::move(status)});
  sequence.finished = true;
  sequence.state.reset();
}

void Engine::DropEnded(std::vector<Event>& events) {
  const Clock::time_point now = Clock::now();
  const auto end = [&](Sequence& sequence) {
    if (sequence.finished) return;  // By a step that was abandoned.
    if (sequence.abandoned) {
      Finish(sequence, FinishReason::kError, ResourceExhausted("memory ran out; try again later"), -1,
             events);
    } else if (sequence.cancelled) {
      Finish(sequence, FinishReason::kCancelled, {}, -1, events);
    } else if (sequence.request.deadline && now >= *sequence.request.deadline) {
      Finish(sequence, FinishReason::kError,
             Status(StatusCode::kDeadlineExceeded,
                    fmt::format("request: its time ran out after {} prompt and {} output tokens",
                                std::min(sequence.length(), sequence.num_prompt_tokens),
                                sequence.num_output_tokens())),
             -1, events);
    }
  };
  for (const auto& sequence : running_) end(*sequence);
  for (const auto& sequence : waiting_) end(*sequence);
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
  std::erase_if(waiting_, [](const auto& sequence) { return sequence->finished; });
}

int64_t Engine::BytesOf(const Sequence& sequence) const {
  return model_.MostStateBytes(static_cast<int64_t>(sequence.tokens.size()));
}

int64_t Engine::RunningBytes() const {
  int64_t num_bytes = 0;
  for (const auto& sequence : running_) num_bytes += BytesOf(*sequence);
  return num_bytes;
}

bool Engine::WaitsForAnother(Sequence& sequence) {
  if (!store_.enabled() || sequence.wants_scores()) return false;
  if (sequence.waits_for == 0) {
    const std::span<const int32_t> prompt = sequence.tokens;
    int64_t longest = store_.SharedLength(sequence.request.cache_salt, prompt);
    for (const auto& other : running_) {
      if (!other->reading() || other->request.cache_salt != sequence.request.cache_salt) continue;
      const std::span<const int32_t> read =
          std::span(other->tokens).first(static_cast<size_t>(other->num_prompt_tokens));
      int64_t common =
          std::mismatch(read.begin(), read.end(), prompt.begin(), prompt.end()).first - read.begin();
      common = std::min<int64_t>(common, static_cast<int64_t>(prompt.size()) - 1);
      if (common <= other->length() || common < longest + kWorthWaitingFor) continue;
      longest = common;
      sequence.waits_for = other->id;
      sequence.waits_until = common;
    }
    if (sequence.waits_for == 0) return false;
    for (const auto& other : running_) {
      if (other->id == sequence.waits_for) other->KeepAt(sequence.waits_until);
    }
  }
  for (const auto& other : running_) {
    if (other->id == sequence.waits_for && other->length() < sequence.waits_until) return true;
  }
  return false;  // Read, or gone: look no further, lest it wait for ever.
}

bool Engine::WaitsForDisk(Sequence& sequence) {
  PrefixDisk* disk = options_.prefix_disk;
  if (disk == nullptr || sequence.wants_scores()) return false;
  const uint64_t salt = sequence.request.cache_salt;
  for (; sequence.num_loads < kMaxLoads; ++sequence.num_loads) {
    if (sequence.load == nullptr) {
      const std::optional<kv::SequenceState> in_memory = store_.Find(salt, sequence.tokens);
      sequence.load =
          disk->Find(salt, sequence.tokens, (in_memory ? in_memory->length() : 0) + kWorthWaitingFor - 1);
    }
    if (sequence.load == nullptr) {
      sequence.num_loads = kMaxLoads;
      return false;
    }
    if (!disk->IsDone(*sequence.load)) return true;
    std::optional<PrefixDisk::Loaded> loaded = disk->Take(*sequence.load);
    sequence.load.reset();
    if (!loaded) continue;  // There may be a shorter one.
    store_.Keep(salt, loaded->tokens, loaded->state);
    sequence.num_loads = kMaxLoads;
    return false;
  }
  return false;
}

size_t Engine::ChooseWaiting() {
  // The first of each owner by priority, at the turn of the owner's oldest: a number passes no other owner.
  struct Turn {
    size_t first = 0;
    size_t oldest = 0;
  };
  std::unordered_map<uint64_t, Turn> turns;
  const bool only_unread =
      std::ranges::all_of(waiting_, [&](const auto& sequence) { return IsUnread(*sequence); });
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if ((IsUnread(*waiting_[i]) && !only_unread) || WaitsForAnother(*waiting_[i]) ||
        WaitsForDisk(*waiting_[i]))
      continue;
    const auto [turn, is_new] = turns.try_emplace(waiting_[i]->request.owner, Turn{i, i});
    if (!is_new && waiting_[i]->request.priority < waiting_[turn->second.first]->request.priority)
      turn->second.first = i;
  }
  size_t best = waiting_.size();
  std::pair<int64_t, size_t> best_turn;
  for (const auto& [owner, turn] : turns) {
    const std::pair<int64_t, size_t> its_turn = {RunningOf(owner), turn.oldest};
    if (best != waiting_.size() && its_turn >= best_turn) continue;
    best = turn.first;
    best_turn = its_turn;
  }
  return best;
}

int64_t Engine::RunningOf(uint64_t owner) const {
  return std::ranges::count_if(running_,
                               [&](const auto& sequence) { return sequence->request.owner == owner; });
}

size_t Engine::ChooseToGiveWay() const {
  const bool any_has_none = std::ranges::any_of(waiting_, [&](const auto& sequence) {
    return !IsUnread(*sequence) && RunningOf(sequence->request.owner) == 0;
  });
  size_t chosen = running_.size();
  if (!any_has_none) return chosen;
  if (const size_t unread = LongestUnread(); unread < running_.size()) return unread;
  const Clock::time_point now = Clock::now();
  int64_t most = 1;
  for (size_t i = running_.size(); i-- > 0;) {
    if (std::chrono::duration<double>(now - running_[i]->running_since).count() < options_.turn_seconds)
      continue;
    const int64_t num_running = RunningOf(running_[i]->request.owner);
    if (num_running <= most) continue;
    most = num_running;
    chosen = i;
  }
  return chosen;
}

void Engine::Admit(std::vector<Event>& events) {
  while (!waiting_.empty()) {
    const bool full = static_cast<int64_t>(running_.size()) >= most_running_;
    const size_t gives_way = full || options_.max_state_bytes > 0 ? ChooseToGiveWay() : running_.size();
    if (full && gives_way == running_.size()) return;
    const size_t chosen = ChooseWaiting();
    if (chosen == waiting_.size()) return;
    Sequence& next = *waiting_[chosen];
    if (full || (options_.max_state_bytes > 0 && !running_.empty() &&
                 RunningBytes() + BytesOf(next) > options_.max_state_bytes)) {
      // No smaller one passes it, or it might never run.
      if (gives_way == running_.size() || RunningOf(next.request.owner) > 0) return;
      Preempt(gives_way);
      continue;
    }
    const uint64_t salt = next.request.cache_salt;
    if (!next.wants_scores()) next.state = FindState(next);
    if (!next.state) {
      Result<kv::SequenceState> state = model_.NewSequence();
      if (!state) {
        // Out of memory: kept states are the first to go; with others running, wait for one of them.
        if (state.error().code() == StatusCode::kResourceExhausted) {
          if (store_.EvictOne()) continue;
          if (!running_.empty()) return;
        }
        Finish(next, FinishReason::kError, state.error(), -1, events);
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(chosen));
        continue;
      }
      next.state = std::move(*state);
    }
    // Where this prompt leaves the path of an earlier one, a third may leave it too.
    const int64_t shared = std::min(store_.SharedLength(salt, next.tokens), next.num_prompt_tokens);
    if (shared >= next.length() + kWorthWaitingFor) next.KeepAt(shared);
    if (!next.admitted) {
      next.admitted = true;
      stats_.num_cached_tokens += next.length();
      events.push_back(
          {.request = next.id, .kind = Event::Kind::kAdmitted, .num_cached_tokens = next.length()});
    }
    next.running_since = Clock::now();
    running_.push_back(std::move(waiting_[chosen]));
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
}

void Engine::Preempt(size_t index) {
  Sequence& sequence = *running_[index];
  KeepState(sequence);
  sequence.state.reset();
  sequence.waits_for = 0;
  sequence.num_loads = 0;
  waiting_.push_front(std::move(running_[index]));
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  ++stats_.num_preemptions;
}

bool Engine::FreeMemory() {
  const bool freed =
      store_.EvictOne() || (options_.prefix_disk != nullptr && options_.prefix_disk->DropQueue());
  if (!freed) {
    if (running_.size() < 2) return false;
    Preempt(running_.size() - 1);
  }
  // What a failed step has spoilt is computed again.
  for (size_t i = running_.size(); i-- > 0;) {
    if (!running_[i]->state->poisoned()) continue;
    running_[i]->state.reset();
    waiting_.push_front(std::move(running_[i]));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Else the next step would let them in again, and fail again.
  most_running_ = std::max<int64_t>(1, static_cast<int64_t>(running_.size()));
  num_good_steps_ = 0;
  return true;
}

void Engine::MakeRoom() {
  if (options_.max_state_bytes == 0) return;
  while (running_.size() > 1 && RunningBytes() > options_.max_state_bytes) Preempt(running_.size() - 1);
}

void Engine::AdvanceBy(Sequence& sequence, Result<sampling::SampledToken>& token,
                       std::vector<Event>& events) {
  if (!token) {
    Finish(sequence, FinishReason::kError, token.error(), -1, events);
    return;
  }
  if (sequence.request.stop_tokens.contains(token->id)) {
    Finish(sequence, FinishReason::kStop, {}, token->id, events);
    return;
  }
  sequence.tokens.push_back(token->id);
  ++stats_.num_output_tokens;
  events.push_back({.request = sequence.id, .kind = Event::Kind::kToken, .token = std::move(*token)});
  if (sequence.num_output_tokens() >= sequence.max_tokens)
    Finish(sequence, FinishReason::kLength, {}, -1, events);
}

void Engine::Score(Sequence& sequence, const model::StepOutput& output, size_t chunk) {
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

std::vector<Event> Engine::Step() {
  try {
    Step(events_);
  } catch (const std::bad_alloc&) {
    Abandon();
    DropEnded(events_);
  }
  return std::exchange(events_, {});
}

void Engine::Abandon() {
  in_flight_.reset();
  settled_.reset();
  for (const auto& sequence : running_) {
    sequence->abandoned = true;
    sequence->state.reset();
  }
  while (store_.EvictOne()) continue;
}

void Engine::Step(std::vector<Event>& events) {
  if (options_.prefix_disk != nullptr) options_.prefix_disk->Tidy();
  if (in_flight_ != nullptr && GoOn(events)) return;
  DropEnded(events);
  MakeRoom();
  Admit(events);
  if (running_.empty() && events.empty() &&
      std::any_of(waiting_.begin(), waiting_.end(),
                  [](const auto& waiting) { return waiting->load != nullptr; })) {
    options_.prefix_disk->WaitForLoad(kLoadTick);
    return;
  }

  settled_.reset();
  if (QueuesAhead()) {
    GoOn(events);
    return;
  }
  PrepareMasks();
  if (ChooseDrafts() && VerifyOnBackend(events)) return;

  const std::vector<Pending> pending = Wanted();
  const std::vector<ScheduledChunk> schedule = Schedule(pending);
  if (schedule.empty()) return;

  std::vector<model::SequenceChunk> batch;
  int64_t num_rows = 0;
  for (const ScheduledChunk& chunk : schedule) {
    Sequence& sequence = *running_[chunk.sequence];
    const bool last = chunk.num_tokens == pending[chunk.sequence].num_tokens;
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
    num_rows += static_cast<int64_t>(tokens.size());
    batch.push_back({.state = &*sequence.state,
                     .tokens = tokens,
                     .logits = verifies || sequence.wants_scores() || options_.observer != nullptr
                                   ? model::LogitsRows::kAll
                               : last ? model::LogitsRows::kLast
                                      : model::LogitsRows::kNone});
    if (options_.watcher != nullptr && IsDecode(batch.back())) {
      options_.watcher->BeforeDecode(sequence.id, *sequence.state, batch.back().tokens[0]);
    }
  }

  const Clock::time_point began = Clock::now();
  const Result<model::StepOutput> output = model_.Step(batch, options_.observer);
  ++stats_.num_steps;
  for (size_t i = 0; options_.watcher != nullptr && i < batch.size(); ++i) {
    if (!IsDecode(batch[i])) continue;
    options_.watcher->AfterDecode(running_[schedule[i].sequence]->id,
                                  output ? output->Row(i, 0) : std::span<const float>());
  }
  // The step was taken back; with more memory the next may succeed.
  if (!output && output.error().code() == StatusCode::kResourceExhausted && FreeMemory()) return;
  const auto knows_no_more = [&](size_t chunk) {
    return schedule[chunk].num_tokens == pending[schedule[chunk].sequence].num_tokens;
  };
  const auto sample = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      Sequence& sequence = *running_[schedule[i].sequence];
      if (sequence.wants_scores()) Score(sequence, *output, i);
      if (knows_no_more(i) && sequence.max_tokens > 0) Sample(sequence, *output, i);
    }
  };
  const auto num_chunks = static_cast<int64_t>(schedule.size());
  if (output && options_.threads != nullptr) {
    options_.threads->ParallelFor(num_chunks, 1, sample);
  } else if (output) {
    sample(0, num_chunks);
  }
  if (output && ++num_good_steps_ % kStepsOfTrust == 0 && most_running_ < options_.max_sequences)
    ++most_running_;
  const bool decodes_alone = std::ranges::all_of(pending, [](const Pending& p) { return p.num_tokens <= 1; });
  if (output && decodes_alone) SawDecodeStep(num_rows, num_chunks, began);
  if (output) {
    const int64_t num_decode = std::ranges::count_if(
        schedule, [&](const ScheduledChunk& chunk) { return pending[chunk.sequence].num_tokens == 1; });
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    step_price_.SawStep(num_decode, decodes_alone ? 0 : num_rows - num_decode, seconds);
  }
  for (size_t i = 0; i < schedule.size(); ++i) {
    Sequence& sequence = *running_[schedule[i].sequence];
    if (!output) {
      Finish(sequence, FinishReason::kError, output.error(), -1, events);
      continue;
    }
    if (pending[schedule[i].sequence].num_tokens > 1) stats_.num_prefill_tokens += schedule[i].num_tokens;
    if (sequence.num_output_tokens() == 0) {
      events.push_back({.request = sequence.id,
                        .kind = Event::Kind::kPrefill,
                        .num_prompt_tokens_done = sequence.length()});
    }
    if (sequence.IsKeptAt(sequence.length())) {
      KeepState(sequence);
    } else if (sequence.IsCheckpoint(sequence.length())) {
      store_.Keep(sequence.request.cache_salt, sequence.Known(), *sequence.state);
    }
    if (!sequence.scored.empty()) {
      events.push_back({.request = sequence.id,
                        .kind = Event::Kind::kPromptScored,
                        .scored = std::exchange(sequence.scored, {})});
    }
    if (!knows_no_more(i)) continue;
    if (sequence.max_tokens > 0)
      Advance(sequence, events);
    else
      Finish(sequence, FinishReason::kLength, {}, -1, events);
  }
  std::erase_if(running_, [](const auto& sequence) { return sequence->finished; });
}

}  // namespace dsv4::engine
