// A load on a running server: clients in threads, one request each.
#include "apps/bench/bench_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "apps/bench/load_client.h"
#include "apps/bench/load_report.h"
#include "apps/bench/workload.h"
#include "apps/shared/model_flags.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

class Load {
 public:
  // Streams ask for the features in turn. Prompts that no request had before begin with number `first`.
  Load(const ServerBenchOptions& options, const Workload& workload, std::vector<Feature> features,
       size_t first)
      : options_(options), workload_(workload), features_(std::move(features)), next_(first) {}

  // The answers of a quiet server.
  Status LearnAnswers() {
    ProgressBar bar("Answers of the quiet server");
    const size_t count = workload_.num_prompts();
    for (size_t i = 0; i < count * features_.size(); ++i) {
      if (!options_.json) bar.Update(static_cast<int64_t>(i), static_cast<int64_t>(count * features_.size()));
      const std::string body = workload_.Body(i % count, features_[i / count]);
      DSV4_ASSIGN_OR_RETURN_STATUS(StreamedAnswer answer, AskStreamed(options_.url, options_.api_key, body));
      expected_.push_back(std::move(answer.text));
    }
    return {};
  }

  void Run() {
    counts_.resident_before = Resident();
    const auto ticks = [](double seconds) {
      // A clock counts 290 years.
      return std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(std::min(seconds, 1e9)));
    };
    start_ = Clock::now();
    counts_from_ = start_ + ticks(options_.warm_up);
    end_ = counts_from_ + ticks(options_.seconds);
    std::atomic<bool> over = false;
    std::jthread progress([&] { ShowProgress(over); });
    // Behind the clients, also where one cannot be started.
    const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> ends(
        &over, [](std::atomic<bool>* end) { *end = true; });
    std::vector<std::jthread> clients;
    if (options_.rate > 0.0) {
      std::mt19937_64 random(options_.seed + 1);
      std::exponential_distribution<double> gap(options_.rate);
      Clock::time_point next = start_;
      for (size_t i = 0; next < end_; ++i) {
        std::this_thread::sleep_until(next);
        clients.emplace_back([this, i] { Ask(next_++, i); });
        next += ticks(gap(random));
      }
    } else {
      for (int i = 0; i < options_.num_streams; ++i) {
        clients.emplace_back([this, i] {
          if (options_.agents) return RunAgent(i);
          while (Clock::now() < end_) Ask(next_++, static_cast<size_t>(i));
        });
      }
    }
    for (std::jthread& client : clients) client.join();
    over = true;
    progress.join();
    counts_.seconds = std::chrono::duration<double>(Clock::now() - counts_from_).count();
    counts_.resident_after = Resident();
  }

  Json Report() const { return LoadReport(options_, samples_, counts_); }
  bool clean() const { return counts_.failed == 0 && counts_.wrong == 0 && !samples_.empty(); }
  size_t next() const { return next_; }

 private:
  // Sessions one after the other. The first of each client begins at another turn.
  void RunAgent(int client) {
    AgentSession session(workload_, options_, options_.seed + 1 + static_cast<uint64_t>(client),
                         client % options_.turns);
    while (Clock::now() < end_) {
      const std::optional<std::string> answer = AskBody(session.NextBody(), nullptr, 0, Feature::kNone);
      if (answer) {
        session.Take(*answer);
      } else {
        session.Begin();
      }
    }
  }

  void ShowProgress(const std::atomic<bool>& over) {
    if (options_.json) return;
    if (StderrIsTerminal() && TerminalCanMoveCursor()) {
      ShowBar(over);
      return;
    }
    for (Clock::time_point next = start_ + std::chrono::seconds(5); !over;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (Clock::now() < next) continue;
      next += std::chrono::seconds(5);
      const std::lock_guard lock(mutex_);
      PrintError("{:.0f} s{}: {}, {}, {} waiting\n",
                 std::chrono::duration<double>(Clock::now() - start_).count(),
                 Clock::now() < counts_from_ ? " (warm-up)" : "", Counted(samples_.size(), "answer"),
                 Counted(num_output_, "output token"), num_open_.load());
    }
  }

  void ShowBar(const std::atomic<bool>& over) {
    ProgressBar bar("Load");
    const auto since = [this](Clock::time_point time) {
      return static_cast<int64_t>(std::chrono::duration<double>(time - start_).count());
    };
    while (!over) {
      {
        const std::lock_guard lock(mutex_);
        bar.Update(std::min(since(Clock::now()), since(end_)), std::max<int64_t>(since(end_), 1),
                   fmt::format("{}{}, {} open", Clock::now() < counts_from_ ? "warm-up, " : "",
                               Counted(samples_.size(), "answer"), num_open_.load()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void Ask(size_t number, size_t client) {
    const size_t count = workload_.num_prompts();
    const size_t prompt = count == 0 ? 0 : number % count;
    const size_t which = client % features_.size();
    AskBody(workload_.Body(number, features_[which]),
            expected_.empty() ? nullptr : &expected_[which * count + prompt], prompt, features_[which]);
  }

  // Whether the answer is what its request asked for.
  static bool Has(const StreamedAnswer& answer, Feature feature) {
    switch (feature) {
      case Feature::kSchema:
        return answer.text.starts_with("{") && answer.text.find("\"events\"") != std::string::npos;
      case Feature::kTool:
        return answer.has_call;
      case Feature::kLogprobs:
        return 2 * answer.num_logprobs >= answer.num_output_tokens;  // Markers have none.
      case Feature::kNone:
      case Feature::kPenalties:
        break;
    }
    return true;
  }

  // The text of the answer, compared with `expected` unless that is null; nullopt if there was none.
  std::optional<std::string> AskBody(const std::string& body, const std::string* expected, size_t prompt,
                                     Feature feature) {
    ++num_open_;
    const Clock::time_point begin = Clock::now();
    Result<StreamedAnswer> answer = AskStreamed(options_.url, options_.api_key, body);
    --num_open_;
    if (answer && !Has(*answer, feature)) {
      answer = Error(
          Internal(fmt::format("asked for {}, got '{}'", FeatureName(feature), answer->text.substr(0, 200))));
    }
    {
      const std::lock_guard lock(mutex_);
      if (answer) {
        CountSteady(*answer, begin);
        if (begin >= counts_from_) Count(*answer, std::chrono::duration<double>(begin - start_).count());
        if (begin >= counts_from_ && expected != nullptr && answer->text != *expected) {
          ++counts_.wrong;
          if (counts_.first_error.empty())
            counts_.first_error = fmt::format("prompt {} ({}): got '{}', alone '{}'", prompt,
                                              FeatureName(feature), answer->text, *expected);
        }
        return std::move(answer->text);
      }
      const bool refused = answer.error().code() == StatusCode::kResourceExhausted;
      ++(refused ? counts_.refused : counts_.failed);
      if (counts_.first_error.empty()) counts_.first_error = answer.error().message();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // As Retry-After asks, in small.
    return std::nullopt;
  }

  // With the lock. Pieces of an answer have as many tokens each.
  void CountSteady(const StreamedAnswer& answer, Clock::time_point begin) {
    const auto since = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
    const double from = since(counts_from_ - begin);
    const double to = since(end_ - begin);
    double at = answer.first_seconds;
    int64_t inside = at >= from && at < to ? 1 : 0;
    for (const double gap : answer.gap_seconds) {
      at += gap;
      if (at >= from && at < to) ++inside;
    }
    const auto pieces = static_cast<double>(answer.gap_seconds.size() + 1);
    counts_.steady_tokens += static_cast<double>(answer.num_output_tokens * inside) / pieces;
  }

  // With the lock.
  void Count(StreamedAnswer& answer, double begin) {
    num_output_ += answer.num_output_tokens;
    samples_.push_back({.begin = begin,
                        .first = answer.first_seconds,
                        .seconds = answer.seconds,
                        .gaps = std::move(answer.gap_seconds),
                        .num_prompt = answer.num_prompt_tokens,
                        .num_cached = answer.num_cached_tokens,
                        .num_output = answer.num_output_tokens});
  }

  // Memory of the server; 0 when it does not say.
  double Resident() const {
    const Result<std::string> metrics = Get(options_.url, options_.api_key, "/metrics");
    constexpr std::string_view kName = "\nprocess_resident_memory_bytes ";
    const size_t place = metrics ? metrics->find(kName) : std::string::npos;
    return place == std::string::npos ? 0.0 : std::strtod(metrics->c_str() + place + kName.size(), nullptr);
  }

  const ServerBenchOptions& options_;
  const Workload& workload_;
  const std::vector<Feature> features_;
  std::vector<std::string> expected_;  // All prompts of the first feature, then of the next.
  Clock::time_point start_;
  Clock::time_point counts_from_;
  Clock::time_point end_;
  std::atomic<int64_t> num_open_ = 0;
  std::atomic<size_t> next_;

  std::mutex mutex_;
  int64_t num_output_ = 0;
  std::vector<LoadSample> samples_;
  LoadCounts counts_;
};

// As JSON, or how the loads compare. An error may have cut a character of the server's text.
void PrintReports(const ServerBenchOptions& options, const std::vector<Json>& reports) {
  if (reports.size() == 1) {
    fmt::print("{}\n", JsonText(reports[0]));
    return;
  }
  const auto rate = [&](size_t i) { return reports[i]["output_tokens_per_second"].get<double>(); };
  const double part = rate(0) > 0.0 ? rate(1) / rate(0) : 0.0;
  if (options.json) {
    fmt::print("{}\n",
               JsonText({{"plain", reports[0]}, {"features", reports[1]}, {"part_of_plain_rate", part}}));
    return;
  }
  std::vector<const char*> names;
  for (const Feature feature : options.features) names.push_back(FeatureName(feature));
  fmt::print("streams with {} in turn: {:.1f} of {:.1f} output tok/s, {:.0f} % of the plain rate\n",
             fmt::join(names, ", "), rate(1), rate(0), 100.0 * part);
}

}  // namespace

int RunServerBench(const ServerBenchOptions& options) {
  if (const Status status = CheckServerUrl(options.url); !status.ok()) return Fail(status, kExitBadUsage);
  const Result<Workload> workload = Workload::Make(options);
  if (!workload) {
    const bool by_server = workload.error().code() == StatusCode::kUnavailable ||
                           workload.error().code() == StatusCode::kInternal;
    return Fail(workload.error(), by_server ? kExitRunFailed : kExitBadInput);
  }
  // A server that is not there is told at once, not behind a load that it does not answer.
  const Result<std::string> reached = Get(options.url, options.api_key, "/metrics");
  if (!reached && (reached.error().code() == StatusCode::kUnavailable ||
                   reached.error().code() == StatusCode::kInvalidArgument))
    return Fail(reached.error(), kExitRunFailed);
  const bool checks = options.check && !workload->unique() && options.dataset_path.empty();
  std::vector<std::vector<Feature>> loads = {{Feature::kNone}};
  if (!options.features.empty()) loads.push_back(options.features);
  std::vector<Json> reports;
  bool clean = true;
  size_t next = 0;
  for (const std::vector<Feature>& features : loads) {
    Load load(options, *workload, features, next);
    if (checks) {
      const Status learned = load.LearnAnswers();
      if (!learned.ok()) return Fail(learned, kExitRunFailed);
    }
    load.Run();
    reports.push_back(load.Report());
    clean = clean && load.clean();
    next = load.next();
    if (!options.json) PrintLoadReport(reports.back(), options, checks);
  }
  if (options.json || loads.size() > 1) PrintReports(options, reports);
  return clean ? kExitOk : kExitRunFailed;
}

}  // namespace dsv4::apps
