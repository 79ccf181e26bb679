// `bench --speculation --prompts`: answers with and without drafts, timed in turns and compared.
#include "apps/bench/bench_speculation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/shared/chat_file.h"
#include "apps/shared/chat_runtime.h"
#include "apps/shared/speculation_flag.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/terminal.h"
#include "base/json.h"
#include "base/read_file.h"
#include "engine/engine.h"
#include "speculation/drafter.h"

namespace dsv4::apps {
namespace {

struct Prompt {
  std::string kind;
  std::vector<chat::Message> messages;
  std::vector<int32_t> answer;  // Given; empty: the model's own.
};

// Tokens of drafts that were verified, by source and position.
struct Drafts {
  using Counts = engine::EngineStats::DraftCounts;
  Counts verified = {};
  Counts reached = {};
  Counts accepted = {};

  static Drafts Of(const engine::EngineStats& stats) {
    return {stats.num_draft_tokens, stats.num_reached_tokens, stats.num_accepted_tokens};
  }
  void Add(const Drafts& other, int64_t times) {
    for (const auto counts : {&Drafts::verified, &Drafts::reached, &Drafts::accepted}) {
      for (size_t source = 0; source < speculation::kNumSources; ++source) {
        for (size_t depth = 0; depth < engine::kDraftDepths; ++depth)
          (this->*counts)[source][depth] += times * (other.*counts)[source][depth];
      }
    }
  }
  int64_t num_verified() const {
    int64_t sum = 0;
    for (const auto& counts : verified) sum = std::accumulate(counts.begin(), counts.end(), sum);
    return sum;
  }
  // How often a draft was right at each position where those in front were; but for the last, which is of all
  // further ones.
  std::vector<double> Acceptance(size_t source) const {
    std::vector<double> shares;
    for (size_t depth = 0; depth + 1 < engine::kDraftDepths && reached[source][depth] > 0; ++depth) {
      shares.push_back(static_cast<double>(accepted[source][depth]) /
                       static_cast<double>(reached[source][depth]));
    }
    return shares;
  }
};

// Figures of all prompts of a kind.
struct Row {
  std::string kind;
  bool given = false;
  int64_t num_prompts = 0;
  int64_t num_tokens = 0;     // Tokens of answers,
  int64_t num_steps = 0;      // and the steps that gave them with drafts,
  Drafts drafts;              // which verified these.
  int64_t num_answers = 0;    // Answers that were asked for, with drafts and without.
  double serial_seconds = 0;  // The fastest of each prompt's answers, summed up.
  double drafted_seconds = 0;
  // The least ratio of a prompt, which is the median of its pairs of answers.
  double slowest = std::numeric_limits<double>::infinity();

  double Ratio() const { return serial_seconds / drafted_seconds; }
  double DraftedAStep() const {
    return static_cast<double>(drafts.num_verified()) / static_cast<double>(num_steps);
  }
  double TokensAStep() const { return static_cast<double>(num_tokens) / static_cast<double>(num_steps); }
};

// The answer is what was given, whatever the model would say: every token costs its step all the same.
class GivenAnswer final : public sampling::TokenConstraint {
 public:
  GivenAnswer(std::vector<int32_t> answer, int64_t vocab_size)
      : answer_(std::move(answer)), mask_(static_cast<size_t>((vocab_size + 63) / 64)) {
    Set(true);
  }

  std::span<const uint64_t> Allowed() override { return mask_; }
  std::unique_ptr<sampling::TokenConstraint> Copy() const override {
    return std::make_unique<GivenAnswer>(*this);
  }
  void Accept(int32_t /*token*/) override {
    Set(false);
    ++next_;
    Set(true);
  }

 private:
  void Set(bool on) {
    if (next_ >= answer_.size()) return;
    const auto id = static_cast<size_t>(answer_[next_]);
    const uint64_t bit = uint64_t{1} << (id % 64);
    mask_[id / 64] = on ? bit : 0;
  }

  std::vector<int32_t> answer_;
  std::vector<uint64_t> mask_;
  size_t next_ = 0;
};

Result<Prompt> ReadPrompt(const std::string& line, const std::string& where,
                          const tokenizer::Tokenizer& tokenizer) {
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue object, chat::ReadJson(line, where));
  if (!object.is_object()) return Error(InvalidArgument(where + ": wanted an object"));
  Prompt prompt{.kind = "prompts", .messages = {}, .answer = {}};
  const chat::JsonValue* messages = nullptr;
  const chat::JsonValue* answer = nullptr;
  for (const auto& [name, value] : object.members()) {
    if (name == "messages") {
      messages = &value;
    } else if (name != "kind" && name != "answer") {
      return Error(InvalidArgument(
          fmt::format("{}: got a field '{}', wanted messages, kind or answer", where, Printable(name))));
    } else if (!value.is_string()) {
      return Error(InvalidArgument(fmt::format("{}, {}: wanted a text", where, name)));
    } else if (name == "kind") {
      prompt.kind = value.text();
    } else {
      answer = &value;
    }
  }
  if (messages == nullptr) return Error(InvalidArgument(where + ": no messages"));
  DSV4_ASSIGN_OR_RETURN(prompt.messages, chat::ParseMessages(*messages, where));
  if (answer != nullptr) {
    DSV4_ASSIGN_OR_RETURN(prompt.answer, tokenizer.Encode(answer->text()));
    if (prompt.answer.size() < 2)
      return Error(InvalidArgument(where + ", answer: wanted two tokens or more"));
  }
  return prompt;
}

Result<std::vector<Prompt>> ReadPrompts(const std::string& path, const tokenizer::Tokenizer& tokenizer) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kAny));
  std::istringstream lines(text);
  std::vector<Prompt> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    DSV4_ASSIGN_OR_RETURN(
        Prompt prompt, ReadPrompt(line, fmt::format("{}, prompt {}", path, prompts.size() + 1), tokenizer));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return Error(InvalidArgument(path + ": no prompt in it"));
  return prompts;
}

std::vector<int32_t> Ids(const Generation& generation) {
  std::vector<int32_t> ids;
  for (const sampling::SampledToken& token : generation.tokens) ids.push_back(token.id);
  return ids;
}

// The clock of a machine is not steady for as long as a short answer takes: such a one is asked for more often.
constexpr double kLeastSeconds = 0.4;  // Seconds of decoding, with drafts and without them each.
constexpr int kMostRepeats = 60;

class SpeculationBench {
 public:
  SpeculationBench(const SpeculationBenchOptions& options, ChatRuntime& runtime)
      : options_(options), runtime_(runtime) {}

  Status Run(const Prompt& prompt) {
    double fastest[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    std::vector<int32_t> serial;
    int64_t num_steps = 0;
    Drafts drafts;
    const auto begin = std::chrono::steady_clock::now();
    double decoded[2] = {0, 0};
    double last[2] = {0, 0};
    // Ratios of neighbours: a machine that becomes slower or quicker has changed few of them.
    std::vector<double> ratios;
    const auto is_enough = [&](int repeats) {
      return repeats >= options_.repeat &&
             (repeats >= kMostRepeats || std::min(decoded[0], decoded[1]) >= kLeastSeconds ||
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >=
                  options_.prompt_seconds);
    };
    int round = 0;
    for (; round % 2 != 0 || !is_enough(round / 2); ++round) {
      // Off, on, on, off, ...: what was first the last time is second now.
      const bool drafted = ((round + 1) / 2) % 2 == 1;
      const Drafts before = Drafts::Of(runtime_.stats());
      DSV4_ASSIGN_OR_RETURN_STATUS(const Generation generation, Answer(prompt, drafted));
      std::vector<int32_t> ids = Ids(generation);
      if (round == 0) serial = ids;
      if (ids != serial) {
        const auto [at, other] = std::ranges::mismatch(serial, ids);
        return Internal(fmt::format("prompt {} ({}): with {} drafts token {} of the answer is another one",
                                    num_prompts_ + 1, prompt.kind, drafted ? "these" : "no",
                                    at - serial.begin()));
      }
      if (drafted && generation.decode_seconds < fastest[1]) {
        num_steps = generation.num_steps;
        drafts = Drafts::Of(runtime_.stats());
        drafts.Add(before, -1);
      }
      fastest[drafted ? 1 : 0] = std::min(fastest[drafted ? 1 : 0], generation.decode_seconds);
      decoded[drafted ? 1 : 0] += generation.decode_seconds;
      last[drafted ? 1 : 0] = generation.decode_seconds;
      if (round % 2 == 1) ratios.push_back(last[0] / last[1]);
    }
    ++num_prompts_;
    Row& row = RowOf(prompt);
    ++row.num_prompts;
    row.num_tokens += static_cast<int64_t>(serial.size());
    row.num_steps += num_steps;
    row.drafts.Add(drafts, 1);
    row.num_answers += round;
    row.serial_seconds += fastest[0];
    row.drafted_seconds += fastest[1];
    const auto middle = ratios.begin() + std::ssize(ratios) / 2;
    std::nth_element(ratios.begin(), middle, ratios.end());
    row.slowest = std::min(row.slowest, *middle);
    return {};
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  Result<Generation> Answer(const Prompt& prompt, bool drafted) {
    ChatRuntime::Ask ask;
    ask.mode = chat::ThinkingMode::kChat;
    ask.sampling.temperature = 0;
    ask.max_tokens = options_.output_tokens;
    if (!drafted) ask.speculation = speculation::Choice::Off();
    if (!prompt.answer.empty()) {
      ask.max_tokens = static_cast<int64_t>(prompt.answer.size());
      ask.make_constraint = [&] {
        return std::make_unique<GivenAnswer>(prompt.answer, runtime_.model().config().vocab_size);
      };
    }
    DSV4_ASSIGN_OR_RETURN(Generation answer, runtime_.Respond(prompt.messages, ask));
    if (!prompt.answer.empty() && Ids(answer) != prompt.answer)
      return Error(Internal(fmt::format("prompt {}: the answer is not the one given", num_prompts_ + 1)));
    return answer;
  }

  Row& RowOf(const Prompt& prompt) {
    const bool given = !prompt.answer.empty();
    const auto found = std::ranges::find_if(
        rows_, [&](const Row& row) { return row.kind == prompt.kind && row.given == given; });
    if (found != rows_.end()) return *found;
    rows_.push_back({.kind = prompt.kind, .given = given});
    return rows_.back();
  }

  const SpeculationBenchOptions& options_;
  ChatRuntime& runtime_;
  std::vector<Row> rows_;
  int64_t num_prompts_ = 0;
};

void PrintTable(const std::vector<Row>& rows) {
  fmt::print("{:16} {:>7} {:>7} {:>11} {:>11} {:>7} {:>8} {:>7} {:>8}\n", "kind", "prompts", "tokens",
             "off tok/s", "on tok/s", "ratio", "at most", "worst", "drafted");
  bool given = false;
  for (const Row& row : rows) {
    const auto tokens = static_cast<double>(row.num_tokens);
    given = given || row.given;
    fmt::print("{:16} {:>7} {:>7} {:>11.1f} {:>11.1f} {:>7.2f} {:>8.2f} {:>7.2f} {:>8.2f}\n",
               Printable(row.kind) + (row.given ? " *" : ""), row.num_prompts, row.num_tokens,
               tokens / row.serial_seconds, tokens / row.drafted_seconds, row.Ratio(), row.TokensAStep(),
               row.slowest, row.DraftedAStep());
  }
  for (const Row& row : rows) {
    for (size_t source = 0; source < speculation::kNumSources; ++source) {
      const std::vector<double> shares = row.drafts.Acceptance(source);
      if (shares.empty()) continue;
      fmt::print("{:16} {} drafts right by depth: {:.2f}\n", Printable(row.kind) + (row.given ? " *" : ""),
                 speculation::SourceName(static_cast<speculation::Source>(source)), fmt::join(shares, ", "));
    }
  }
  fmt::print(
      "All answers are the same with and without. ratio: on / off. at most: tokens a step, the ratio if "
      "further rows of a "
      "step cost nothing. worst: the least ratio of one prompt, the median of its pairs of answers. drafted: "
      "tokens that a step verified.\n");
  if (given) fmt::print("* The answer is given, and the model made to say it.\n");
}

void PrintJson(const SpeculationBenchOptions& options, const std::vector<Row>& rows) {
  Json document = {{"drafter", options.drafter}, {"repeat", options.repeat}, {"rows", Json::array()}};
  for (const Row& row : rows) {
    Json acceptance = Json::object();
    for (size_t source = 0; source < speculation::kNumSources; ++source) {
      const std::vector<double> shares = row.drafts.Acceptance(source);
      const auto name = speculation::SourceName(static_cast<speculation::Source>(source));
      if (!shares.empty()) acceptance[std::string(name)] = shares;
    }
    document["rows"].push_back({{"kind", row.kind},
                                {"given_answers", row.given},
                                {"prompts", row.num_prompts},
                                {"tokens", row.num_tokens},
                                {"steps", row.num_steps},
                                {"answers", row.num_answers},
                                {"drafted", row.drafts.num_verified()},
                                {"acceptance", std::move(acceptance)},
                                {"serial_seconds", row.serial_seconds},
                                {"drafted_seconds", row.drafted_seconds},
                                {"ratio", row.Ratio()},
                                {"tokens_a_step", row.TokensAStep()},
                                {"worst_ratio", row.slowest}});
  }
  fmt::print("{}\n", document.dump(2));
}

}  // namespace

int RunSpeculationBench(const SpeculationBenchOptions& options, const ModelFlags& model) {
  auto speculation = ParseSpeculation(options.drafter, /*verifies=*/false);
  if (speculation && !speculation->any())
    speculation =
        Error(InvalidArgument("bench --speculation off: wanted a drafter, which is compared with off"));
  if (!speculation) return Fail(speculation.error(), kExitBadUsage);
  LoadBar bar;
  ChatRuntime::Options runtime_options;
  runtime_options.model = model;
  runtime_options.speculation = *speculation;
  auto runtime = ChatRuntime::Load(runtime_options, bar.callback());
  bar.Clear();
  if (!runtime) return Fail(runtime.error(), kExitBadInput);
  const auto prompts = ReadPrompts(options.prompts_path, (*runtime)->tokenizer());
  if (!prompts) return Fail(prompts.error(), kExitBadInput);
  SpeculationBench bench(options, **runtime);
  ProgressBar progress("Answering");
  int64_t done = 0;
  for (const Prompt& prompt : *prompts) {
    progress.Update(done++, static_cast<int64_t>(prompts->size()));
    if (const Status status = bench.Run(prompt); !status.ok()) {
      progress.Clear();
      return Fail(status, kExitRunFailed);
    }
  }
  progress.Clear();
  if (options.json) {
    PrintJson(options, bench.rows());
  } else {
    PrintTable(bench.rows());
  }
  return kExitOk;
}

}  // namespace dsv4::apps
