// Figures of a load on a server.
#include "apps/bench/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/terminal/printable.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

// An operating point of agents counts where both hold (medians).
constexpr double kAgentTokensPerSecond = 50.0;
constexpr double kAgentFirstSeconds = 5.0;

double Percentile(std::vector<double>& values, double p) {
  if (values.empty()) return 0.0;
  const auto rank = static_cast<size_t>(std::ceil(p / 100.0 * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

template <typename Get>
std::vector<double> Values(const std::vector<LoadSample>& samples, Get get) {
  std::vector<double> values;
  for (const LoadSample& sample : samples) values.push_back(get(sample));
  return values;
}

template <typename Get>
int64_t Sum(const std::vector<LoadSample>& samples, Get get) {
  int64_t sum = 0;
  for (const LoadSample& sample : samples) sum += get(sample);
  return sum;
}

std::vector<double> Gaps(const std::vector<LoadSample>& samples) {
  std::vector<double> gaps;
  for (const LoadSample& sample : samples) gaps.insert(gaps.end(), sample.gaps.begin(), sample.gaps.end());
  return gaps;
}

// Seconds of output tokens behind the first, of answers that have any.
std::vector<double> TokenSeconds(const std::vector<LoadSample>& samples) {
  std::vector<double> values;
  for (const LoadSample& sample : samples) {
    if (sample.num_output > 1) values.push_back(sample.SecondsPerToken());
  }
  return values;
}

Json Times(std::vector<double> values) {
  return {{"p50", Percentile(values, 50)},
          {"p95", Percentile(values, 95)},
          {"p99", Percentile(values, 99)},
          {"max", Percentile(values, 100)}};
}

// Seconds to the first token, of answers that had text.
std::vector<double> FirstSeconds(const std::vector<LoadSample>& samples) {
  std::vector<double> values;
  for (const LoadSample& sample : samples) {
    if (sample.first > 0.0) values.push_back(sample.first);
  }
  return values;
}

// Answers that came as fast as they should. One without a count of tokens did not.
int64_t NumGood(const ServerBenchOptions& options, const std::vector<LoadSample>& samples) {
  return std::ranges::count_if(samples, [&](const LoadSample& sample) {
    return (options.goodput_first <= 0.0 || sample.first <= options.goodput_first) &&
           (options.goodput_gap <= 0.0 ||
            (sample.num_output > 0 && sample.SecondsPerToken() <= options.goodput_gap));
  });
}

bool WantsGoodput(const ServerBenchOptions& options) {
  return options.goodput_first > 0.0 || options.goodput_gap > 0.0;
}

// The time to the first token of the longest prompts (a twentieth, one at least). It is compared with a fair
// time: that of their tokens if all prompts that were read beside them were served alike. The worst quotient
// is given.
Json LongestPrompt(const std::vector<LoadSample>& samples, double seconds) {
  if (samples.empty()) return nullptr;
  const int64_t computed = Sum(samples, [](const LoadSample& sample) { return sample.num_computed(); });
  const double rate = static_cast<double>(computed) / seconds;  // Prompt tokens a second, beside the answers.
  std::vector<const LoadSample*> longest;
  for (const LoadSample& sample : samples) longest.push_back(&sample);
  std::ranges::sort(longest, {}, [](const LoadSample* sample) { return -sample->num_computed(); });
  longest.resize(std::max<size_t>(1, longest.size() / 20));
  double worst = 0.0;
  Json found = nullptr;
  for (const LoadSample* one : longest) {
    if (one->num_computed() == 0 || one->first <= 0.0) continue;
    double beside = 0.0;  // Seconds of prompts that waited while this one did, itself included.
    for (const LoadSample& other : samples) {
      beside += std::max(0.0, std::min(one->begin + one->first, other.begin + other.first) -
                                  std::max(one->begin, other.begin));
    }
    const double share =
        static_cast<double>(one->num_computed()) / rate * beside / std::max(one->first, 1e-9);
    if (one->first / share < worst) continue;
    worst = one->first / share;
    found = {{"prompt_tokens", one->num_prompt},
             {"first_token_seconds", one->first},
             {"share_seconds", share},
             {"times_its_share", worst}};
  }
  return found;
}

// Mean, median, deviation and 99th percentile in milliseconds, as `mean_NAME_ms`.
void AddMilliseconds(Json& report, const std::string& name, std::vector<double> values) {
  const auto count = static_cast<double>(std::max<size_t>(values.size(), 1));
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  report["mean_" + name + "_ms"] = 1e3 * mean;
  report["median_" + name + "_ms"] = 1e3 * Percentile(values, 50);
  report["std_" + name + "_ms"] = 1e3 * std::sqrt(squares / count);
  report["p99_" + name + "_ms"] = 1e3 * Percentile(values, 99);
}

// In the names of vLLM's `bench serve --save-result`.
void AddFieldNames(Json& report, const ServerBenchOptions& options, const std::vector<LoadSample>& samples,
                   const LoadCounts& counts) {
  const int64_t inputs = Sum(samples, [](const LoadSample& sample) { return sample.num_prompt; });
  const int64_t outputs = Sum(samples, [](const LoadSample& sample) { return sample.num_output; });
  report["backend"] = "openai-chat";
  report["duration"] = counts.seconds;
  report["completed"] = samples.size();
  report["num_prompts"] = static_cast<int64_t>(samples.size()) + counts.failed + counts.refused;
  report["total_input_tokens"] = inputs;
  report["total_output_tokens"] = outputs;
  report["request_throughput"] = static_cast<double>(samples.size()) / counts.seconds;
  report["output_throughput"] = static_cast<double>(outputs) / counts.seconds;
  report["total_token_throughput"] = static_cast<double>(inputs + outputs) / counts.seconds;
  report["request_rate"] = options.rate > 0.0 ? Json(options.rate) : Json("inf");
  report["max_concurrency"] = options.rate > 0.0 ? Json(nullptr) : Json(options.num_streams);
  if (WantsGoodput(options))
    report["request_goodput"] = static_cast<double>(NumGood(options, samples)) / counts.seconds;
  AddMilliseconds(report, "ttft", FirstSeconds(samples));
  AddMilliseconds(report, "tpot", TokenSeconds(samples));
  AddMilliseconds(report, "itl", Gaps(samples));
  AddMilliseconds(report, "e2el", Values(samples, [](const LoadSample& sample) { return sample.seconds; }));
}

// Whether agents were served as they should be.
Json AgentsReport(const ServerBenchOptions& options, const std::vector<LoadSample>& samples, double seconds) {
  std::vector<double> per_token = TokenSeconds(samples);
  std::vector<double> first = FirstSeconds(samples);
  const double of_token = Percentile(per_token, 50);
  const double of_first = Percentile(first, 50);
  const int64_t outputs = Sum(samples, [](const LoadSample& sample) { return sample.num_output; });
  const auto count = static_cast<double>(std::max<size_t>(samples.size(), 1));
  const double per_user = of_token > 0.0 ? 1.0 / of_token : 0.0;
  return {
      {"turns", options.turns},
      {"mean_input_tokens",
       static_cast<double>(Sum(samples, [](const LoadSample& sample) { return sample.num_prompt; })) / count},
      {"output_tokens_per_second", static_cast<double>(outputs) / seconds},
      {"output_tokens_per_second_per_user", per_user},
      {"first_token_seconds", of_first},
      {"counts", !samples.empty() && per_user >= kAgentTokensPerSecond && of_first < kAgentFirstSeconds}};
}

}  // namespace

Json LoadReport(const ServerBenchOptions& options, const std::vector<LoadSample>& samples,
                const LoadCounts& counts) {
  const int64_t prompt = Sum(samples, [](const LoadSample& sample) { return sample.num_prompt; });
  const int64_t cached = Sum(samples, [](const LoadSample& sample) { return sample.num_cached; });
  const int64_t output = Sum(samples, [](const LoadSample& sample) { return sample.num_output; });
  Json report = {
      {"requests", samples.size()},
      {"refused", counts.refused},
      {"failed", counts.failed},
      {"wrong_answers", counts.wrong},
      {"answers_without_usage",
       std::ranges::count(samples, int64_t{0}, [](const LoadSample& sample) { return sample.num_output; })},
      {"first_error", counts.first_error},
      {"seconds", counts.seconds},
      {"output_tokens_per_second", static_cast<double>(output) / counts.seconds},
      {"steady_output_tokens_per_second", counts.steady_tokens / options.seconds},
      {"prompt_tokens_per_second", static_cast<double>(prompt) / counts.seconds},
      {"share_of_prompt_reused",
       prompt > 0 ? static_cast<double>(cached) / static_cast<double>(prompt) : 0.0},
      {"first_token_seconds", Times(FirstSeconds(samples))},
      {"inter_token_seconds", Times(Gaps(samples))},
      {"end_to_end_seconds", Times(Values(samples, [](const LoadSample& sample) { return sample.seconds; }))},
      {"goodput", nullptr},
      {"agents", nullptr},
      {"longest_prompt", LongestPrompt(samples, counts.seconds)},
      {"server_resident_bytes", {{"before", counts.resident_before}, {"after", counts.resident_after}}}};
  if (WantsGoodput(options)) {
    const auto good = static_cast<double>(NumGood(options, samples));
    report["goodput"] = {{"requests_per_second", good / counts.seconds},
                         {"share", samples.empty() ? 0.0 : good / static_cast<double>(samples.size())}};
  }
  if (options.agents) report["agents"] = AgentsReport(options, samples, counts.seconds);
  AddFieldNames(report, options, samples, counts);
  return report;
}

void PrintLoadReport(const Json& report, const ServerBenchOptions& options, bool checked) {
  const auto line = [&](const char* name, const char* key) {
    const Json& times = report[key];
    if (times["max"] == 0.0) {
      fmt::print("{:<14} none was seen\n", name);
      return;
    }
    fmt::print("{:<14} p50 {:8.1f} ms   p95 {:8.1f} ms   p99 {:8.1f} ms   max {:8.1f} ms   p99/p50 {:.1f}\n",
               name, 1e3 * times["p50"].get<double>(), 1e3 * times["p95"].get<double>(),
               1e3 * times["p99"].get<double>(), 1e3 * times["max"].get<double>(),
               times["p99"].get<double>() / std::max(times["p50"].get<double>(), 1e-9));
  };
  fmt::print("{} in {:.1f} s: {}, {} refused, {} failed, {} not those of a quiet server{}\n",
             options.rate > 0.0 ? fmt::format("{} requests a second", options.rate)
                                : Counted(options.num_streams, "stream"),
             report["seconds"].get<double>(), Counted(report["requests"].get<int64_t>(), "answer"),
             report["refused"].get<int64_t>(), report["failed"].get<int64_t>(),
             report["wrong_answers"].get<int64_t>(), checked ? "" : " (not checked)");
  fmt::print(
      "output {:.1f} tok/s, {:.1f} while all clients asked; prompts {:.1f} tok/s, of these {:.0f} % reused\n",
      report["output_tokens_per_second"].get<double>(),
      report["steady_output_tokens_per_second"].get<double>(),
      report["prompt_tokens_per_second"].get<double>(),
      100.0 * report["share_of_prompt_reused"].get<double>());
  if (const auto uncounted = report["answers_without_usage"].get<int64_t>(); uncounted > 0)
    fmt::print("{} without a usage that counts tokens: rates of tokens leave them out\n",
               Counted(uncounted, "answer"));
  line("first token", "first_token_seconds");
  line("next token", "inter_token_seconds");
  line("whole answer", "end_to_end_seconds");
  if (const Json& agents = report["agents"]; !agents.is_null()) {
    fmt::print(
        "agents: {:.0f} tokens of input on average, {:.1f} tok/s per user and {:.2f} s to the first token "
        "(medians): {} (at least {} tok/s, under {} s)\n",
        agents["mean_input_tokens"].get<double>(), agents["output_tokens_per_second_per_user"].get<double>(),
        agents["first_token_seconds"].get<double>(),
        agents["counts"].get<bool>() ? "counts" : "does not count", kAgentTokensPerSecond,
        kAgentFirstSeconds);
  }
  if (const Json& goodput = report["goodput"]; !goodput.is_null()) {
    fmt::print("goodput {:.2f} answers a second, {:.0f} % of all\n",
               goodput["requests_per_second"].get<double>(), 100.0 * goodput["share"].get<double>());
  }
  if (const Json& longest = report["longest_prompt"]; !longest.is_null()) {
    fmt::print(
        "longest prompts: at worst {}, first token after {:.2f} s, {:.2f} times its share of the "
        "machine\n",
        Counted(longest["prompt_tokens"].get<int64_t>(), "token"),
        longest["first_token_seconds"].get<double>(), longest["times_its_share"].get<double>());
  }
  const Json& resident = report["server_resident_bytes"];
  if (resident["after"] != 0.0) {
    fmt::print("server memory {:.1f} MiB before, {:.1f} MiB after\n",
               resident["before"].get<double>() / 1048576.0, resident["after"].get<double>() / 1048576.0);
  }
  if (const std::string error = report["first_error"]; !error.empty())
    fmt::print("first error: {}\n", Printable(error));
}

}  // namespace dsv4::apps
