#include "apps/bench/bench_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "apps/bench/load_client.h"
#include "apps/shared/model_flags.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/read_file.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<std::string> kWords = {"the",    "river", "and",   "old",   "house",  "saw",    "three",
                                         "ships",  "of",    "green", "stone", "before", "winter", "a",
                                         "letter", "came",  "from",  "city",  "people", "sang"};

std::string RandomText(std::mt19937_64& random, size_t num_words) {
  std::string out;
  for (size_t i = 0; i < num_words; ++i)
    out += (i > 0 ? " " : "") + kWords[random() % kWords.size()] + (random() % 12 == 0 ? "." : "");
  return out;
}

// What people send: short questions, long texts with a question, and second turns behind one long system text.
std::vector<Json> DefaultMix(uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> countries = {"France", "Spain",  "Italy", "Japan",
                                              "Peru",   "Norway", "Egypt", "Kenya"};
  const auto text = [&](size_t num_words) { return RandomText(random, num_words); };
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

// Of one request that was answered.
struct Sample {
  double begin = 0.0;  // Seconds since the load began.
  double first = 0.0;  // Seconds to the first token.
  double seconds = 0.0;
  double mean_gap = 0.0;
  int64_t num_prompt = 0;
  int64_t num_computed = 0;  // Of these, not reused.
};

class Load {
 public:
  Load(const ServerBenchOptions& options, HostAndPort server, const std::vector<Json>& prompts)
      : options_(options), server_(std::move(server)) {
    for (const Json& prompt : prompts) bodies_.push_back(Body(prompt, options.output_tokens));
  }

  bool unique() const { return options_.most_words > 0 || options_.input_tokens > 0; }

  // How many words the prompts have to have, where they are counted in tokens.
  Status Calibrate() {
    if (options_.input_tokens == 0) return {};
    constexpr size_t kSample = 2000;
    std::mt19937_64 random(options_.seed);
    const Json body = {{"prompt", RandomText(random, kSample)}};
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string reply,
                                 Post(server_, options_.api_key, "/tokenize", body.dump()));
    DSV4_ASSIGN_OR_RETURN_STATUS(const Json json, ParseJson(reply, "/tokenize"));
    words_per_token_ = static_cast<double>(kSample) / json.value("count", static_cast<double>(kSample));
    return {};
  }

  // The answers of a quiet server.
  Status LearnAnswers() {
    ProgressBar bar("Answers of the quiet server");
    for (const std::string& body : bodies_) {
      if (!options_.json)
        bar.Update(static_cast<int64_t>(expected_.size()), static_cast<int64_t>(bodies_.size()));
      DSV4_ASSIGN_OR_RETURN_STATUS(StreamedAnswer answer, AskStreamed(server_, options_.api_key, body));
      expected_.push_back(std::move(answer.text));
    }
    return {};
  }

  void Run() {
    resident_before_ = Resident();
    const auto ticks = [](double seconds) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
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
    for (std::jthread& client : clients) client.join();
    over = true;
    progress.join();
    seconds_ = std::chrono::duration<double>(Clock::now() - counts_from_).count();
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
            {"end_to_end_seconds", times(whole_)},
            {"goodput", Goodput()},
            {"longest_prompt", LongestPrompt()},
            {"server_resident_bytes", {{"before", resident_before_}, {"after", resident_after_}}}};
  }

  bool clean() const { return num_failed_ == 0 && num_wrong_ == 0; }

 private:
  // A prompt that no request had before.
  std::string UniqueBody(size_t number) const {
    std::mt19937_64 random(options_.seed ^ (0x9e3779b97f4a7c15ULL * (number + 1)));
    int64_t words = options_.fewest_words;
    if (options_.input_tokens > 0)
      words = std::max<int64_t>(
          1, static_cast<int64_t>(words_per_token_ * static_cast<double>(options_.input_tokens)));
    else
      words += static_cast<int64_t>(random() % static_cast<uint64_t>(options_.most_words - words + 1));
    const std::string text =
        fmt::format("{} {}", random() % 1'000'000,
                    RandomText(random, static_cast<size_t>(std::max<int64_t>(words - 1, 1))));
    return Body(Json::array({{{"role", "user"}, {"content", text}}}), options_.output_tokens);
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
      PrintError("{:.0f} s{}: {} answers, {} output tokens, {} waiting\n",
                 std::chrono::duration<double>(Clock::now() - start_).count(),
                 Clock::now() < counts_from_ ? " (warm-up)" : "", num_answers_, num_output_,
                 num_open_.load());
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
                   fmt::format("{}{} answers, {} open", Clock::now() < counts_from_ ? "warm-up, " : "",
                               num_answers_, num_open_.load()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  // Answers that came as fast as they should, a second.
  Json Goodput() const {
    if (options_.goodput_first <= 0.0 && options_.goodput_gap <= 0.0) return nullptr;
    const auto good = std::ranges::count_if(samples_, [&](const Sample& sample) {
      return (options_.goodput_first <= 0.0 || sample.first <= options_.goodput_first) &&
             (options_.goodput_gap <= 0.0 || sample.mean_gap <= options_.goodput_gap);
    });
    return {
        {"requests_per_second", static_cast<double>(good) / seconds_},
        {"share", samples_.empty() ? 0.0 : static_cast<double>(good) / static_cast<double>(samples_.size())}};
  }

  // The time to the first token of the longest prompts (a twentieth, one at least), and of it the share of the machine that their
  // tokens would take if all prompts that were being read beside them were served alike: its worst quotient.
  Json LongestPrompt() const {
    if (samples_.empty()) return nullptr;
    int64_t computed = 0;
    for (const Sample& sample : samples_) computed += sample.num_computed;
    const double rate =
        static_cast<double>(computed) / seconds_;  // Prompt tokens a second, beside the answers.
    std::vector<Sample> longest = samples_;
    std::ranges::sort(longest, {}, [](const Sample& sample) { return -sample.num_computed; });
    longest.resize(std::max<size_t>(1, longest.size() / 20));
    double worst = 0.0;
    Json found = nullptr;
    for (const Sample& one : longest) {
      if (one.num_computed == 0) continue;
      double beside = 0.0;  // Seconds of prompts that waited while this one did, itself included.
      for (const Sample& other : samples_) {
        beside += std::max(0.0, std::min(one.begin + one.first, other.begin + other.first) -
                                    std::max(one.begin, other.begin));
      }
      const double share = static_cast<double>(one.num_computed) / rate * beside / std::max(one.first, 1e-9);
      if (one.first / share < worst) continue;
      worst = one.first / share;
      found = {{"prompt_tokens", one.num_prompt},
               {"first_token_seconds", one.first},
               {"share_seconds", share},
               {"times_its_share", worst}};
    }
    return found;
  }

  void Ask(size_t number) {
    const size_t prompt = bodies_.empty() ? 0 : number % bodies_.size();
    ++num_open_;
    const Clock::time_point begin = Clock::now();
    const Result<StreamedAnswer> answer =
        AskStreamed(server_, options_.api_key, unique() ? UniqueBody(number) : bodies_[prompt]);
    --num_open_;
    {
      const std::lock_guard lock(mutex_);
      if (answer && begin < counts_from_) return;
      if (answer) {
        double sum = 0.0;
        for (const double gap : answer->gap_seconds) sum += gap;
        samples_.push_back({.begin = std::chrono::duration<double>(begin - start_).count(),
                            .first = answer->first_seconds,
                            .seconds = answer->seconds,
                            .mean_gap = answer->gap_seconds.empty()
                                            ? 0.0
                                            : sum / static_cast<double>(answer->gap_seconds.size()),
                            .num_prompt = answer->num_prompt_tokens,
                            .num_computed = answer->num_prompt_tokens - answer->num_cached_tokens});
        whole_.push_back(answer->seconds);
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
  Clock::time_point counts_from_;
  Clock::time_point end_;
  double words_per_token_ = 1.0;
  std::atomic<int64_t> num_open_ = 0;
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
  std::vector<double> whole_;  // Seconds to the end of the answer.
  std::vector<Sample> samples_;
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
             report["wrong_answers"].get<int64_t>(),
             options.check && options.most_words == 0 && options.input_tokens == 0 ? "" : " (not checked)");
  fmt::print("output {:.1f} tok/s, prompts {:.1f} tok/s, of these {:.0f} % reused\n",
             report["output_tokens_per_second"].get<double>(),
             report["prompt_tokens_per_second"].get<double>(),
             100.0 * report["share_of_prompt_reused"].get<double>());
  line("first token", "first_token_seconds");
  line("next token", "inter_token_seconds");
  line("whole answer", "end_to_end_seconds");
  if (const Json& goodput = report["goodput"]; !goodput.is_null()) {
    fmt::print("goodput {:.2f} answers a second, {:.0f} % of all\n",
               goodput["requests_per_second"].get<double>(), 100.0 * goodput["share"].get<double>());
  }
  if (const Json& longest = report["longest_prompt"]; !longest.is_null()) {
    fmt::print(
        "longest prompts: at worst {} tokens, first token after {:.2f} s, {:.2f} times its share of the "
        "machine\n",
        longest["prompt_tokens"].get<int64_t>(), longest["first_token_seconds"].get<double>(),
        longest["times_its_share"].get<double>());
  }
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
  if (const Status calibrated = load.Calibrate(); !calibrated.ok()) return Fail(calibrated, kExitRunFailed);
  if (options.check && !load.unique()) {
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
