// Which waiting requests run, and which running sequences give way.
#include "engine/admission.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace dsv4::engine {
namespace {

// Steps that found what they needed, until one sequence more may run.
constexpr int64_t kTrustWindow = 16;

// How much longer an owner's only sequence runs than one of several, before it gives way.
constexpr double kOnlyTurn = 4.0;

// Owners whose turns are remembered. Forgetting them favours those that wait.
constexpr size_t kMostTurns = 4096;

}  // namespace

Admission::Admission(EngineCore& core, StateKeeper& keeper, Answers& answers)
    : core_(core), keeper_(keeper), answers_(answers), most_running_(core.options.max_sequences) {}

void Admission::Add(std::unique_ptr<Sequence> sequence) {
  if (core_.waiting.empty() && core_.running.empty()) most_running_ = core_.options.max_sequences;
  const uint64_t owner = sequence->request.owner;
  core_.CameFrom(owner);
  const auto is_its = [&](const auto& other) { return other->request.owner == owner; };
  if (turns_.size() > kMostTurns) turns_.clear();
  if (std::ranges::none_of(core_.waiting, is_its) && std::ranges::none_of(core_.running, is_its))
    turns_[owner] = turn_;
  core_.waiting.push_back(std::move(sequence));
}

bool Admission::HasWork() {
  return (MayAdmit() && !HoldsPrompts()) || ChooseToGiveWay() < core_.running.size();
}

bool Admission::MayAdmit() const {
  if (core_.waiting.empty() || static_cast<int64_t>(core_.running.size()) >= most_running_) return false;
  return core_.options.max_state_bytes == 0 || core_.running.empty() ||
         keeper_.RunningBytes() + keeper_.BytesOf(*core_.waiting.front()) <= core_.options.max_state_bytes;
}

bool Admission::HoldsPrompts() {
  if (!MayAdmit()) return false;
  PromptLoad load;
  int64_t answers_priority = INT64_MAX;
  for (const auto& sequence : core_.running) {
    if (sequence->num_pending() > 1 || sequence->num_output_tokens() == 0) return false;
    ++load.answering;
    answers_priority = std::min(answers_priority, sequence->request.priority);
  }
  auto room = static_cast<size_t>(most_running_) - core_.running.size();
  for (const auto& sequence : core_.waiting) {
    if (room-- == 0) break;
    if (sequence->request.priority < answers_priority) return false;
    if (sequence->expected_reuse < 0) sequence->expected_reuse = keeper_.SharedLength(*sequence);
    const auto known = static_cast<int64_t>(sequence->tokens.size());
    const double waited = sequence->Age();
    load.Add(std::max<int64_t>(known - sequence->expected_reuse, 1), waited);
    load.overdue =
        load.overdue || (core_.options.first_token_target > 0.0 && waited > core_.options.first_token_target);
  }
  return core_.prefill_policy.Holds(load);
}

bool Admission::WaitsForAnother(Sequence& sequence) {
  if (!keeper_.enabled() || sequence.wants_scores()) return false;
  if (sequence.waits_for == 0) {
    const std::span<const int32_t> prompt = sequence.tokens;
    int64_t longest = keeper_.SharedLength(sequence);
    for (const auto& other : core_.running) {
      if (!other->reading() || other->request.cache_salt != sequence.request.cache_salt) continue;
      const std::span<const int32_t> read =
          std::span(other->tokens).first(static_cast<size_t>(other->num_prompt_tokens));
      int64_t common =
          std::mismatch(read.begin(), read.end(), prompt.begin(), prompt.end()).first - read.begin();
      common = std::min<int64_t>(common, static_cast<int64_t>(prompt.size()) - 1);
      if (common <= other->length() || common < longest + kWorthWaitingFor) continue;
      // Positions at which its state is not whole are not kept.
      if (common < other->state->whole_from()) continue;
      longest = common;
      sequence.waits_for = other->id;
      sequence.waits_until = common;
    }
    if (sequence.waits_for == 0) return false;
    for (const auto& other : core_.running) {
      if (other->id == sequence.waits_for) other->KeepAt(sequence.waits_until);
    }
  }
  for (const auto& other : core_.running) {
    if (other->id == sequence.waits_for && other->length() < sequence.waits_until) return true;
  }
  return false;  // Read, or gone: look no further, lest it wait for ever.
}

size_t Admission::ChooseWaiting() {
  // The first of each owner by priority, at the owner's turn: a number passes no other owner.
  struct Turn {
    size_t first = 0;
    size_t oldest = 0;
  };
  std::unordered_map<uint64_t, Turn> turns;
  const bool only_unread =
      std::ranges::all_of(core_.waiting, [&](const auto& sequence) { return IsUnread(*sequence); });
  for (size_t i = 0; i < core_.waiting.size(); ++i) {
    Sequence& sequence = *core_.waiting[i];
    if ((IsUnread(sequence) && !only_unread) || WaitsForAnother(sequence) || keeper_.WaitsForDisk(sequence))
      continue;
    const auto [turn, is_new] = turns.try_emplace(sequence.request.owner, Turn{i, i});
    if (!is_new && sequence.request.priority < core_.waiting[turn->second.first]->request.priority)
      turn->second.first = i;
  }
  size_t best = core_.waiting.size();
  std::tuple<int64_t, uint64_t, size_t> best_turn;
  for (const auto& [owner, turn] : turns) {
    const auto had = turns_.find(owner);
    const std::tuple<int64_t, uint64_t, size_t> its_turn = {
        RunningOf(owner), had == turns_.end() ? 0 : had->second, turn.oldest};
    if (best != core_.waiting.size() && its_turn >= best_turn) continue;
    best = turn.first;
    best_turn = its_turn;
  }
  return best;
}

bool Admission::IsUnread(const Sequence& sequence) const {
  return sequence.unread_since &&
         std::chrono::duration<double>(std::chrono::steady_clock::now() - *sequence.unread_since).count() >=
             core_.options.unread_seconds;
}

size_t Admission::LongestUnread() const {
  size_t longest = core_.running.size();
  for (size_t i = 0; i < core_.running.size(); ++i) {
    if (!IsUnread(*core_.running[i])) continue;
    if (longest == core_.running.size() ||
        *core_.running[i]->unread_since < *core_.running[longest]->unread_since)
      longest = i;
  }
  return longest;
}

int64_t Admission::RunningOf(uint64_t owner) const {
  return std::ranges::count_if(core_.running,
                               [&](const auto& sequence) { return sequence->request.owner == owner; });
}

void Admission::CountTurn() {
  ++turn_;
  for (const auto& sequence : core_.running) turns_[sequence->request.owner] = turn_;
}

size_t Admission::ChooseToGiveWay() const {
  const bool any_has_none = std::ranges::any_of(core_.waiting, [&](const auto& sequence) {
    return !IsUnread(*sequence) && RunningOf(sequence->request.owner) == 0;
  });
  size_t chosen = core_.running.size();
  if (!any_has_none) return chosen;
  if (const size_t unread = LongestUnread(); unread < core_.running.size()) return unread;
  const auto now = std::chrono::steady_clock::now();
  int64_t most = 1;
  bool all_have_one = true;
  size_t only = core_.running.size();
  double longest = 0.0;
  for (size_t i = core_.running.size(); i-- > 0;) {
    const Sequence& sequence = *core_.running[i];
    const double seconds = std::chrono::duration<double>(now - sequence.running_since).count();
    const int64_t num_running = RunningOf(sequence.request.owner);
    all_have_one = all_have_one && num_running == 1;
    if (num_running > most && seconds >= core_.options.turn_seconds) {
      most = num_running;
      chosen = i;
    }
    if (sequence.length() > sequence.gives_way_past &&
        seconds >= kOnlyTurn * core_.options.turn_seconds * sequence.turn && seconds >= longest) {
      longest = seconds;
      only = i;
    }
  }
  return all_have_one ? only : chosen;
}

void Admission::Admit(std::vector<Event>& events) {
  MakeRoom();
  if (!core_.waiting.empty()) CountTurn();
  if (HoldsPrompts()) {
    ++core_.stats.num_steps_holding;
    return;
  }
  while (!core_.waiting.empty()) {
    const bool full = static_cast<int64_t>(core_.running.size()) >= most_running_;
    const size_t gives_way =
        full || core_.options.max_state_bytes > 0 ? ChooseToGiveWay() : core_.running.size();
    if (full && gives_way == core_.running.size()) return;
    const size_t chosen = ChooseWaiting();
    if (chosen == core_.waiting.size()) return;
    const Sequence& next = *core_.waiting[chosen];
    if (full || (core_.options.max_state_bytes > 0 && !core_.running.empty() &&
                 keeper_.RunningBytes() + keeper_.BytesOf(next) > core_.options.max_state_bytes)) {
      // No smaller one passes it, or it might never run.
      if (gives_way == core_.running.size() || RunningOf(next.request.owner) > 0) return;
      Preempt(gives_way);
      continue;
    }
    if (!Enter(chosen, events)) return;
  }
}

bool Admission::Enter(size_t chosen, std::vector<Event>& events) {
  Sequence& next = *core_.waiting[chosen];
  const auto remove = [&] {
    core_.waiting.erase(core_.waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
  };
  if (!next.wants_scores()) next.state = keeper_.Find(next);
  if (!next.state) {
    Result<kv::SequenceState> state = core_.model.NewSequence();
    if (!state) {
      // Out of memory: kept states are the first to go; with others running, wait for one of them.
      if (state.error().code() == StatusCode::kResourceExhausted) {
        if (keeper_.EvictState()) return true;
        if (!core_.running.empty()) {
          LimitTo(std::ssize(core_.running));
          return false;
        }
      }
      answers_.Fail(next, state.error(), events);
      remove();
      return true;
    }
    next.state = std::move(*state);
  }
  // A third prompt may leave the path of an earlier one at this prompt's node.
  const int64_t shared = std::min(keeper_.SharedLength(next), next.num_prompt_tokens);
  if (shared >= next.length() + kWorthWaitingFor) next.KeepAt(shared);
  // Else most of the time would go into reading a long prompt, of which nothing is kept, again and again.
  if (next.length() + kWorthWaitingFor < next.gives_way_past) next.turn *= 2.0;
  next.gives_way_past = std::max(next.gives_way_past, next.length());
  if (!next.admitted) {
    next.admitted = true;
    core_.stats.num_prompt_tokens += next.num_prompt_tokens;
    core_.stats.num_cached_tokens += next.length();
    core_.stats.num_shared_tokens += std::max(shared, next.length());
    events.push_back(
        {.request = next.id, .kind = Event::Kind::kAdmitted, .num_cached_tokens = next.length()});
    const int64_t most = std::min(core_.MostReusable(next.num_prompt_tokens), next.num_prompt_tokens - 1);
    if (static_cast<double>(next.length()) < next.request.least_cached_part * static_cast<double>(most)) {
      ++core_.stats.num_below_threshold;
      answers_.Finish(next, FinishReason::kCacheThreshold, {}, -1, events);
      remove();
      return true;
    }
    if (next.request.expects_state && most >= kWorthWaitingFor) {
      ++(next.length() > most - kWorthWaitingFor ? core_.stats.num_states_met
                                                 : core_.stats.num_states_missing);
    }
    // A state that needs no step to get there.
    if (next.request.publish && next.length() == core_.MostReusable(next.num_prompt_tokens))
      keeper_.Keep(next);
  }
  next.running_since = std::chrono::steady_clock::now();
  core_.running.push_back(std::move(core_.waiting[chosen]));
  remove();
  return true;
}

void Admission::LimitTo(int64_t num_running) {
  most_running_ = std::max<int64_t>(1, num_running);
  num_good_steps_ = 0;
}
void Admission::Preempt(size_t index) {
  Sequence& sequence = *core_.running[index];
  keeper_.Keep(sequence);
  sequence.gives_way_past = std::max(sequence.gives_way_past, sequence.length());
  sequence.state.reset();
  sequence.waits_for = 0;
  sequence.asked_disk = false;
  core_.waiting.push_front(std::move(core_.running[index]));
  core_.running.erase(core_.running.begin() + static_cast<std::ptrdiff_t>(index));
  ++core_.stats.num_preemptions;
}

bool Admission::FreeMemory() {
  if (!keeper_.Evict()) {
    if (core_.running.size() < 2) return false;
    Preempt(core_.running.size() - 1);
  }
  // States that a failed step has spoilt are computed again.
  for (size_t i = core_.running.size(); i-- > 0;) {
    if (!core_.running[i]->state->poisoned()) continue;
    core_.running[i]->state.reset();
    core_.waiting.push_front(std::move(core_.running[i]));
    core_.running.erase(core_.running.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Else the next step would let them in again, and fail again.
  LimitTo(std::ssize(core_.running));
  return true;
}

void Admission::CountGoodStep() {
  if (++num_good_steps_ % kTrustWindow == 0 && most_running_ < core_.options.max_sequences) ++most_running_;
}

void Admission::MakeRoom() {
  if (core_.options.max_state_bytes == 0) return;
  while (core_.running.size() > 1 && keeper_.RunningBytes() > core_.options.max_state_bytes)
    Preempt(core_.running.size() - 1);
}

}  // namespace dsv4::engine
