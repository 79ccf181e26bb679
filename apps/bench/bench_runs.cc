// Timed prefills, decode steps and rows of one sequence, with busy machines marked.
#include "apps/bench/bench_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "io/disk_rate.h"
#include "kv/random_rows.h"
#include "sampling/sampler.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Seconds. Rows of short steps go on until the first, rows of long ones end early after the second.
constexpr double kShortRow = 0.5;
constexpr double kLongRow = 10;
// A machine that does less than this part of its multiply-adds has other work.
constexpr double kBusy = 0.9;

// Exchanges between ranks, in a profile beside the ops. As many bytes as the next power of two share a line.
class ExchangesInProfile {
 public:
  ExchangesInProfile(const std::shared_ptr<comm::ExchangeHooks>& hooks, diag::OpProfile& profile)
      : hooks_(hooks) {
    if (hooks_ == nullptr) return;
    hooks_->settle = [&profile] { return profile.Wait(); };
    hooks_->seen = [&profile](const comm::Exchange& exchange) {
      const auto bytes = std::bit_ceil(static_cast<uint64_t>(exchange.num_bytes));
      profile.Record(exchange.what,
                     fmt::format("{}, up to {}", Counted(exchange.num_ranks, "rank"), Counted(bytes, "byte")),
                     exchange.seconds);
    };
  }
  ~ExchangesInProfile() {
    if (hooks_ != nullptr) *hooks_ = {};
  }
  ExchangesInProfile(const ExchangesInProfile&) = delete;
  ExchangesInProfile& operator=(const ExchangesInProfile&) = delete;

 private:
  std::shared_ptr<comm::ExchangeHooks> hooks_;
};

}  // namespace

double BenchRow::Median() const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double BenchRow::Mean() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
}

double BenchRow::Spread() const {
  const auto [fastest, slowest] = std::ranges::minmax(seconds);
  return (slowest - fastest) / Median();
}

BenchRow Merge(std::vector<BenchRow> rows) {
  if (std::ranges::any_of(rows, [](const BenchRow& row) { return !row.busy; })) {
    std::erase_if(rows, [](const BenchRow& row) { return row.busy; });
  }
  BenchRow merged = std::move(rows.front());
  for (const BenchRow& row : std::span(rows).subspan(1)) {
    const auto steps = static_cast<double>(merged.profiled_steps);
    const auto more = static_cast<double>(row.profiled_steps);
    merged.seconds.insert(merged.seconds.end(), row.seconds.begin(), row.seconds.end());
    merged.machines.insert(merged.machines.end(), row.machines.begin(), row.machines.end());
    merged.cost = merged.cost * (steps / (steps + more));
    merged.cost += row.cost * (more / (steps + more));
    merged.profiled_steps += row.profiled_steps;
    merged.cache_hits += row.cache_hits;
    merged.cache_misses += row.cache_misses;
    merged.cache_bytes += row.cache_bytes;
    merged.disk_chosen += row.disk_chosen;
    merged.disk_read += row.disk_read;
    merged.disk_steps += row.disk_steps;
    merged.disk_rate = std::max(merged.disk_rate, row.disk_rate);
    for (size_t i = 0; i < merged.ops.size(); ++i) merged.ops[i] += row.ops[i];
  }
  return merged;
}

BenchRuns::BenchRuns(model::Model& model, diag::HookedBackend& backend, const BenchMeter& meter,
                     const BenchRunOptions& options)
    : sampling_threads_(*backend.inner().context),
      model_(model),
      backend_(backend),
      meter_(meter),
      options_(options),
      random_(options.seed) {
  for (int i = 0; i < 5; ++i) {
    most_multiply_adds_ = std::max(most_multiply_adds_, meter_.Measure().multiply_adds);
  }
}

BenchRow BenchRuns::NewRow() const {
  BenchRow row;
  row.backend = backend_.inner().name;
  return row;
}

void BenchRuns::Measure(BenchRow& row) {
  row.machines.push_back(meter_.Measure());
  most_multiply_adds_ = std::max(most_multiply_adds_, row.machines.back().multiply_adds);
}

void BenchRuns::JudgeMachine(BenchRow& row) const {
  row.busy = row.Machine().multiply_adds < kBusy * most_multiply_adds_;
}

std::vector<int32_t> BenchRuns::RandomTokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.config().vocab_size));
  }
  return tokens;
}

Result<model::StepOutput> BenchRuns::Step(std::vector<kv::SequenceState>& states, int64_t first,
                                          int64_t batch, std::span<const int32_t> tokens) {
  const size_t each = tokens.size() / static_cast<size_t>(batch);
  std::vector<model::SequenceChunk> chunks;
  for (int64_t i = 0; i < batch; ++i) {
    chunks.push_back({.state = &states[static_cast<size_t>(first + i)],
                      .tokens = tokens.subspan(static_cast<size_t>(i) * each, each),
                      .logits = model::LogitsRows::kLast});
  }
  DSV4_ASSIGN_OR_RETURN(model::StepOutput output, model_.Step(chunks));
  sampling::SamplingParams greedy;
  greedy.temperature = 0;
  // As the engine does.
  std::vector<Status> ends(chunks.size());
  sampling_threads_.pool().ParallelFor(batch, 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      sampling::Sampler sampler(greedy, {}, -1);
      if (const auto token = sampler.Sample(output.Row(i, 0)); !token) ends[i] = token.error();
    }
  });
  for (const Status& end : ends) DSV4_TRY(end);
  return output;
}

Result<BenchRow> BenchRuns::Prefill(int64_t tokens) {
  BenchRow row = NewRow();
  row.prefill = true;
  row.tokens = tokens;
  random_.seed(options_.seed);
  const std::vector<int32_t> ids = RandomTokens(tokens);
  const auto first_pass = static_cast<size_t>(std::min(tokens, model_.options().max_chunk_tokens));
  std::vector<kv::SequenceState> state;
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState empty, model_.NewSequence());
  state.push_back(std::move(empty));
  DSV4_ASSIGN_OR_RETURN(model::StepOutput output, Step(state, 0, 1, std::span(ids).first(first_pass)));
  double total = 0;
  const TierCounters before = Counters();
  for (int run = 0; run < options_.repeat && !(run >= 2 && total > kLongRow); ++run) {
    state[0].Reset();
    const auto begin = Clock::now();
    DSV4_ASSIGN_OR_RETURN(output, Step(state, 0, 1, ids));
    row.seconds.push_back(Seconds(begin));
    total += row.seconds.back();
    Measure(row);
  }
  NoteTiers(row, before);
  JudgeMachine(row);
  state[0].Reset();
  diag::OpProfile profile(*backend_.inner().context);
  const diag::HookedBackend::Scope scope(backend_, profile.Hooks());
  const ExchangesInProfile exchanges(options_.exchanges, profile);
  const model::LayerRows rows = model_.layer_rows();
  DSV4_ASSIGN_OR_RETURN(output, Step(state, 0, 1, ids));
  row.layer_rows = {.run = model_.layer_rows().run - rows.run, .all = model_.layer_rows().all - rows.all};
  row.cost = profile.total_cost();
  row.profiled_steps = 1;
  if (options_.profile) row.ops = profile.ops();
  return row;
}

BenchRuns::TierCounters BenchRuns::Counters() const {
  const model::ExpertSplit& split = model_.options().experts;
  TierCounters counters;
  if (split.cached > 0) counters.cache = backend::ExpertCacheCountersOf(backend_.inner());
  if (split.host > 0) counters.host = backend::HostExpertCountersOf(backend_.inner());
  return counters;
}

void BenchRuns::NoteTiers(BenchRow& row, const TierCounters& before) const {
  const TierCounters now = Counters();
  row.cache_hits = now.cache.hits - before.cache.hits;
  row.cache_misses = now.cache.misses - before.cache.misses;
  row.cache_bytes = now.cache.bytes - before.cache.bytes;
  row.host = {now.host.requests - before.host.requests, now.host.experts - before.host.experts,
              now.host.seconds - before.host.seconds};
}

Status BenchRuns::FillCache() {
  if (model_.options().experts.cached == 0) return {};
  constexpr int64_t kTokens = 2048;
  std::vector<kv::SequenceState> state;
  DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState empty, model_.NewSequence());
  state.push_back(std::move(empty));
  const std::vector<int32_t> tokens = RandomTokens(std::min(kTokens, model_.options().max_chunk_tokens));
  const Result<model::StepOutput> output = Step(state, 0, 1, tokens);
  return output.has_value() ? Status() : output.error();
}

Status BenchRuns::SetDepth(int64_t depth, int64_t batch) {
  states_.clear();
  depth_ = depth;
  state_bytes_ = 0;
  for (int64_t i = 0; i < batch; ++i) {
    DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, model_.NewSequence());
    DSV4_RETURN_IF_ERROR(kv::FillWithRandomRows(state, depth, options_.seed + static_cast<uint64_t>(i) + 1));
    states_.push_back(std::move(state));
  }
  state_bytes_ = batch * kv::StateBytes(model_.cache_layout(), depth);
  return {};
}

Status BenchRuns::Rewind(int64_t first, int64_t batch, int64_t steps) {
  for (int64_t i = first; i < first + batch; ++i) {
    DSV4_RETURN_IF_ERROR(states_[static_cast<size_t>(i)].Rewind(steps));
  }
  return {};
}

Status BenchRuns::CheckAlone(int64_t index, std::span<const int32_t> tokens, std::span<const float> logits) {
  const size_t vocab_size = logits.size() / tokens.size();
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::StepOutput alone,
                               Step(states_, index, 1, tokens.subspan(static_cast<size_t>(index), 1)));
  if (std::memcmp(alone.logits.data(), logits.data() + static_cast<size_t>(index) * vocab_size,
                  vocab_size * sizeof(float)) == 0) {
    return {};
  }
  return Internal(
      fmt::format("decode at depth {}: row {} of a batch of {} differs from the same sequence alone", depth_,
                  index, tokens.size()));
}

Result<BenchRow> BenchRuns::Decode(int64_t batch) {
  BenchRow row = NewRow();
  row.depth = depth_;
  row.batch = batch;
  random_.seed(options_.seed);
  // The first step warms up. Tokens are random, since what a random model chooses soon runs in circles.
  std::vector<std::vector<int32_t>> tokens = {RandomTokens(batch)};
  DSV4_ASSIGN_OR_RETURN(model::StepOutput output, Step(states_, 0, batch, tokens.back()));
  const TierCounters before = Counters();
  const auto& disk = model_.options().experts_from_disk;
  const int64_t chosen_before = disk == nullptr ? 0 : disk->num_bytes();
  const std::optional<int64_t> read_before = io::BytesReadFromDisk();
  const auto row_begin = Clock::now();
  int steps = 0;
  for (; steps < options_.repeat || (Seconds(row_begin) < kShortRow && steps < kMaxRepeat); ++steps) {
    tokens.push_back(RandomTokens(batch));
    output = {};  // Its memory is the next one's, as it is where text is generated.
    const auto begin = Clock::now();
    DSV4_ASSIGN_OR_RETURN(output, Step(states_, 0, batch, tokens.back()));
    row.seconds.push_back(Seconds(begin));
    Measure(row);
  }
  NoteTiers(row, before);
  if (disk != nullptr && read_before.has_value()) {
    row.disk_chosen = disk->num_bytes() - chosen_before;
    row.disk_read = *io::BytesReadFromDisk() - *read_before;
    row.disk_steps = steps;
  }
  JudgeMachine(row);
  if (batch > 1 && options_.check) {
    for (const int64_t index : {int64_t{0}, batch - 1}) {
      DSV4_TRY(Rewind(index, 1, 1));
      DSV4_TRY(CheckAlone(index, tokens.back(), output.logits));
    }
  }
  // The same steps once more, counted and, op by op, timed.
  DSV4_TRY(Rewind(0, batch, steps));
  diag::OpProfile profile(*backend_.inner().context);
  {
    const diag::HookedBackend::Scope scope(backend_, profile.Hooks());
    const ExchangesInProfile exchanges(options_.exchanges, profile);
    for (int step = 1; step <= steps; ++step) {
      DSV4_ASSIGN_OR_RETURN(output, Step(states_, 0, batch, tokens[static_cast<size_t>(step)]));
    }
  }
  row.profiled_steps = steps;
  row.cost = profile.total_cost() * (1.0 / steps);
  if (options_.profile) row.ops = profile.ops();
  DSV4_TRY(Rewind(0, batch, steps + 1));
  return row;
}

Result<model::StepOutput> BenchRuns::VerifyStep(std::span<const int32_t> tokens) {
  const model::SequenceChunk chunk = {
      .state = &states_[0], .tokens = tokens, .logits = model::LogitsRows::kAll};
  DSV4_ASSIGN_OR_RETURN(model::StepOutput output, model_.Step(std::span(&chunk, 1)));
  sampling::SamplingParams greedy;
  greedy.temperature = 0;
  sampling::Sampler sampler(greedy, {}, -1);
  // As the engine does of a draft that is right.
  for (int64_t row = 0; row < output.num_rows(0); ++row) {
    if (const auto token = sampler.Sample(output.Row(0, row)); !token) return Error(token.error());
  }
  return output;
}

// As the engine verifies a draft: the backend chooses, where it gains by it.
Status BenchRuns::TimedVerifyStep(std::span<const int32_t> tokens) {
  if (!model_.asynchronous() || !model_.can_queue()) {
    const Result<model::StepOutput> output = VerifyStep(tokens);
    return output ? Status() : output.error();
  }
  const std::vector<sampling::ChoiceParams> greedy(tokens.size(), {.temperature = 0.0F});
  const model::DecodeChunk chunk{.state = &states_[0],
                                 .token = tokens[0],
                                 .choice = greedy[0],
                                 .draft = tokens.subspan(1),
                                 .draft_choices = std::span(greedy).subspan(1)};
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<model::QueuedStep> step,
                               model_.QueueDecode(std::span(&chunk, 1), {}));
  const auto chosen = step->Wait();
  return chosen ? Status() : chosen.error();
}

Result<BenchRow> BenchRuns::Verify(int64_t rows) {
  BenchRow row = NewRow();
  row.depth = depth_;
  row.verify = true;
  row.tokens = rows;
  random_.seed(options_.seed);
  std::vector<std::vector<int32_t>> tokens = {RandomTokens(rows)};
  DSV4_ASSIGN_OR_RETURN(model::StepOutput output, VerifyStep(tokens.back()));
  if (options_.check) {  // Each row by itself, behind those in front of it.
    DSV4_TRY(Rewind(0, 1, rows));
    for (int64_t i = 0; i < rows; ++i) {
      DSV4_ASSIGN_OR_RETURN(const model::StepOutput alone,
                            VerifyStep(std::span(tokens.back()).subspan(static_cast<size_t>(i), 1)));
      if (std::memcmp(alone.logits.data(), output.Row(0, i).data(), alone.logits.size_bytes()) != 0) {
        return Error(Internal(fmt::format("{} at depth {}: row {} differs from a step of its own",
                                          Counted(rows, "row"), depth_, i)));
      }
    }
  }
  DSV4_TRY(Rewind(0, 1, rows));
  constexpr int kWarmUp = 4;  // A device takes a step that it knows another way.
  for (int i = 0; i < kWarmUp; ++i) {
    DSV4_TRY(TimedVerifyStep(tokens.back()));
    DSV4_TRY(Rewind(0, 1, rows));
  }
  const auto row_begin = Clock::now();
  int steps = 0;
  for (; steps < options_.repeat || (Seconds(row_begin) < kShortRow && steps < kMaxRepeat); ++steps) {
    tokens.push_back(RandomTokens(rows));
    output = {};
    const auto begin = Clock::now();
    DSV4_TRY(TimedVerifyStep(tokens.back()));
    row.seconds.push_back(Seconds(begin));
    DSV4_TRY(Rewind(0, 1, rows));
    Measure(row);
  }
  JudgeMachine(row);
  diag::OpProfile profile(*backend_.inner().context);
  {
    const diag::HookedBackend::Scope scope(backend_, profile.Hooks());
    const ExchangesInProfile exchanges(options_.exchanges, profile);
    for (int step = 1; step <= steps; ++step) {
      DSV4_ASSIGN_OR_RETURN(output, VerifyStep(tokens[static_cast<size_t>(step)]));
      DSV4_TRY(Rewind(0, 1, rows));
    }
  }
  row.profiled_steps = steps;
  row.cost = profile.total_cost() * (1.0 / steps);
  if (options_.profile) row.ops = profile.ops();
  return row;
}

Result<BenchRow> BenchRuns::DecodeAhead(const BenchRow& decode) {
  BenchRow row = decode;
  row.ahead = true;
  row.ops.clear();
  row.seconds.clear();
  random_.seed(options_.seed);
  const std::vector<int32_t> first = RandomTokens(decode.batch);
  std::vector<model::DecodeChunk> chunks;
  for (size_t i = 0; i < first.size(); ++i)
    chunks.push_back({.state = &states_[i], .token = first[i], .choice = {.temperature = 0.0F}});
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<model::QueuedStep> now, model_.QueueDecode(chunks, {}));
  for (size_t i = 0; i < chunks.size(); ++i) chunks[i].follows = static_cast<int64_t>(i);
  // Half of the steps warm up: what a device remembers of async steps is not what it does of others.
  const auto steps = static_cast<int64_t>(kMaxRepeat);
  TierCounters before;
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == steps / 2 + 1) before = Counters();
    const auto begin = Clock::now();
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<model::QueuedStep> next, model_.QueueDecode(chunks, {}));
    DSV4_ASSIGN_OR_RETURN(const std::vector<model::ChosenToken> chosen, now->Wait());
    static_cast<void>(chosen);
    now = std::move(next);
    if (step > steps / 2) row.seconds.push_back(Seconds(begin));
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<model::ChosenToken> last, now->Wait());
  static_cast<void>(last);
  NoteTiers(row, before);
  DSV4_TRY(Rewind(0, decode.batch, steps + 1));
  return row;
}

}  // namespace dsv4::apps
