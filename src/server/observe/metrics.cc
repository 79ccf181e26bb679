// Prometheus metrics of server, engine, caches and experts, under both sets of names.
#include "server/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/observe/metric_names.h"

namespace dsv4::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kTokenSeconds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
const Buckets kRequestSeconds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000};
const Buckets kBatch = {1, 2, 4, 8, 16, 32, 64, 128, 256};

// 0 where the system does not say.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double size_pages = 0.0;
  double resident_pages = 0.0;
  file >> size_pages >> resident_pages;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

struct Metrics::State {
  // Figures of the prefix cache on disk.
  struct Disk {
    explicit Disk(State& state)
        : ready(state.Gauge("dsv4_prefix_disk_ready",
                            "1 while states are read and written: once the weights are hashed, until a "
                            "failure that ends it.")),
          bytes(state.Gauge("dsv4_prefix_disk_bytes", "Files of states kept for reuse.")),
          states(state.Gauge("dsv4_prefix_disk_states", "States in files that this model can use.")),
          written(state.Counter("dsv4_prefix_disk_written_total", "States written.")),
          read(state.Counter("dsv4_prefix_disk_read_total", "States read back.")),
          read_tokens(state.Counter("dsv4_prefix_disk_read_tokens_total", "Tokens of those.")),
          read_of_others(state.Counter("dsv4_prefix_disk_read_of_others_total",
                                       "States read that another server or an earlier start has written.")),
          dropped(state.Counter("dsv4_prefix_disk_dropped_total",
                                "States not written: the queue was full or the disk failed.")),
          rejected(state.Counter("dsv4_prefix_disk_rejected_total", "Damaged files, removed.")),
          evictions(state.Counter("dsv4_prefix_disk_evictions_total", "Files that gave way to others.")) {}

    void Update(const engine::PrefixDiskStats& now) {
      ready.Set(now.is_ready ? 1 : 0);
      bytes.Set(static_cast<double>(now.num_bytes));
      states.Set(static_cast<double>(now.num_states));
      written.Increment(static_cast<double>(now.num_written - last.num_written));
      read.Increment(static_cast<double>(now.num_read - last.num_read));
      read_tokens.Increment(static_cast<double>(now.num_read_tokens - last.num_read_tokens));
      read_of_others.Increment(static_cast<double>(now.num_read_of_others - last.num_read_of_others));
      dropped.Increment(static_cast<double>(now.num_dropped - last.num_dropped));
      rejected.Increment(static_cast<double>(now.num_rejected - last.num_rejected));
      evictions.Increment(static_cast<double>(now.num_evictions - last.num_evictions));
      last = now;
    }

    prometheus::Gauge& ready;
    prometheus::Gauge& bytes;
    prometheus::Gauge& states;
    prometheus::Counter& written;
    prometheus::Counter& read;
    prometheus::Counter& read_tokens;
    prometheus::Counter& read_of_others;
    prometheus::Counter& dropped;
    prometheus::Counter& rejected;
    prometheus::Counter& evictions;
    engine::PrefixDiskStats last;
  };

  // Figures of cached experts.
  struct Experts {
    explicit Experts(State& state)
        : slots(state.Gauge("dsv4_expert_cache_slots", "Cached experts that the GPU has room for.")),
          hits(state.Counter("dsv4_expert_cache_hits_total", "Chosen cached experts that were on the GPU.")),
          misses(state.Counter("dsv4_expert_cache_misses_total", "Chosen cached experts that were brought.")),
          bytes(state.Counter("dsv4_expert_cache_bytes_total", "Bytes brought for them.")) {}

    void Update(const ExpertCacheStats& now) {
      slots.Set(static_cast<double>(now.slots));
      // The GPU counts while it is read.
      hits.Increment(static_cast<double>(std::max<int64_t>(0, now.hits - last.hits)));
      misses.Increment(static_cast<double>(std::max<int64_t>(0, now.misses - last.misses)));
      bytes.Increment(static_cast<double>(std::max<int64_t>(0, now.bytes - last.bytes)));
      last = now;
    }

    prometheus::Gauge& slots;
    prometheus::Counter& hits;
    prometheus::Counter& misses;
    prometheus::Counter& bytes;
    ExpertCacheStats last;
  };

  std::string model_id;
  MetricNames names = MetricNames::kDsv4;
  prometheus::Registry registry;
  prometheus::Gauge& Gauge(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
  prometheus::Histogram& Histogram(const char* name, const char* help, const Buckets& buckets) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  prometheus::Gauge& running = Gauge("dsv4_requests_running", "Sequences with a state.");
  prometheus::Gauge& waiting = Gauge("dsv4_requests_waiting", "Requests in the queue.");
  prometheus::Gauge& usage = Gauge(
      "dsv4_kv_cache_usage_ratio",
      "Memory of running sequences as a part of what they may have; kept states give way and do not count.");
  prometheus::Family<prometheus::Gauge>& cache_info =
      BuildGauge()
          .Name("dsv4_cache_info")
          .Help("Tokens of a block, and blocks that running and kept states have room for.")
          .Register(registry);
  prometheus::Gauge* blocks = nullptr;
  prometheus::Gauge& state_bytes =
      Gauge("dsv4_state_bytes", "Memory of running sequences on the rank that has most of it.");
  prometheus::Gauge& fixed_bytes =
      Gauge("dsv4_state_fixed_bytes", "Memory of a sequence on a rank that does not grow with it.");
  prometheus::Family<prometheus::Gauge>& token_bytes =
      BuildGauge()
          .Name("dsv4_state_token_bytes")
          .Help("Memory that a token adds to a sequence on a rank.")
          .Register(registry);
  prometheus::Gauge& entry_bytes = token_bytes.Add({{"part", "entries"}});
  prometheus::Gauge& key_bytes = token_bytes.Add({{"part", "indexer_keys"}});
  prometheus::Gauge& cache_bytes =
      Gauge("dsv4_prefix_cache_bytes", "Memory of states kept for reuse on the rank that has most of it.");
  prometheus::Gauge& cache_states = Gauge("dsv4_prefix_cache_states", "States kept for reuse.");
  prometheus::Gauge& resident = Gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
  prometheus::Counter& evictions =
      Counter("dsv4_prefix_cache_evictions_total", "Kept states that gave way to others.");
  prometheus::Counter& prompts =
      Counter("dsv4_prompt_tokens_total", "Prompt tokens of admitted requests, reused ones among them.");
  prometheus::Counter& prefill = Counter("dsv4_prefill_tokens_total", "Prompt tokens computed.");
  prometheus::Counter& cached =
      Counter("dsv4_cached_tokens_total", "Prompt tokens reused instead of computed.");
  prometheus::Counter& shared = Counter(
      "dsv4_shared_prompt_tokens_total",
      "Prompt tokens with which a kept text begins; those that were not reused had no state at their place.");
  prometheus::Counter& mixed_steps =
      Counter("dsv4_mixed_steps_on_device_total",
              "Steps that were waited for, prompts among them or not, and chose their tokens on the device.");
  prometheus::Counter& output = Counter("dsv4_output_tokens_total", "Tokens sampled.");
  prometheus::Counter& published =
      Counter("dsv4_split_published_total", "Prompts read for other servers, which find their states.");
  prometheus::Counter& not_published =
      Counter("dsv4_split_not_published_total", "The same, too short for a file or of a disk that failed.");
  prometheus::Counter& states_met =
      Counter("dsv4_split_states_met_total", "Prompts whose states another server had written.");
  prometheus::Counter& states_missing =
      Counter("dsv4_split_states_missing_total",
              "Prompts that were read here, since no other server's state was there.");
  prometheus::Counter& below_threshold =
      Counter("dsv4_cache_threshold_total",
              "Requests that ended since less of their prompts was kept than they want.");
  prometheus::Counter& preemptions =
      Counter("dsv4_preemptions_total", "Sequences that gave up their state for others.");
  prometheus::Counter& steps = Counter("dsv4_steps_total", "Steps.");
  prometheus::Counter& steps_ahead = Counter(
      "dsv4_steps_ahead_total", "Steps that were queued before the tokens of the step in front were known.");
  prometheus::Counter& replayed_steps =
      Counter("dsv4_replayed_steps_total",
              "Steps that were queued as an earlier one was, without a walk through the model.");
  prometheus::Gauge& prefill_beside_decode =
      Gauge("dsv4_prefill_tokens_beside_answers",
            "Prompt tokens that the latest step with prompts and answers could read.");
  prometheus::Gauge& gap_aim =
      Gauge("dsv4_step_seconds_aim",
            "Seconds that the latest step with prompts and answers could take; 0: no limit was known.");
  prometheus::Counter& holding_steps = Counter(
      "dsv4_holding_steps_total", "Steps while prompts waited for others to be read together with them.");
  prometheus::Counter& decode_steps = Counter(
      "dsv4_decode_steps_total",
      "Steps, once for every sequence that got tokens of it; output tokens by these are tokens a step.");
  using DraftCounters =
      std::array<std::array<prometheus::Counter*, engine::kDraftDepths>, speculation::kNumSources>;
  // By the drafter, and by the token's position in its draft, from 1; the last stands for all further ones.
  DraftCounters ByDepth(const char* name, const char* help) {
    prometheus::Family<prometheus::Counter>& family = BuildCounter().Name(name).Help(help).Register(registry);
    DraftCounters counters;
    for (size_t source = 0; source < counters.size(); ++source) {
      const std::string drafter(speculation::SourceName(static_cast<speculation::Source>(source)));
      for (size_t depth = 0; depth < engine::kDraftDepths; ++depth) {
        const char* const more = depth + 1 == engine::kDraftDepths ? "+" : "";
        counters[source][depth] =
            &family.Add({{"drafter", drafter}, {"position", std::to_string(depth + 1) + more}});
      }
    }
    return counters;
  }
  DraftCounters draft = ByDepth("dsv4_draft_tokens_total", "Guessed tokens that steps have verified.");
  DraftCounters accepted = ByDepth("dsv4_accepted_draft_tokens_total", "Guessed tokens that were right.");
  prometheus::Counter& drafting_seconds =
      Counter("dsv4_drafting_seconds_total", "Time that the model's drafter has taken.");
  prometheus::Histogram& step_seconds =
      Histogram("dsv4_step_seconds", "Time of a step of the engine.", kTokenSeconds);
  prometheus::Histogram& batch = Histogram("dsv4_step_sequences", "Sequences running in a step.", kBatch);
  prometheus::Histogram& first_token = Histogram(
      "dsv4_first_token_seconds", "From the request's arrival to its first token.", kRequestSeconds);
  prometheus::Histogram& inter_token =
      Histogram("dsv4_inter_token_seconds", "Between two tokens of a choice.", kTokenSeconds);
  prometheus::Histogram& request_seconds =
      Histogram("dsv4_request_seconds", "From a request's arrival to its end.", kRequestSeconds);
  prometheus::Family<prometheus::Counter>& finished = BuildCounter()
                                                          .Name("dsv4_requests_total")
                                                          .Help("Finished generations, by what ended them.")
                                                          .Register(registry);
  prometheus::Family<prometheus::Counter>& http = BuildCounter()
                                                      .Name("dsv4_http_replies_total")
                                                      .Help("HTTP replies by route and status.")
                                                      .Register(registry);
  prometheus::Family<prometheus::Counter>& unknown_fields =
      BuildCounter()
          .Name("dsv4_unknown_request_fields_total")
          .Help("Fields of requests that are not known and change nothing, by name.")
          .Register(registry);
  // Figures of a server that verifies.
  struct Verified {
    prometheus::Gauge& drift;
    prometheus::Gauge& steps;
    prometheus::Gauge& dropped;
    prometheus::Gauge& past_bound;
    prometheus::Gauge& top1_changed;
    prometheus::Gauge& mean_error;
    prometheus::Gauge& worst_error;
  };
  std::mutex verified_mutex;
  std::optional<Verified> verified;
  engine::EngineStats last;  // The engine's thread only.
  std::mutex text_mutex;     // Guard of what follows.
  std::optional<Disk> disk;
  std::function<engine::PrefixDiskStats()> disk_stats;
  std::optional<Experts> experts;
  std::function<ExpertCacheStats()> expert_stats;
  prometheus::Counter* learned = nullptr;
  std::function<int64_t()> learned_tokens;
};

Metrics::Metrics(const std::string& model_id, const std::string& version, MetricNames names)
    : state_(std::make_unique<State>()) {
  state_->model_id = model_id;
  state_->names = names;
  BuildGauge()
      .Name("dsv4_info")
      .Help("What is running.")
      .Register(state_->registry)
      .Add({{"model", model_id}, {"version", version}})
      .Set(1);
}

Metrics::~Metrics() = default;

void Metrics::WatchDisk(std::function<engine::PrefixDiskStats()> stats) {
  const std::lock_guard lock(state_->text_mutex);
  state_->disk_stats = std::move(stats);
  state_->disk.emplace(*state_);
}

void Metrics::WatchExperts(std::function<ExpertCacheStats()> stats) {
  const std::lock_guard lock(state_->text_mutex);
  state_->expert_stats = std::move(stats);
  state_->experts.emplace(*state_);
}

void Metrics::WatchLearning(std::function<int64_t()> tokens) {
  const std::lock_guard lock(state_->text_mutex);
  state_->learned_tokens = std::move(tokens);
  state_->learned = &state_->Counter("dsv4_expert_profile_tokens_total",
                                     "Tokens whose choices of experts were counted for the model's profile.");
}

void Metrics::OnStep(const engine::StepReport& report) {
  const engine::EngineStats& now = report.stats;
  engine::EngineStats& last = state_->last;
  state_->running.Set(static_cast<double>(now.num_running));
  state_->waiting.Set(static_cast<double>(now.num_waiting));
  if (now.state_room_bytes > 0)
    state_->usage.Set(
        std::min(1.0, static_cast<double>(now.state_bytes) / static_cast<double>(now.state_room_bytes)));
  if (state_->blocks == nullptr && now.num_blocks > 0) {
    state_->blocks = &state_->cache_info.Add({{"block_size", std::to_string(now.block_tokens)},
                                              {"num_gpu_blocks", std::to_string(now.num_blocks)}});
    state_->blocks->Set(1);
  }
  state_->state_bytes.Set(static_cast<double>(now.state_bytes));
  state_->fixed_bytes.Set(static_cast<double>(now.fixed_state_bytes));
  state_->entry_bytes.Set(now.entry_bytes_per_token);
  state_->key_bytes.Set(now.indexer_key_bytes_per_token);
  state_->cache_bytes.Set(static_cast<double>(now.cache_bytes));
  state_->cache_states.Set(static_cast<double>(now.cache_states));
  state_->evictions.Increment(static_cast<double>(now.cache_evictions - last.cache_evictions));
  state_->prompts.Increment(static_cast<double>(now.num_prompt_tokens - last.num_prompt_tokens));
  state_->prefill.Increment(static_cast<double>(now.num_prefill_tokens - last.num_prefill_tokens));
  state_->shared.Increment(static_cast<double>(now.num_shared_tokens - last.num_shared_tokens));
  state_->mixed_steps.Increment(
      static_cast<double>(now.num_mixed_steps_on_backend - last.num_mixed_steps_on_backend));
  state_->cached.Increment(static_cast<double>(now.num_cached_tokens - last.num_cached_tokens));
  state_->output.Increment(static_cast<double>(now.num_output_tokens - last.num_output_tokens));
  for (size_t source = 0; source < speculation::kNumSources; ++source) {
    for (size_t depth = 0; depth < engine::kDraftDepths; ++depth) {
      const auto more = [&](const engine::EngineStats::DraftCounts& a,
                            const engine::EngineStats::DraftCounts& b) {
        return static_cast<double>(a[source][depth] - b[source][depth]);
      };
      state_->draft[source][depth]->Increment(more(now.num_draft_tokens, last.num_draft_tokens));
      state_->accepted[source][depth]->Increment(more(now.num_accepted_tokens, last.num_accepted_tokens));
    }
  }
  state_->drafting_seconds.Increment(now.drafting_seconds - last.drafting_seconds);
  state_->decode_steps.Increment(static_cast<double>(now.num_decode_steps - last.num_decode_steps));
  state_->steps.Increment(static_cast<double>(now.num_steps - last.num_steps));
  state_->steps_ahead.Increment(static_cast<double>(now.num_steps_ahead - last.num_steps_ahead));
  state_->replayed_steps.Increment(static_cast<double>(now.num_steps_replayed - last.num_steps_replayed));
  state_->prefill_beside_decode.Set(static_cast<double>(now.prefill_beside_decode));
  state_->gap_aim.Set(now.gap_aim);
  state_->holding_steps.Increment(static_cast<double>(now.num_steps_holding - last.num_steps_holding));
  const auto add = [](prometheus::Counter& counter, int64_t more) {
    counter.Increment(static_cast<double>(more));
  };
  add(state_->published, now.num_published - last.num_published);
  add(state_->not_published, now.num_not_published - last.num_not_published);
  add(state_->states_met, now.num_states_met - last.num_states_met);
  add(state_->states_missing, now.num_states_missing - last.num_states_missing);
  add(state_->below_threshold, now.num_below_threshold - last.num_below_threshold);
  state_->preemptions.Increment(static_cast<double>(now.num_preemptions - last.num_preemptions));
  if (now.num_steps != last.num_steps) {  // Else it only waited for the disk, or ended what was cancelled.
    state_->step_seconds.Observe(report.seconds);
    state_->batch.Observe(static_cast<double>(report.num_sequences));
  }
  last = now;
}

void Metrics::OnHttp(std::string_view route, int status) {
  state_->http.Add({{"route", std::string(route)}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::OnUnknownField(std::string_view name) {
  state_->unknown_fields.Add({{"field", std::string(name)}}).Increment();
}

void Metrics::OnFirstToken(double seconds) { state_->first_token.Observe(seconds); }

void Metrics::OnTokens(int64_t count, double seconds_since_last) {
  for (int64_t i = 0; i < count; ++i)
    state_->inter_token.Observe(seconds_since_last / static_cast<double>(count));
}

void Metrics::OnFinished(std::string_view reason, double seconds) {
  state_->finished.Add({{"reason", std::string(reason)}}).Increment();
  state_->request_seconds.Observe(seconds);
}

void Metrics::OnVerification(const Verification& found) {
  State& state = *state_;
  const std::lock_guard lock(state.verified_mutex);
  if (!state.verified) {
    state.verified.emplace(State::Verified{
        .drift = state.Gauge("dsv4_verify_drift", "1 when the verified steps are off."),
        .steps = state.Gauge("dsv4_verify_steps", "Decode steps computed again on the reference backend."),
        .dropped = state.Gauge("dsv4_verify_dropped_steps", "Sampled steps for which there was no time."),
        .past_bound =
            state.Gauge("dsv4_verify_past_bound_steps", "Verified steps with an error past the bound."),
        .top1_changed =
            state.Gauge("dsv4_verify_top1_changed_steps", "Verified steps with another most probable token."),
        .mean_error = state.Gauge("dsv4_verify_mean_error", "Relative error of the logits, mean."),
        .worst_error = state.Gauge("dsv4_verify_worst_error", "Relative error of the logits, largest.")});
  }
  state.verified->drift.Set(found.drift ? 1 : 0);
  state.verified->steps.Set(static_cast<double>(found.num_verified));
  state.verified->dropped.Set(static_cast<double>(found.num_dropped));
  state.verified->past_bound.Set(static_cast<double>(found.num_past_bound));
  state.verified->top1_changed.Set(static_cast<double>(found.num_top1_changed));
  state.verified->mean_error.Set(found.mean_error);
  state.verified->worst_error.Set(found.worst_error);
}

std::string Metrics::Text() const {
  state_->resident.Set(ResidentBytes());
  {
    const std::lock_guard lock(state_->text_mutex);
    if (state_->disk) state_->disk->Update(state_->disk_stats());
    if (state_->experts) state_->experts->Update(state_->expert_stats());
    if (state_->learned != nullptr)
      state_->learned->Increment(static_cast<double>(state_->learned_tokens()) - state_->learned->Value());
  }
  return prometheus::TextSerializer().Serialize(
      Named(state_->registry.Collect(), state_->names, state_->model_id));
}

}  // namespace dsv4::server
