// Tasks that the model answers: questions with known answers, calls of tools, and needles in long texts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "apps/eval/eval_tasks.h"
#include "apps/eval/grading.h"
#include "apps/shared/chat_runtime.h"
#include "chat/json_value.h"

namespace dsv4::apps {
namespace {

class AnswersTask {
 public:
  AnswersTask(const EvalOptions& options, ChatRuntime& runtime, EvalProgress& progress, EvalReport& report)
      : options_(options), runtime_(runtime), progress_(progress), report_(report) {}

  Status Run(const std::vector<DataLine>& lines) {
    for (const DataLine& line : lines) {
      const Status status = options_.task == "tools"    ? Call(line)
                            : options_.task == "needle" ? Needle(line)
                                                        : Question(line);
      DSV4_RETURN_IF_ERROR(status);
      progress_.AddLine();
    }
    const auto count = static_cast<int64_t>(lines.size());
    report_.counts = {{options_.task == "tools" ? "requests" : "questions", count}, {"tokens", num_tokens_}};
    if (options_.task == "tools") {
      FillCalls();
    } else {
      const Interval accuracy = ShareInterval(right_, count);
      report_.Add("accuracy", accuracy);
      report_.Add("cut", ShareInterval(cut_, count));
      if (options_.min_accuracy) report_.Require("accuracy", accuracy.value, *options_.min_accuracy, false);
    }
    if (options_.task == "needle") FillNeedles();
    return {};
  }

 private:
  Result<Generation> Ask(const DataLine& line, const std::vector<chat::Message>& messages) {
    ChatRuntime::Ask ask;
    ask.mode = options_.thinking_mode == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
    if (!options_.effort.empty()) ask.effort = options_.effort;
    ask.sampling = options_.sampling;
    ask.sampling.seed += report_.lines.size();
    ask.max_tokens = options_.max_tokens;
    ask.stop = options_.stop;
    int64_t read = 0;
    ask.on_prefill = [&](int64_t done, int64_t) { progress_.AddTokens(done - std::exchange(read, done)); };
    ask.on_delta = [&](const chat::Delta&) { progress_.AddTokens(1); };
    Result<Generation> answer = runtime_.Respond(messages, ask);
    if (!answer) return Error(answer.error().WithContext(line.label));
    num_tokens_ += static_cast<int64_t>(answer->tokens.size());
    if (answer->completion.finish_reason == chat::FinishReason::kLength) ++cut_;
    return answer;
  }

  // "messages", or "prompt" as the user's turn.
  static Result<std::vector<chat::Message>> Messages(const DataLine& line) {
    std::vector<chat::Message> messages;
    if (const auto found = line.json.find("messages"); found != line.json.end()) {
      DSV4_ASSIGN_OR_RETURN(const chat::JsonValue json, chat::ReadJson(found->dump(), line.label));
      DSV4_ASSIGN_OR_RETURN(messages, chat::ParseMessages(json, line.label + ": messages"));
    } else {
      DSV4_ASSIGN_OR_RETURN(std::string prompt, TextOf(line, "prompt"));
      messages.push_back({.role = chat::Role::kUser, .content = std::move(prompt)});
    }
    return messages;
  }

  Status Question(const DataLine& line) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<chat::Message> messages, Messages(line));
    DSV4_ASSIGN_OR_RETURN_STATUS(const Generation answer, Ask(line, messages));
    const std::string content = answer.completion.message.content;
    DSV4_ASSIGN_OR_RETURN_STATUS(const bool right, IsRight(line, content));
    right_ += right ? 1 : 0;
    report_.lines.push_back({{"line", report_.lines.size()}, {"content", content}, {"right", right}});
    return {};
  }

  // A text of about "tokens" tokens made of "haystack", again and again, with "needle" at "depth" of it, then
  // "question".
  Status Needle(const DataLine& line) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string haystack, TextOf(line, "haystack"));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string needle, TextOf(line, "needle"));
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::string question, TextOf(line, "question"));
    const Json tokens = line.json.value("tokens", Json());
    const Json depth = line.json.value("depth", Json());
    const int64_t most = runtime_.model().config().max_position_embeddings;
    if (!tokens.is_number_unsigned() || tokens < 1 || tokens > most)
      return BadMember(line, "tokens",
                       fmt::format("a number of tokens, 1 to the model's context of {}", most));
    if (!depth.is_number() || depth < 0 || depth > 1) return BadMember(line, "depth", "0 to 1");
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<int32_t> piece, runtime_.tokenizer().Encode(haystack));
    if (piece.empty()) return BadMember(line, "haystack", "a text that is not empty");
    std::vector<int32_t> ids;
    while (ids.size() < tokens.get<size_t>()) ids.insert(ids.end(), piece.begin(), piece.end());
    ids.resize(tokens.get<size_t>());
    // Cut where a line or a sentence ends, so that the needle stands alone.
    auto at = static_cast<size_t>(depth.get<double>() * static_cast<double>(ids.size()));
    const std::string before = runtime_.tokenizer().Decode(std::span(ids).first(at));
    const std::string behind = runtime_.tokenizer().Decode(std::span(ids).subspan(at));
    const std::vector<chat::Message> messages = {
        {.role = chat::Role::kUser,
         .content = fmt::format("{}\n{}\n{}\n\n{}", before, needle, behind, question)}};
    DSV4_ASSIGN_OR_RETURN_STATUS(const Generation answer, Ask(line, messages));
    DSV4_ASSIGN_OR_RETURN_STATUS(const bool right, IsRight(line, answer.completion.message.content));
    right_ += right ? 1 : 0;
    Cell& cell = cells_[{tokens.get<int64_t>(), depth.get<double>()}];
    cell.right += right ? 1 : 0;
    ++cell.count;
    report_.lines.push_back({{"line", report_.lines.size()},
                             {"tokens", tokens},
                             {"depth", depth},
                             {"content", answer.completion.message.content},
                             {"right", right}});
    return {};
  }

  // "tools" as in an API request, and "expect": calls {"name", "arguments"}, [] for none; without it calls
  // are only judged by their schemas.
  Status Call(const DataLine& line) {
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<chat::Message> messages, Messages(line));
    const auto found = line.json.find("tools");
    if (found == line.json.end()) return BadMember(line, "tools", "a list of tools");
    DSV4_ASSIGN_OR_RETURN_STATUS(const chat::JsonValue list, chat::ReadJson(found->dump(), line.label));
    DSV4_ASSIGN_OR_RETURN_STATUS(std::vector<chat::JsonValue> tools,
                                 chat::ParseTools(list, line.label + ": tools"));
    chat::AttachTools(messages, std::move(tools));
    DSV4_ASSIGN_OR_RETURN_STATUS(const Generation answer, Ask(line, messages));
    const auto& calls = answer.completion.message.tool_calls;
    std::vector<Json> made;
    std::vector<std::string> complaints;
    for (const auto& call : calls) {
      Json arguments;
      const Result<Json> parsed = ParseJson(call.arguments, "arguments");
      if (parsed) arguments = *parsed;
      made.push_back({{"name", call.name}, {"arguments", arguments}});
      std::string complaint =
          parsed ? ComplaintOf(*found, call.name, arguments) : "the arguments are no JSON";
      ++num_calls_;
      if (complaint.empty()) ++num_valid_;
      if (!complaint.empty()) complaints.push_back(std::move(complaint));
    }
    // Markup that stayed in the content is a call that was lost.
    const bool leaked = answer.completion.message.content.find("DSML") != std::string::npos;
    num_leaks_ += leaked ? 1 : 0;
    Json outcome = {{"line", report_.lines.size()},
                    {"calls", made},
                    {"complaints", complaints},
                    {"leak", leaked},
                    {"content", answer.completion.message.content}};
    if (line.json.contains("expect")) {
      DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<Json> expected, ExpectedCalls(line));
      const bool should = !expected.empty();
      const bool did = !calls.empty();
      ++num_expected_;
      true_calls_ += should && did ? 1 : 0;
      false_calls_ += !should && did ? 1 : 0;
      missed_calls_ += should && !did ? 1 : 0;
      outcome["right"] = SameCalls(made, expected);
      num_right_ += outcome["right"].get<bool>() ? 1 : 0;
    }
    report_.lines.push_back(std::move(outcome));
    return {};
  }

  void FillCalls() {
    const auto requests = static_cast<int64_t>(report_.lines.size());
    report_.counts.emplace_back("calls", num_calls_);
    const Interval valid = ShareInterval(num_valid_, num_calls_);
    report_.Add("schema_valid", valid);
    report_.Add("leaks", ShareInterval(num_leaks_, requests));
    if (num_expected_ > 0) {
      report_.Add("accuracy", ShareInterval(num_right_, num_expected_));
      const double both = 2.0 * static_cast<double>(true_calls_);
      const double f1 = both / std::max(1.0, both + static_cast<double>(false_calls_ + missed_calls_));
      report_.Add("trigger_f1", {f1, std::nan(""), std::nan("")});
    }
    if (num_calls_ == 0) report_.notes.emplace_back("no call was made");
    if (!options_.min_accuracy) return;
    const double value = num_expected_ > 0
                             ? static_cast<double>(num_right_) / static_cast<double>(num_expected_)
                             : valid.value;
    report_.Require(num_expected_ > 0 ? "accuracy" : "schema_valid", value, *options_.min_accuracy, false);
  }

  void FillNeedles() {
    diag::Table table = {
        .title = "Found, by length and depth", .columns = {"tokens", "depth", "found", "of"}, .rows = {}};
    std::map<double, diag::Series> by_depth;
    for (const auto& [key, cell] : cells_) {
      table.rows.push_back({fmt::format("{}", key.first), fmt::format("{:.2f}", key.second),
                            fmt::format("{}", cell.right), fmt::format("{}", cell.count)});
      diag::Series& series = by_depth[key.second];
      series.name = fmt::format("depth {:.2f}", key.second);
      series.color = static_cast<int>(by_depth.size() - 1) % 8;
      series.Add(static_cast<double>(key.first),
                 static_cast<double>(cell.right) / static_cast<double>(cell.count));
    }
    diag::Plot plot = {.title = "Needles that were found",
                       .reading = "The share of each length and depth.",
                       .x_label = "tokens",
                       .y_label = "share"};
    for (auto& [depth, series] : by_depth) plot.series.push_back(std::move(series));
    report_.tables.push_back(std::move(table));
    report_.plots.push_back(std::move(plot));
  }

  struct Cell {
    int64_t right = 0;
    int64_t count = 0;
  };

  const EvalOptions& options_;
  ChatRuntime& runtime_;
  EvalProgress& progress_;
  EvalReport& report_;
  int64_t num_tokens_ = 0;
  int64_t right_ = 0;
  int64_t cut_ = 0;  // Answers that --max-tokens ended.
  std::map<std::pair<int64_t, double>, Cell> cells_;
  // Count of calls.
  int64_t num_calls_ = 0;
  int64_t num_valid_ = 0;
  int64_t num_leaks_ = 0;
  int64_t num_expected_ = 0;
  int64_t num_right_ = 0;
  int64_t true_calls_ = 0;
  int64_t false_calls_ = 0;
  int64_t missed_calls_ = 0;
};

}  // namespace

Status EvalAnswers(const EvalOptions& options, const std::vector<DataLine>& lines, ChatRuntime& runtime,
                   EvalProgress& progress, EvalReport& report) {
  return AnswersTask(options, runtime, progress, report).Run(lines);
}

}  // namespace dsv4::apps
