// `dsv4 serve`: options to a running server, its drain, signals and exit codes.
#include "apps/serve/serve_command.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>

#include "apps/serve/expert_learner.h"
#include "apps/serve/loss_watch.h"
#include "apps/serve/reload.h"
#include "apps/shared/choose_backend.h"
#include "apps/shared/lost_file.h"
#include "apps/shared/model_source.h"
#include "apps/shared/rank_group.h"
#include "apps/shared/run_report.h"
#include "apps/shared/sampling_threads.h"
#include "apps/shared/speculation_flag.h"
#include "apps/shared/verify.h"
#include "apps/terminal/load_bar.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error_output.h"
#include "base/log.h"
#include "base/log_times.h"
#include "base/text.h"
#include "engine/engine_thread.h"
#include "server/api/api_error.h"
#include "server/api/browser_rules.h"
#include "server/batch/batch_worker.h"
#include "server/http/http.h"
#include "server/observe/kv_publisher.h"
#include "server/service.h"

namespace dsv4::apps {
namespace {

// `exit_code` where nothing was lost.
int ExitOf(const Status& lost, int exit_code) {
  if (lost.ok()) return exit_code;
  return Fail(lost, lost.code() == StatusCode::kDataLoss ? kExitBadInput : kExitRunFailed);
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000.0));
}

// True where browsers of this machine reach the server, or nothing else keeps other people's pages out.
bool ChecksHost(const ServeOptions& options, bool has_keys) {
  if (!options.unix_socket.empty()) return false;
  const bool is_loopback =
      options.host == "localhost" || options.host == "::1" || options.host.starts_with("127.");
  return is_loopback || !has_keys;
}

// A pod's routers hear of its end a few seconds late.
double LameDuckSeconds(const ServeOptions& options) {
  if (options.lame_duck_seconds) return *options.lame_duck_seconds;
  constexpr double kInPod = 5.0;
  return std::getenv("KUBERNETES_SERVICE_HOST") != nullptr ? kInPod : 0.0;
}

std::string NameOf(const ServeOptions& options, const ModelSource& source) {
  if (!options.name.empty()) return options.name;
  if (source.synthetic()) return source.name();
  return std::filesystem::weakly_canonical(source.name()).filename().string();
}

// Tokenizer and chat format of the model that will be loaded.
Result<server::ServedModel> LoadServedModel(const ServeOptions& options, const ModelSource& source) {
  DSV4_ASSIGN_OR_RETURN(const std::string directory, source.RequireTextDirectory());
  DSV4_ASSIGN_OR_RETURN(session::TextModel text, session::TextModel::Load(directory, options.revision));
  DSV4_ASSIGN_OR_RETURN(const model::ModelConfig config, source.Config());
  session::WarnOfOtherBos(config.bos_token_ids, *text.special);
  DSV4_TRY(text.SetVocabSize(config.vocab_size, source.name()));
  // Made now, not by the first request that needs it.
  if (const auto trie = text.Trie(); !trie) {
    LogWarning(fmt::format("response_format, strict tools and tool_choice are not served: {}",
                           trie.error().message()));
  }
  server::ServedModel served(std::move(text));
  served.id = NameOf(options, source);
  served.aliases = options.aliases;
  served.created = std::time(nullptr);
  served.longest_token_bytes = served.tokenizer.longest_token_bytes();
  return served;
}

// Defaults of requests that do not say.
Status SetDefaults(const ServeOptions& options, server::ServedModel& served) {
  served.both_reasoning_fields = options.both_reasoning_fields;
  served.role = options.role == "prefill"  ? server::ServerRole::kPrefill
                : options.role == "decode" ? server::ServerRole::kDecode
                                           : server::ServerRole::kBoth;
  served.shares_states = !options.prefix_cache_dir.empty();
  served.refuse_unknown_fields = options.unknown_fields == "refuse";
  served.defaults = options.defaults;
  served.own_sampling_while_thinking = options.thinking_sampling == "model";
  served.default_thinking.mode =
      options.thinking_mode == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
  if (!served.profile->default_effort.empty())
    served.default_thinking.effort = served.profile->default_effort;
  if (options.effort.empty()) return {};
  const chat::JsonValue asks =
      chat::JsonValue::Object({{"reasoning_effort", chat::JsonValue::String(options.effort)}});
  Result<chat::ThinkingSettings> thinking =
      chat::ResolveThinking(*served.profile, asks, served.default_thinking);
  if (!thinking) return thinking.error().WithContext("--effort");
  served.default_thinking = std::move(*thinking);
  return {};
}

server::Verification ToVerification(const diag::VerifySummary& summary) {
  return {.drift = summary.verdict() == diag::VerifyVerdict::kDrift,
          .text = diag::ToText(summary),
          .num_verified = summary.num_verified,
          .num_dropped = summary.num_dropped,
          .num_past_bound = summary.num_past_bound,
          .num_top1_changed = summary.num_top1_changed,
          .mean_error = summary.mean_error,
          .worst_error = summary.worst_error};
}

// Patience of a start with the hash of small weights, so that the first request finds what is kept: a twentieth
// of the loading. The least is for toys, where others have the cores.
std::chrono::milliseconds HashPatience(std::chrono::duration<double> loaded_in) {
  constexpr std::chrono::milliseconds kLeast(20);
  constexpr std::chrono::milliseconds kMost(200);
  return std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(loaded_in / 20), kLeast, kMost);
}

// Null without --prefix-cache-dir.
Result<std::unique_ptr<engine::PrefixDisk>> OpenPrefixDisk(const ServeOptions& options,
                                                           const model::Model& model) {
  if (options.prefix_cache_dir.empty()) return nullptr;
  if (const auto origin = model.Origin(HashPatience(options.loaded_in));
      !origin && origin.error().code() != StatusCode::kUnavailable) {
    return Error(origin.error());
  }
  DSV4_ASSIGN_OR_RETURN(
      std::unique_ptr<engine::PrefixDisk> disk,
      engine::PrefixDisk::Open({.directory = options.prefix_cache_dir,
                                .max_bytes = options.prefix_cache_disk_mib << 20,
                                .origin = [&model] { return model.Origin(std::chrono::milliseconds(0)); }},
                               [&model](std::span<const std::byte> bytes, uint64_t origin) {
                                 return model.DeserializeSnapshot(bytes, origin);
                               }));
  const engine::PrefixDirectory::Findings& findings = disk->findings();
  LogInfo(fmt::format("prefix cache on disk: dir={} states={} bytes={} damaged={} unfinished={} foreign={}",
                      options.prefix_cache_dir, disk->stats().num_states, disk->stats().num_bytes,
                      disk->stats().num_rejected, findings.num_unfinished, findings.num_foreign));
  return disk;
}

// Null without --kv-events.
Result<std::unique_ptr<server::KvPublisher>> OpenKvEvents(const ServeOptions& options,
                                                          const std::string& model_id, bool on_device) {
  if (options.kv_events.empty()) return nullptr;
  std::string topic = options.kv_events_topic;
  if (topic.empty()) topic = fmt::format("kv@{}:{}@{}", server::MachineName(), options.port, model_id);
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<server::KvPublisher> events,
                        server::KvPublisher::Open({.endpoint = options.kv_events,
                                                   .replay_endpoint = options.kv_events_replay,
                                                   .topic = topic,
                                                   .block_tokens = options.kv_block_tokens,
                                                   .medium = on_device ? "GPU" : "CPU",
                                                   .named_members = options.kv_events_form == "maps"}));
  LogInfo(
      fmt::format("kv events: {} topic={} replay={}", events->endpoint(), topic, events->replay_endpoint()));
  return events;
}

// The part of a device's memory beside the weights that is for states.
constexpr double kOfRoomForStates = 0.9;
// Memory of states that are kept for reuse, where no option says: MiB, and on a device a part of that room.
constexpr int64_t kKeptMib = 1024;
constexpr double kOfRoomForKept = 0.25;
// Places of a server that was not told how many: on the host, on a device at most, and where several ranks divide a model.
constexpr int64_t kPlacesOnHost = 64;
constexpr int64_t kMostPlaces = 512;
constexpr int64_t kPlacesOfRanks = 256;
// Tokens of a sequence for which a place has memory. Longer ones take others' places as they grow.
constexpr int64_t kTokensOfPlace = 2048;

// Says how prompts are read beside answers.
std::string PromptsLine(const engine::PrefillPolicy& policy) {
  const engine::PrefillLimits& limits = policy.limits();
  const std::string gap = limits.max_gap <= 0.0
                              ? "no bound on the time between two tokens"
                              : fmt::format("{} of {:.3g} s for the time between two tokens",
                                            limits.gap_is_bound ? "a bound" : "an aim", limits.max_gap);
  if (limits.max_beside_decode > 0)
    return fmt::format("Prompts beside answers: up to {} a step, {}",
                       Counted(limits.max_beside_decode, "token"), gap);
  std::string line = fmt::format("Prompts beside answers: by the prices of steps, {}", gap);
  if (!policy.prices().knows_prefill()) return line + "; none measured yet";
  for (int64_t rows = 8; rows <= policy.prices().largest_mixed(); rows *= 8) {
    line += fmt::format("{} {} {:.3g} ms", rows == 8 ? "; measured:" : ",", Counted(rows, "token"),
                        1e3 * policy.prices().Mixed(0, rows));
  }
  return line;
}

int PlacesFor(const ServeOptions& options, const model::Model& model) {
  if (options.max_sequences.has_value()) return static_cast<int>(*options.max_sequences);
  int64_t places = kPlacesOnHost;
  if (model.asynchronous()) places = model.options().group != nullptr ? kPlacesOfRanks : kMostPlaces;
  if (options.state_mib > 0) {
    const int64_t tokens = std::min(kTokensOfPlace, model.config().max_position_embeddings);
    places = std::min(places, (options.state_mib << 20) / std::max<int64_t>(model.MostStateBytes(tokens), 1));
  }
  const int64_t step_tokens =
      options.max_step_tokens > 0 ? options.max_step_tokens : model.options().max_chunk_tokens;
  return static_cast<int>(std::clamp<int64_t>(places, 1, step_tokens));
}

// Whether counts may be those of a whole model, which the next start wants.
bool SeesAllLayers(const ServeOptions& options) {
  return options.model.group == nullptr && options.model.max_layers == 0;
}

// The file of what is learned; empty where there is no place for one.
std::string LearnedPath(const ServeOptions& options, const ModelSource& source) {
  const std::string& named = options.model.expert_profile;
  return named.empty() || named == "off" ? ExpertProfilePath(source) : named;
}
constexpr std::string_view kNoPlace = "there is no home, and no DSV4_EXPERT_PROFILES";

// Before the model is loaded, which may take minutes.
Status CheckLearning(const ServeOptions& options) {
  if (options.learn_experts != "on") return {};
  if (options.model.group != nullptr)
    return InvalidArgument("serve --learn-experts on: a rank sees its own layers only; want no --ranks");
  if (!SeesAllLayers(options)) {
    return InvalidArgument(
        "serve --learn-experts on: a profile is of all layers of a model; want no --max-layers");
  }
  return {};
}
Status CheckLearnedPath(const ServeOptions& options, const ModelSource& source) {
  if (options.learn_experts != "on") return {};
  const std::string path = LearnedPath(options, source);
  if (path.empty()) return InvalidArgument(fmt::format("serve --learn-experts on: {}", kNoPlace));
  return CheckExpertProfilePath(path).WithContext("serve --learn-experts on");
}

// Null where nothing is to be learned; of "auto" where there is no place for it, too.
Result<std::unique_ptr<ExpertLearner>> MakeLearner(const ServeOptions& options, const ModelSource& source,
                                                   const model::Model& model, diag::HookedBackend& backend) {
  const std::string& named = options.model.expert_profile;
  const model::ExpertSplit& split = model.options().experts;
  // Which experts the host has decides bits: the same requests would get other answers after the next start.
  const bool wanted =
      options.learn_experts == "on" || (named.empty() && !split.all_resident() && split.host == 0);
  if (!wanted) return std::unique_ptr<ExpertLearner>();
  const std::string path = LearnedPath(options, source);
  if (path.empty()) {  // With "on" that was an error before.
    LogWarning(fmt::format("experts: what requests choose is not kept: {}", kNoPlace));
    return std::unique_ptr<ExpertLearner>();
  }
  DSV4_ASSIGN_OR_RETURN(std::string weights, source.WeightsStamp());
  auto learner = std::make_unique<ExpertLearner>(
      backend, LearnerOptions{.path = path,
                              .model = source.name(),
                              .weights = std::move(weights),
                              .num_layers = model.num_layers(),
                              .num_experts = model.config().n_routed_experts});
  if (const Status status = learner->CheckFile(); !status.ok()) {
    if (options.learn_experts == "on") return Error(status.WithContext("serve --learn-experts on"));
    LogWarning("experts: what requests choose is not kept: " + status.message());
    return std::unique_ptr<ExpertLearner>();
  }
  LogInfo(fmt::format("experts: what requests choose is counted in some steps, and kept in {}", path));
  return learner;
}

// `backend` is what the model runs on, whatever watches it; `verifier` and `learner` may be null.
int Serve(const ServeOptions& options, model::Model& model, const ops::Backend& backend,
          const speculation::Choice& speculation, server::ServedModel& served,
          std::vector<std::string> api_keys, diag::Verifier* verifier, ExpertLearner* learner,
          const SlotTrade& trade) {
  const Result<std::unique_ptr<engine::PrefixDisk>> disk = OpenPrefixDisk(options, model);
  if (!disk) {
    return Fail(disk.error().WithContext("--prefix-cache-dir"), kExitRunFailed);
  }
  server::Metrics metrics(served.id, options.version, *server::ParseMetricNames(options.metric_names));
  if (*disk != nullptr) metrics.WatchDisk([&] { return (*disk)->stats(); });
  if (model.options().experts.cached > 0) {
    // Steps that checked the split are no request's.
    metrics.WatchExperts([&backend, before = backend::ExpertCacheCountersOf(backend)] {
      const backend::ExpertCacheCounters now = backend::ExpertCacheCountersOf(backend);
      return server::ExpertCacheStats{now.slots, now.hits - before.hits, now.misses - before.misses,
                                      now.bytes - before.bytes};
    });
  }
  if (learner != nullptr) metrics.WatchLearning([learner] { return learner->num_tokens(); });
  SlotTrader trader(trade, [&backend](int64_t slots) { return backend::SetExpertSlots(backend, slots); });
  SamplingThreads sampling_threads(*backend.context);
  const int places = PlacesFor(options, model);
  const auto kv_events = OpenKvEvents(options, served.id, model.asynchronous());
  if (!kv_events) return Fail(kv_events.error(), kExitRunFailed);
  auto owned_engine = std::make_unique<engine::Engine>(
      model,
      engine::EngineOptions{.max_step_tokens = options.max_step_tokens,
                            .max_prefill_beside_decode = options.max_prefill_beside_decode.value_or(0),
                            .first_token_target = options.first_token_seconds,
                            .max_gap = options.max_gap_seconds,
                            .max_sequences = places,
                            .max_context = options.context,
                            .max_state_bytes = options.state_mib << 20,
                            .prefix_cache_bytes = options.prefix_cache_mib.value_or(kKeptMib) << 20,
                            .checkpoint_tokens = options.prefix_cache_every,
                            .block_tokens = options.kv_block_tokens,
                            .block_watcher = kv_events->get(),
                            .prefix_disk = disk->get(),
                            .watcher = verifier,
                            .threads = &sampling_threads.pool(),
                            .speculation = SpeculationOf(speculation, model)},
      served.AllowedTokens());
  // Schedulers read them before the first request.
  metrics.OnStep({.stats = owned_engine->stats()});
  const std::string prompts_line = PromptsLine(owned_engine->prefill_policy());
  std::atomic<double> busy_seconds = 0.0;
  engine::EngineThread engine(std::move(owned_engine), {.max_waiting = options.max_waiting},
                              [&](const engine::StepReport& report) {
                                metrics.OnStep(report);
                                busy_seconds = busy_seconds + report.seconds;
                                if (learner != nullptr) learner->OnStep();
                                // Kept states lie beside those that run.
                                if (trade.any())
                                  trader.OnStep(report.stats.state_bytes + report.stats.cache_bytes);
                              });
  served.context_length = engine.context_length();
  if (served.context_length < 2) {
    return Fail(InvalidArgument(fmt::format("--state-mib {}: too little for a sequence of two tokens",
                                            options.state_mib)),
                kExitBadUsage);
  }
  std::function<server::Verification()> verification;
  if (verifier != nullptr) verification = [verifier] { return ToVerification(verifier->Summary()); };
  Result<std::unique_ptr<server::ResponseStore>> responses = server::ResponseStore::Open(
      {.directory = options.responses_dir, .max_bytes = options.responses_mib << 20});
  if (!responses) return Fail(responses.error().WithContext("--responses-dir"), kExitRunFailed);
  std::unique_ptr<server::BatchStore> batches;
  if (!options.batches_dir.empty()) {
    auto opened =
        server::BatchStore::Open({.directory = options.batches_dir, .max_bytes = options.batches_mib << 20});
    if (!opened) return Fail(opened.error().WithContext("--batches-dir"), kExitRunFailed);
    batches = std::move(*opened);
  }
  std::unique_ptr<server::AccessLog> access_log;
  if (!options.access_log.empty()) {
    auto opened = server::AccessLog::Open(options.access_log);
    if (!opened) return Fail(opened.error().WithContext("--access-log"), kExitBadInput);
    access_log = std::move(*opened);
  }
  std::unique_ptr<server::TraceExporter> traces;
  auto trace_options = server::TraceOptions::Read(
      options.otlp_endpoint, [](const char* name) -> const char* { return std::getenv(name); });
  if (!trace_options) return Fail(trace_options.error(), kExitBadUsage);
  if (!trace_options->url.empty() && !trace_options->is_off) {
    LogInfo(fmt::format("traces go to {}", trace_options->url));
    traces = std::make_unique<server::TraceExporter>(std::move(*trace_options), served.id, options.version);
  }
  std::vector<std::string> hosts = options.allowed_hosts;
  hosts.insert(hosts.end(), {options.host, server::MachineName()});
  const bool has_keys = !api_keys.empty();
  const bool checks_host = ChecksHost(options, has_keys);
  const BackendName ran_on = SplitBackendName(backend.name);
  server::Service service(served, engine, metrics,
                          {.api_keys = std::move(api_keys),
                           .open_metrics = options.open_metrics,
                           .cors_origin = options.cors_origin,
                           .checks_host = checks_host,
                           .allowed_hosts = std::move(hosts),
                           .version = options.version,
                           .max_reply_bytes = static_cast<size_t>(options.max_body_mib) << 20,
                           .default_timeout_seconds = options.timeout_seconds,
                           .verification = std::move(verification),
                           .cache_secret = *disk != nullptr ? (*disk)->secret() : std::string(),
                           .model_path = options.model.model,
                           .max_sequences = places,
                           .backend = ran_on.backend,
                           .device = ran_on.device,
                           .responses = responses->get(),
                           .kv_events = kv_events->get(),
                           .batches = batches.get(),
                           .access_log = access_log.get(),
                           .traces = traces.get()});
  if (options.run) {
    GoOnWithoutLostFiles();
    std::atomic<bool> is_lost = false;
    LossWatch watch(options.model.group.get(), [&] { is_lost = true; });
    const int exit_code = options.run({.service = service,
                                       .engine = engine,
                                       .places = places,
                                       .busy_seconds = [&] { return busy_seconds.load(); },
                                       .is_lost = [&] { return is_lost.load(); }});
    return ExitOf(watch.Stop(), exit_code);
  }
  std::unique_ptr<server::BatchWorker> batch_worker;
  if (batches != nullptr) {
    batch_worker = std::make_unique<server::BatchWorker>(
        *batches,
        [&](server::HttpRequest request, uint64_t owner) {
          return service.HandleOfBatch(std::move(request), owner);
        },
        std::min<int64_t>(places, options.max_waiting));
  }
  Result<std::unique_ptr<server::HttpServer>> http = server::HttpServer::Listen(
      {.host = options.host,
       .port = options.port,
       .unix_socket = options.unix_socket,
       .tls_certificate = options.tls_certificate,
       .tls_key = options.tls_key,
       .max_body_bytes = static_cast<uint64_t>(options.max_body_mib) << 20,
       .client_timeout = Milliseconds(options.client_seconds),
       .keep_alive_interval = Milliseconds(options.keep_alive_seconds),
       .drain_timeout = Milliseconds(options.drain_seconds),
       .lame_duck = Milliseconds(LameDuckSeconds(options)),
       .trusted_proxies = options.trusted_proxies},
      [&](server::HttpRequest request) { return service.Handle(std::move(request)); },
      [&](server::HttpRequest& head) { return service.AnswerAtOnce(head); },
      [](int status, std::string_view message) { return server::OpenAiError(status, message); });
  if (!http) {
    return Fail(http.error(),
                http.error().code() == StatusCode::kInvalidArgument ? kExitBadUsage : kExitRunFailed);
  }
  // Scripts wait for this line: it says where, that answers will come, and that a signal ends the server in order.
  (*http)->HandleSignals([&] { Reload(options, service, access_log.get(), **http); });
  if (const std::string warning = OpenToOthers(options, has_keys); !warning.empty()) LogWarning(warning);
  PrintError("dsv4 serves {} at {} on {}{} (context {}, {} at a time)\n", served.id, (*http)->address(),
             backend.name, RanksText(options.model), served.context_length, places);
  PrintError("Where a request says nothing: {}\n",
             SettingsLine(served.profile, served.default_thinking.mode, served.default_thinking.effort, {}));
  PrintError("{}\n", prompts_line);
  GoOnWithoutLostFiles();
  LossWatch watch(options.model.group.get(), [&] { (*http)->Shutdown(); });
  (*http)->Run([&] {
    service.StopBeingReady();
    batch_worker.reset();  // Its requests are asked again at the next start.
    PrintError("dsv4 stops serving {}, {} to finish\n", served.id,
               Counted(engine.stats().num_running + engine.stats().num_waiting, "request"));
  });
  // By Ctrl-C a shell's loop ends too; SIGTERM is an end in order.
  return ExitOf(watch.Stop(), (*http)->stop_signal() == SIGINT ? kExitInterrupted : kExitOk);
}

// Large bodies and their texts go back to the system when they are freed. Without this glibc learns to take them from the heap. There the
// remains of small requests hold their pages: 100 MiB after a few dozen bodies of 23 MiB.
void KeepLargeAllocationsApart() {
  constexpr int kLargeAllocation = 4 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kLargeAllocation);
}

}  // namespace

int RunServeCommand(const ServeOptions& options) {
  SetLogTimes(options.log_times);
  KeepLargeAllocationsApart();
  // A log that is full, or that is not read, holds up no request and no end.
  const BackgroundErrors background;
  // A reload that comes while the model loads asks for what will be read anyway.
  if (!options.run) std::signal(SIGHUP, SIG_IGN);
  // Before a model is read.
  const auto speculation = ParseSpeculation(options.speculation, options.verify_every > 0);
  if (!speculation) return Fail(speculation.error(), kExitBadUsage);
  const int64_t step_tokens =
      options.max_step_tokens > 0 ? options.max_step_tokens : PassTokens(options.model);
  const auto refuse = [](std::string why) { return Fail(InvalidArgument(std::move(why)), kExitBadUsage); };
  if (options.max_sequences.has_value() && step_tokens < *options.max_sequences) {
    return refuse(
        fmt::format("a step of {} (--max-step-tokens, else --pass-tokens) is less "
                    "than --max-sequences {}: not every answer would move in a step",
                    Counted(step_tokens, "token"), *options.max_sequences));
  }
  if (options.verify_every > 0 && options.model.group != nullptr)
    return refuse("serve --verify: sees one rank's part only; want no --ranks");
  if (options.verify_every > 0 && options.model.backend == "reference")
    return refuse("serve --verify: the backend is the reference itself; wanted another --backend");
  if (!options.prefix_cache_dir.empty() && options.model.group != nullptr)
    return refuse(
        "serve --prefix-cache-dir: a file would hold one rank's part of a state only; want no --ranks");
  if (!options.prefix_cache_dir.empty() && options.prefix_cache_mib == int64_t{0})
    return refuse(
        "--prefix-cache-dir: a state that is read needs a place in memory, and --prefix-cache-mib is 0");
  Result<std::vector<std::string>> api_keys = ApiKeys(options);
  if (!api_keys) {
    return Fail(api_keys.error(),
                api_keys.error().message().starts_with("--api-key:") ? kExitBadUsage : kExitBadInput);
  }
  if (!options.tls_certificate.empty()) {
    const Status status = server::CheckTlsFiles(options.tls_certificate, options.tls_key);
    if (!status.ok()) return Fail(status, kExitBadInput);
  }
  const Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), LoadExitCode(source.error()));
  if (const auto config = source->Config(); !config)
    return Fail(config.error(), LoadExitCode(config.error()));
  Result<server::ServedModel> served = LoadServedModel(options, *source);
  if (!served) return Fail(served.error(), LoadExitCode(served.error()));
  if (const Status status = SetDefaults(options, *served); !status.ok()) return Fail(status, kExitBadUsage);
  // Random weights borrow another model's text side, and have no words of their own.
  if (source->synthetic()) served->card = {};
  served->defaults = session::Limited(options.defaults, served->card.max_new_tokens);
  const Result<ops::Backend> backend = MakeBackend(options.model);
  if (!backend) return Fail(backend.error(), LoadExitCode(backend.error()));
  if (const Status status = CheckLearning(options); !status.ok()) return Fail(status, kExitBadUsage);
  if (const Status status = CheckLearnedPath(options, *source); !status.ok())
    return Fail(status, kExitRunFailed);
  diag::HookedBackend watched(*backend);
  // Others run on the backend as it is.
  const bool may_learn =
      options.learn_experts == "on" ||
      (options.learn_experts == "auto" && !options.model.experts.empty() && SeesAllLayers(options));
  Result<std::unique_ptr<model::Model>> model = Error(Internal("not loaded"));
  RoomLeft left;
  const auto began = std::chrono::steady_clock::now();
  {
    LoadBar load_bar;
    model::MemoryRequest memory;
    if (options.context > 0) memory.context = options.context;
    ModelFlags flags = options.model;
    WantDrafter(*speculation, flags);
    flags.hash_weights = !options.prefix_cache_dir.empty();
    const auto checkpoint = source->Checkpoint();  // Kept, so that the load does not open another.
    if (checkpoint) served->num_bytes = (*checkpoint)->num_bytes();
    if (backend->context->memory().device().type != DeviceType::kHost)
      served->num_gpu_bytes = served->num_bytes;
    model = LoadModel(flags, *source, may_learn ? watched.backend() : *backend, load_bar.callback(), memory,
                      &watched.inner(), &left);
  }
  if (!model) return Fail(model.error(), LoadExitCode(model.error()));
  // Requests that would not fit are refused when they come, and not when memory has run out.
  ServeOptions fitting = options;
  fitting.loaded_in = std::chrono::steady_clock::now() - began;
  const int64_t wanted = options.context > 0 ? options.context : (*model)->config().max_position_embeddings;
  if (left.context < wanted) {
    LogWarning(fmt::format("context: {} of one sequence fit beside the weights, of {}{}",
                           Counted(left.context, "token"), wanted,
                           options.context > 0 ? " (--context)" : "; --context N keeps room for so many"));
    fitting.context = left.context;
  }
  // Beside those that are kept for reuse. What the plan does not know of takes a part.
  if (left.states > 0 && !left.trade.any() && options.state_mib == 0) {
    const auto room = static_cast<int64_t>(kOfRoomForStates * static_cast<double>(left.states));
    const int64_t one = (*model)->MostStateBytes(std::min(wanted, left.context));
    if (!options.prefix_cache_mib.has_value())
      fitting.prefix_cache_mib =
          std::max(kKeptMib, static_cast<int64_t>(kOfRoomForKept * static_cast<double>(room >> 20)));
    fitting.state_mib = std::max((room >> 20) - *fitting.prefix_cache_mib, (one >> 20) + 1);
  }
  const int64_t kept_mib = fitting.prefix_cache_mib.value_or(kKeptMib);
  if (left.kept < kept_mib << 20) {
    fitting.prefix_cache_mib = std::max<int64_t>(left.kept >> 20, 1);
    LogWarning(
        fmt::format("--prefix-cache-mib: memory has room for {} of {}", *fitting.prefix_cache_mib, kept_mib));
  }
  // Sequences give way to each other before slots are fewer than the least.
  if (left.trade.any()) {
    const int64_t mib = std::max<int64_t>(1, (left.trade.room_for_states() - left.trade.step) >> 20);
    fitting.state_mib = fitting.state_mib == 0 ? mib : std::min(fitting.state_mib, mib);
  }
  std::unique_ptr<diag::Verifier> verifier;
  if (options.verify_every > 0) {
    Result<std::unique_ptr<diag::Verifier>> made =
        MakeVerifier(options.model, *source, **model, options.verify_every);
    if (!made) return Fail(made.error(), LoadExitCode(made.error()));
    verifier = std::move(*made);
  }
  std::unique_ptr<ExpertLearner> learner;
  if (may_learn) {
    Result<std::unique_ptr<ExpertLearner>> made = MakeLearner(options, *source, **model, watched);
    if (!made) return Fail(made.error(), kExitBadInput);
    learner = std::move(*made);
  }
  const int exit_code = Serve(fitting, **model, *backend, *speculation, *served, std::move(*api_keys),
                              verifier.get(), learner.get(), left.trade);
  if (learner != nullptr) {
    if (const Status kept = learner->Keep(); !kept.ok()) LogWarning("experts: " + kept.message());
  }
  if (verifier == nullptr) return exit_code;
  const diag::VerifySummary found = verifier->Summary();
  PrintError("{}\n", diag::ToText(found));
  return found.verdict() == diag::VerifyVerdict::kDrift ? kExitRunFailed : exit_code;
}

}  // namespace dsv4::apps
