// Requests of clients that load a server.
#include "apps/bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <sstream>

#include "apps/bench/load_client.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

const std::vector<std::string> kWords = {"the",    "river", "and",   "old",   "house",  "saw",    "three",
                                         "ships",  "of",    "green", "stone", "before", "winter", "a",
                                         "letter", "came",  "from",  "city",  "people", "sang"};
// Answers of a dataset whose tokens are counted, one request each.
constexpr size_t kMostCounted = 2000;

std::string RandomText(std::mt19937_64& random, size_t num_words) {
  std::string out;
  for (size_t i = 0; i < num_words; ++i)
    out += (i > 0 ? " " : "") + kWords[random() % kWords.size()] + (random() % 12 == 0 ? "." : "");
  return out;
}

Json Message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// Short questions, long texts with a question, and second turns behind one long system text.
std::vector<LoadPrompt> DefaultMix(uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> countries = {"France", "Spain",  "Italy", "Japan",
                                              "Peru",   "Norway", "Egypt", "Kenya"};
  const auto text = [&](size_t num_words) { return RandomText(random, num_words); };
  const auto question = [&](size_t i) {
    return fmt::format("What is the capital of {}?", countries[i % countries.size()]);
  };
  const std::string system = text(300);
  std::vector<LoadPrompt> mix;
  for (size_t i = 0; i < 20; ++i) {
    if (i % 5 < 3) {
      mix.push_back({Json::array({Message("user", question(i))})});
    } else if (i % 5 == 3) {
      mix.push_back({Json::array({Message("user", text(200 + random() % 800) + "\n\n" + question(i))})});
    } else {
      mix.push_back({Json::array({Message("system", system), Message("user", question(i)),
                                  Message("assistant", text(20)), Message("user", text(10) + "?")})});
    }
  }
  return mix;
}

// One object a line, with messages in each.
Result<std::vector<LoadPrompt>> ParsePrompts(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::vector<LoadPrompt> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    DSV4_ASSIGN_OR_RETURN(Json prompt,
                          ParseJson(line, fmt::format("{}, prompt {}", name, prompts.size() + 1)));
    if (!prompt.is_object() || !prompt.contains("messages")) {
      return Error(InvalidArgument(fmt::format("{}, prompt {}: no messages", name, prompts.size() + 1)));
    }
    prompts.push_back({prompt["messages"]});
  }
  if (prompts.empty()) return Error(InvalidArgument(name + ": no prompt in it"));
  return prompts;
}

// A schema whose texts have more items than `tokens`.
Json LongList(int64_t tokens) {
  const Json event = {{"type", "object"},
                      {"properties",
                       {{"day", {{"type", "integer"}}},
                        {"kind", {{"enum", {"meeting", "journey", "holiday"}}}},
                        {"title", {{"type", "string"}, {"maxLength", 40}}}}},
                      {"required", {"day", "kind", "title"}},
                      {"additionalProperties", false}};
  return {{"type", "object"},
          {"properties", {{"events", {{"type", "array"}, {"minItems", tokens}, {"items", event}}}}},
          {"required", Json::array({"events"})},
          {"additionalProperties", false}};
}

// Objects of an array, or of lines.
Result<std::vector<Json>> ParseObjects(std::string_view text, const std::string& name) {
  if (constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF"; text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    DSV4_ASSIGN_OR_RETURN(const Json array, ParseJson(text, name));
    return std::vector<Json>(array.begin(), array.end());
  }
  std::vector<Json> objects;
  std::istringstream lines{std::string(text)};
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    DSV4_ASSIGN_OR_RETURN(Json object, ParseJson(line, fmt::format("{}, line {}", name, number)));
    objects.push_back(std::move(object));
  }
  return objects;
}

std::string StringAt(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The question and the answer that a conversation begins with; empty where it does not.
std::pair<std::string, std::string> FirstTurns(const Json& conversations) {
  if (!conversations.is_array() || conversations.size() < 2) return {};
  for (const Json& turn : conversations) {
    if (!turn.is_object()) return {};
  }
  return {StringAt(conversations[0], "value"), StringAt(conversations[1], "value")};
}

// The length of the answer that an object asks for; 0 where it does not say.
Result<int64_t> AnswerLength(const Json& object, const std::string& name) {
  for (const char* key : {"output_tokens", "max_tokens"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (found->is_number_unsigned() && *found > 0 && *found <= std::numeric_limits<int32_t>::max())
      return found->get<int64_t>();
    return Error(InvalidArgument(
        fmt::format("{}: {}: got {}, wanted a whole number from 1 on", name, key, found->dump())));
  }
  return 0;
}

// The tokens of a text, as the server counts them.
Result<int64_t> CountTokens(const ServerBenchOptions& options, const std::string& text) {
  DSV4_ASSIGN_OR_RETURN(const std::string reply,
                        Post(options.url, options.api_key, "/tokenize", Json{{"prompt", text}}.dump()));
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(reply, "/tokenize"));
  if (!json.contains("count") || !json["count"].is_number_integer())
    return Error(Internal("/tokenize: no count in the reply"));
  return json["count"].get<int64_t>();
}

}  // namespace

Result<std::vector<LoadPrompt>> ParseDataset(
    const std::string& text, const std::string& name,
    const std::function<Result<int64_t>(const std::string&)>& count) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<Json> objects, ParseObjects(text, name));
  std::vector<LoadPrompt> prompts;
  size_t number = 0;
  for (const Json& object : objects) {
    ++number;
    if (!object.is_object()) continue;
    LoadPrompt prompt;
    std::string answer;
    if (object.contains("messages") && object["messages"].is_array() && !object["messages"].empty()) {
      prompt.messages = object["messages"];
    } else if (const std::string question = StringAt(object, "prompt"); !question.empty()) {
      prompt.messages = Json::array({Message("user", question)});
    } else if (object.contains("conversations")) {
      auto [asked, answered] = FirstTurns(object["conversations"]);
      if (asked.empty() || answered.empty()) continue;
      prompt.messages = Json::array({Message("user", asked)});
      answer = std::move(answered);
    } else {
      continue;
    }
    DSV4_ASSIGN_OR_RETURN(prompt.output_tokens,
                          AnswerLength(object, fmt::format("{}, object {}", name, number)));
    if (prompt.output_tokens == 0 && !answer.empty()) {
      DSV4_ASSIGN_OR_RETURN(const int64_t tokens, count(answer));
      prompt.output_tokens = std::max<int64_t>(tokens, 1);
    }
    prompts.push_back(std::move(prompt));
    if (prompts.size() == kMostCounted) break;
  }
  if (number < objects.size())
    LogWarning(
        fmt::format("{}: the first {} of {} are used", name, Counted(number, "object"), objects.size()));
  if (prompts.empty()) {
    return Error(
        InvalidArgument(fmt::format("{}: got {}, none with 'messages', 'prompt' or two 'conversations'", name,
                                    Counted(objects.size(), "object"))));
  }
  if (prompts.size() < number) {
    LogWarning(fmt::format("{}: {} of {} left out: no 'messages', 'prompt' or two 'conversations'", name,
                           number - prompts.size(), Counted(number, "object")));
  }
  return prompts;
}

Result<Workload> Workload::Make(const ServerBenchOptions& options) {
  Workload workload(options);
  if (options.agents || options.input_tokens > 0) DSV4_TRY(workload.Calibrate());
  if (!options.dataset_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.dataset_path, FileKind::kAny));
    const auto count = [&](const std::string& answer) -> Result<int64_t> {
      if (options.output_tokens_given) return options.output_tokens;
      return CountTokens(options, answer);
    };
    DSV4_ASSIGN_OR_RETURN(workload.prompts_, ParseDataset(text, options.dataset_path, count));
    for (LoadPrompt& prompt : workload.prompts_) {
      if (options.output_tokens_given) prompt.output_tokens = 0;
    }
  } else if (!options.prompts_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.prompts_path, FileKind::kAny));
    DSV4_ASSIGN_OR_RETURN(workload.prompts_, ParsePrompts(text, options.prompts_path));
  } else if (!options.agents && options.input_tokens == 0 && options.most_words == 0) {
    workload.prompts_ = DefaultMix(options.seed);
  }
  return workload;
}

Status Workload::Calibrate() {
  constexpr size_t kSample = 2000;
  std::mt19937_64 random(options_->seed);
  DSV4_ASSIGN_OR_RETURN_STATUS(const int64_t count, CountTokens(*options_, RandomText(random, kSample)));
  words_per_token_ = static_cast<double>(kSample) / static_cast<double>(std::max<int64_t>(count, 1));
  return {};
}

int64_t Workload::Length(std::mt19937_64& random, int64_t middle) const {
  if (options_->length_spread <= 0.0) return middle;
  const double part = std::uniform_real_distribution<double>(-1.0, 1.0)(random) * options_->length_spread;
  return std::max<int64_t>(1, std::llround(static_cast<double>(middle) * (1.0 + part)));
}

std::string Workload::RandomTokens(std::mt19937_64& random, int64_t tokens) const {
  const double words = words_per_token_ * static_cast<double>(tokens);
  return RandomText(random, static_cast<size_t>(std::max(1.0, words)));
}

const char* FeatureName(Feature feature) {
  switch (feature) {
    case Feature::kNone:
      break;
    case Feature::kSchema:
      return "schema";
    case Feature::kTool:
      return "tool";
    case Feature::kPenalties:
      return "penalties";
    case Feature::kLogprobs:
      return "logprobs";
  }
  return "plain";
}

std::string Workload::BodyOf(const Json& messages, int64_t output_tokens, Feature feature) {
  Json body = {{"messages", messages},
               {"temperature", 0},
               {"max_tokens", output_tokens},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  // Thinking is free of rules, and has no log-probabilities.
  if (feature != Feature::kNone) body["thinking"] = {{"type", "disabled"}};
  // A grammar says where the answer ends: behind a list that is longer.
  switch (feature) {
    case Feature::kNone:
      break;
    case Feature::kSchema:
      body["response_format"] = {
          {"type", "json_schema"},
          {"json_schema", {{"name", "events"}, {"strict", true}, {"schema", LongList(output_tokens)}}}};
      return body.dump();
    case Feature::kTool:
      body["tools"] = Json::array(
          {{{"type", "function"},
            {"function",
             {{"name", "save_events"}, {"strict", true}, {"parameters", LongList(output_tokens)}}}}});
      body["tool_choice"] = "required";
      return body.dump();
    case Feature::kPenalties:
      body["presence_penalty"] = 0.3;
      body["frequency_penalty"] = 0.3;
      body["repetition_penalty"] = 1.1;
      break;
    case Feature::kLogprobs:
      body["logprobs"] = true;
      body["top_logprobs"] = 5;
      break;
  }
  body["ignore_eos"] = true;
  return body.dump();
}

std::string Workload::Body(size_t number, Feature feature) const {
  if (!prompts_.empty()) {
    const LoadPrompt& prompt = prompts_[number % prompts_.size()];
    return BodyOf(prompt.messages, prompt.output_tokens > 0 ? prompt.output_tokens : options_->output_tokens,
                  feature);
  }
  std::mt19937_64 random(options_->seed ^ (0x9e3779b97f4a7c15ULL * (number + 1)));
  const auto first = random() % 1'000'000;
  std::string text;
  if (options_->input_tokens > 0) {
    text = RandomTokens(random, std::max<int64_t>(Length(random, options_->input_tokens) - 1, 1));
  } else {
    const auto choices = static_cast<uint64_t>(options_->most_words - options_->fewest_words + 1);
    const auto words = static_cast<size_t>(options_->fewest_words) + random() % choices;
    text = RandomText(random, std::max<size_t>(words - 1, 1));
  }
  return BodyOf(Json::array({Message("user", fmt::format("{} {}", first, text))}),
                Length(random, options_->output_tokens), feature);
}

AgentSession::AgentSession(const Workload& workload, const ServerBenchOptions& options, uint64_t seed,
                           int64_t first_turn)
    : workload_(workload), options_(options), random_(seed) {
  Begin();
  for (int64_t turn = 0; turn < first_turn; ++turn) {
    AddTurn();
    Take(workload_.RandomTokens(random_, options_.output_tokens));
  }
}

void AgentSession::Begin() {
  messages_ = Json::array();
  turn_ = 0;
}

void AgentSession::AddTurn() {
  // The input of turn t is t + 1 pieces, the mean of all turns (turns + 1) / 2.
  const int64_t piece = 2 * options_.input_tokens / (options_.turns + 1);
  const int64_t mine = turn_ == 0 ? piece : piece - options_.output_tokens;
  messages_.push_back(
      Message("user", fmt::format("{} {}", random_() % 1'000'000,
                                  workload_.RandomTokens(random_, std::max<int64_t>(mine, 1)))));
}

std::string AgentSession::NextBody() {
  if (turn_ == options_.turns) Begin();
  AddTurn();
  return Workload::BodyOf(messages_, options_.output_tokens);
}

void AgentSession::Take(const std::string& answer) {
  messages_.push_back(Message("assistant", answer));
  ++turn_;
}

}  // namespace dsv4::apps
