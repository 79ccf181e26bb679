#include "apps/bench/bench_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "apps/bench/load_client.h"
#include "apps/shared/model_flags.h"
#include "base/json.h"
#include "base/read_file.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

// What people send: short questions, long texts with a question, and second turns behind one long system text.
std::vector<Json> DefaultMix(uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> countries = {"France", "Spain",  "Italy", "Japan",
                                              "Peru",   "Norway", "Egypt", "Kenya"};
  const std::vector<std::string> words = {"the",    "river", "and",   "old",   "house",  "saw",    "three",
                                          "ships",  "of",    "green", "stone", "before", "winter", "a",
                                          "letter", "came",  "from",  "city",  "people", "sang"};
  const auto text = [&](size_t num_words) {
    std::string out;
    for (size_t i = 0; i < num_words; ++i)
      out += (i > 0 ? " " : "") + words[random() % words.size()] + (random() % 12 == 0 ? "." : "");
    return out;
  };
  const auto question = [&](size_t i) {
    return fmt::format("What is the capital of {}?", countries[i % countries.size()]);
  };
  const auto message = [](const char* role, const std::string& content) {
    return Json{{"role", role}, {"content", content}};
  };
  const std::string system = text(300);
  std::vector<Json> mix;
  for (size_t i = 0; i < 20; ++i) {
    if (i % 5 < 3) {
      mix.push_back(Json::array({message("user", question(i))}));
    } else if (i % 5 == 3) {
      mix.push_back(Json::array({message("user", text(200 + random() % 800) + "\n\n" + question(i))}));
    } else {
      mix.push_back(Json::array({message("system", system), message("user", question(i)),
                                 message("assistant", text(20)), message("user", text(10) + "?")}));
    }
  }
  return mix;
}

Result<std::vector<Json>> ReadPrompts(const ServerBenchOptions& options) {
  if (options.prompts_path.empty()) return DefaultMix(options.seed);
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.prompts_path, FileKind::kAny));
  std::istringstream lines(text);
  std::vector<Json> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    DSV4_ASSIGN_OR_RETURN(
        Json prompt, ParseJson(line, fmt::format("{}, prompt {}", options.prompts_path, prompts.size() + 1)));
    if (!prompt.is_object() || !prompt.contains("messages")) {
      return Error(InvalidArgument(
          fmt::format("{}, prompt {}: no messages", options.prompts_path, prompts.size() + 1)));
    }
    prompts.push_back(prompt["messages"]);
  }
  if (prompts.empty()) return Error(InvalidArgument(options.prompts_path + ": no prompt in it"));
  return prompts;
}

// Greedy, so that an answer is the same whenever it is asked for.
std::string Body(const Json& messages, int64_t output_tokens) {
  return Json{{"messages", messages}, {"temperature", 0}, {"max_tokens", output_tokens},
              {"ignore_eos", true},   {"stream", true},   {"stream_options", {{"include_usage", true}}}}
      .dump();
}

double Percentile(std::vector<double>& values, double p) {
  if (values.empty()) return 0.0;
  const auto rank = static_cast<size_t>(std::ceil(p / 100.0 * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

class Load {
 public:
  Load(const ServerBenchOptions& options, HostAndPort server, const std::vector<Json>& prompts)
      : options_(options), server_(std::move(server)) {
    for (const Json& prompt : prompts) bodies_.push_back(Body(prompt, options.output_tokens));
  }

  // The answers of a quiet server.
  Status LearnAnswers() {
    for (const std::string& body : bodies_) {
      DSV4_ASSIGN_OR_RETURN_STATUS(StreamedAnswer answer, AskStreamed(server_, options_.api_key, body));
      expected_.push_back(std::move(answer.text));
    }
    return {};
  }

  void Run() {
    resident_before_ = Resident();
    start_ = Clock::now();
    end_ =
        start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds));
    std::vector<std::thread> clients;
    if (options_.rate > 0.0) {
      std::mt19937_64 random(options_.seed + 1);
      std::exponential_distribution<double> gap(options_.rate);
      Clock::time_point next = start_;
      for (size_t i = 0; next < end_; ++i) {
        std::this_thread::sleep_until(next);
        clients.emplace_back([this, i] { Ask(i); });
        next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
      }
    } else {
      for (int i = 0; i < options_.num_streams; ++i) {
        clients.emplace_back([this] {
          while (Clock::now() < end_) Ask(next_++);
        });
      }
    }
    for (std::thread& client : clients) client.join();
    seconds_ = std::chrono::duration<double>(Clock::now() - start_).count();
    resident_after_ = Resident();
  }

  Json Report() {
    const auto times = [](std::vector<double>& values) {
      return Json{{"p50", Percentile(values, 50)},
                  {"p95", Percentile(values, 95)},
                  {"p99", Percentile(values, 99)},
                  {"max", Percentile(values, 100)}};
    };
    return {{"requests", num_answers_},
            {"refused", num_refused_},
            {"failed", num_failed_},
            {"wrong_answers", num_wrong_},
            {"first_error", first_error_},
            {"seconds", seconds_},
            {"output_tokens_per_second", static_cast<double>(num_output_) / seconds_},
            {"prompt_tokens_per_second", static_cast<double>(num_prompt_) / seconds_},
            {"share_of_prompt_reused",
             num_prompt_ > 0 ? static_cast<double>(num_cached_) / static_cast<double>(num_prompt_) : 0.0},
            {"first_token_seconds", times(first_)},
            {"inter_token_seconds", times(gaps_)},
            {"server_resident_bytes", {{"before", resident_before_}, {"after", resident_after_}}}};
  }

  bool clean() const { return num_failed_ == 0 && num_wrong_ == 0; }

 private:
  void Ask(size_t number) {
    const size_t prompt = number % bodies_.size();
    const Result<StreamedAnswer> answer = AskStreamed(server_, options_.api_key, bodies_[prompt]);
    {
      const std::lock_guard lock(mutex_);
      if (answer) {
        ++num_answers_;
        num_output_ += answer->num_output_tokens;
        num_prompt_ += answer->num_prompt_tokens;
        num_cached_ += answer->num_cached_tokens;
        first_.push_back(answer->first_seconds);
        gaps_.insert(gaps_.end(), answer->gap_seconds.begin(), answer->gap_seconds.end());
        if (!expected_.empty() && answer->text != expected_[prompt]) {
          ++num_wrong_;
          if (first_error_.empty())
            first_error_ =
                fmt::format("prompt {}: got '{}', alone '{}'", prompt, answer->text, expected_[prompt]);
        }
        return;
      }
      const bool refused = answer.error().code() == StatusCode::kResourceExhausted;
      ++(refused ? num_refused_ : num_failed_);
      if (!refused && first_error_.empty()) first_error_ = answer.error().message();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // As Retry-After asks, in small.
  }

  // Of the server; 0 when it does not say.
  double Resident() const {
    const Result<std::string> metrics = Get(server_, options_.api_key, "/metrics");
    constexpr std::string_view kName = "\nprocess_resident_memory_bytes ";
    const size_t place = metrics ? metrics->find(kName) : std::string::npos;
    return place == std::string::npos ? 0.0 : std::strtod(metrics->c_str() + place + kName.size(), nullptr);
  }

  const ServerBenchOptions& options_;
  HostAndPort server_;
  std::vector<std::string> bodies_;
  std::vector<std::string> expected_;
  Clock::time_point start_;
  Clock::time_point end_;
  std::atomic<size_t> next_ = 0;
  double seconds_ = 0.0;
  double resident_before_ = 0.0;
  double resident_after_ = 0.0;

  std::mutex mutex_;
  int64_t num_answers_ = 0;
  int64_t num_refused_ = 0;
  int64_t num_failed_ = 0;
  int64_t num_wrong_ = 0;
  int64_t num_output_ = 0;
  int64_t num_prompt_ = 0;
  int64_t num_cached_ = 0;
  std::vector<double> first_;
  std::vector<double> gaps_;
  std::string first_error_;
};

void PrintReport(const Json& report, const ServerBenchOptions& options) {
  const auto line = [&](const char* name, const char* key) {
    const Json& times = report[key];
    fmt::print("{:<14} p50 {:8.1f} ms   p95 {:8.1f} ms   p99 {:8.1f} ms   max {:8.1f} ms   p99/p50 {:.1f}\n",
               name, 1e3 * times["p50"].get<double>(), 1e3 * times["p95"].get<double>(),
               1e3 * times["p99"].get<double>(), 1e3 * times["max"].get<double>(),
               times["p99"].get<double>() / std::max(times["p50"].get<double>(), 1e-9));
  };
  fmt::print("{} in {:.1f} s: {} answers, {} refused, {} failed, {} not those of a quiet server{}\n",
             options.rate > 0.0 ? fmt::format("{} requests a second", options.rate)
                                : fmt::format("{} streams", options.num_streams),
             report["seconds"].get<double>(), report["requests"].get<int64_t>(),
             report["refused"].get<int64_t>(), report["failed"].get<int64_t>(),
             report["wrong_answers"].get<int64_t>(), options.check ? "" : " (not checked)");
  fmt::print("output {:.1f} tok/s, prompts {:.1f} tok/s, of these {:.0f} % reused\n",
             report["output_tokens_per_second"].get<double>(),
             report["prompt_tokens_per_second"].get<double>(),
             100.0 * report["share_of_prompt_reused"].get<double>());
  line("first token", "first_token_seconds");
  line("next token", "inter_token_seconds");
  const Json& resident = report["server_resident_bytes"];
  fmt::print("server memory {:.1f} MiB before, {:.1f} MiB after\n",
             resident["before"].get<double>() / 1048576.0, resident["after"].get<double>() / 1048576.0);
  if (const std::string error = report["first_error"]; !error.empty()) fmt::print("first error: {}\n", error);
}

}  // namespace

int RunServerBench(const ServerBenchOptions& options) {
  Result<HostAndPort> server = ParseServerUrl(options.url);
  if (!server) return Fail(server.error(), kExitBadUsage);
  const Result<std::vector<Json>> prompts = ReadPrompts(options);
  if (!prompts) return Fail(prompts.error(), kExitBadInput);
  Load load(options, std::move(*server), *prompts);
  if (options.check) {
    const Status learned = load.LearnAnswers();
    if (!learned.ok()) return Fail(learned, kExitRunFailed);
  }
  load.Run();
  const Json report = load.Report();
  if (options.json)
    fmt::print("{}\n", report.dump());
  else
    PrintReport(report, options);
  return load.clean() ? kExitOk : kExitRunFailed;
}

}  // namespace dsv4::apps
