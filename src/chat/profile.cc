// Profiles of v4, v4-0731 and v4.1: tags, effort texts, tasks, required tokens, and how one is found for a
// model.
#include "chat/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

namespace dsv4::chat {
namespace {

constexpr std::string_view kAbsoluteMaximum =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

constexpr std::string_view kBeyondMaximum =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

constexpr std::array<TaskToken, 6> kTasks = {{
    {"action", "<｜action｜>", true},
    {"query", "<｜query｜>", false},
    {"authority", "<｜authority｜>", false},
    {"domain", "<｜domain｜>", false},
    {"title", "<｜title｜>", false},
    {"read_url", "<｜read_url｜>", false},
}};

constexpr std::array<EffortLevel, 2> kEffortsV4 = {{{"high", ""}, {"max", kAbsoluteMaximum}}};
constexpr std::array<EffortLevel, 3> kEffortsV40731 = {
    {{"low", ""}, {"high", kAbsoluteMaximum}, {"max", kBeyondMaximum}}};

// Our own mapping of what clients send (chat-encoding.md 5.1); anything else is refused, never mapped
// silently.
constexpr std::array<ApiEffort, 7> kApiEffortsV4 = {{{"minimal", ""},
                                                     {"low", ""},
                                                     {"medium", ""},
                                                     {"high", "high"},
                                                     {"xhigh", "max"},
                                                     {"max", "max"},
                                                     {"ultra", "max"}}};
// Efforts of that of DeepSeek's own converter (its package deepseek-recipe).
constexpr std::array<ApiEffort, 7> kApiEffortsV40731 = {{{"minimal", "low"},
                                                         {"low", "low"},
                                                         {"medium", "high"},
                                                         {"high", "high"},
                                                         {"xhigh", "high"},
                                                         {"max", "max"},
                                                         {"ultra", "max"}}};

// Numbers of V4.1's efforts: those of DeepSeek's own encoder since its release.
constexpr std::array<EffortLevel, 4> kEffortsV41 = {
    {{"low", "50"}, {"high", "75"}, {"xhigh", "75"}, {"max", "100"}}};
constexpr std::array<ApiEffort, 7> kApiEffortsV41 = {{{"minimal", "low"},
                                                      {"low", "low"},
                                                      {"medium", "high"},
                                                      {"high", "high"},
                                                      {"xhigh", "xhigh"},
                                                      {"max", "max"},
                                                      {"ultra", "max"}}};
constexpr int kMostEffort = 100;

constexpr ChatProfile kV4 = {
    .revision = "v4",
    .bos = "<｜begin▁of▁sentence｜>",
    .eos = "<｜end▁of▁sentence｜>",
    .system_marker = "",
    .user = "<｜User｜>",
    .assistant = "<｜Assistant｜>",
    .latest_reminder = "<｜latest_reminder｜>",
    .think_open = "<think>",
    .think_close = "</think>",
    .dsml = "｜DSML｜",
    .tool_calls = "tool_calls",
    .invoke = "invoke",
    .parameter = "parameter",
    .tasks = kTasks,
    .efforts = kEffortsV4,
    .api_efforts = kApiEffortsV4,
};

constexpr ChatProfile WithEfforts(ChatProfile profile, std::string_view revision,
                                  std::span<const EffortLevel> efforts,
                                  std::span<const ApiEffort> api_efforts, std::string_view default_effort) {
  profile.revision = revision;
  profile.efforts = efforts;
  profile.api_efforts = api_efforts;
  profile.default_effort = default_effort;
  return profile;
}

constexpr ChatProfile MakeV41() {
  ChatProfile profile = WithEfforts(kV4, "v4.1", kEffortsV41, kApiEffortsV41, "high");
  profile.encoder_effort = "high";
  profile.numeric_efforts = true;
  profile.system_marker = "<｜System｜>";
  profile.tool_calls = " calls";
  profile.invoke = " invoke";
  profile.parameter = " parameter";
  profile.system_turns = true;
  profile.shows_signatures = true;
  profile.wraps_arguments = true;
  profile.continues_reasoning = true;
  profile.namespace_mark = "::";
  profile.describes_namespaces = true;
  return profile;
}

constexpr std::array<ChatProfile, 3> kProfiles = {
    kV4, WithEfforts(kV4, "v4-0731", kEffortsV40731, kApiEffortsV40731, "high"), MakeV41()};

constexpr const ChatProfile& kV41 = kProfiles[2];
// As `model_type` and as `architectures` of config.json begin.
constexpr std::string_view kV41ModelTypes[] = {"deepseek_v41", "DeepseekV41"};

// The number that `text` spells in digits alone, if it is an effort.
std::optional<int> EffortNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > kMostEffort)
    return std::nullopt;
  return number;
}

}  // namespace

std::string ChatProfile::OpenTag(std::string_view name) const { return fmt::format("<{}{}", dsml, name); }
std::string ChatProfile::CloseTag(std::string_view name) const { return fmt::format("</{}{}", dsml, name); }

std::vector<std::string_view> ChatProfile::RequiredTokens() const {
  std::vector<std::string_view> tokens = {bos, eos, user, assistant, think_open, think_close, dsml};
  if (!system_marker.empty()) tokens.push_back(system_marker);
  return tokens;
}

std::vector<std::string_view> ChatProfile::StopTokens() const {
  std::vector<std::string_view> tokens = {eos, user};
  if (system_turns) tokens.push_back(system_marker);
  return tokens;
}

const TaskToken* ChatProfile::FindTask(std::string_view name) const {
  for (const TaskToken& task : tasks) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

Result<std::string> ChatProfile::EffortText(std::string_view effort) const {
  std::vector<std::string_view> known;
  std::string_view prefix;
  bool found = false;
  for (const EffortLevel& level : efforts) {
    if (level.name == effort) {
      prefix = level.prefix;
      found = true;
    }
    known.push_back(level.name);
  }
  if (found && !numeric_efforts) return std::string(prefix);
  const std::optional<int> number =
      numeric_efforts ? EffortNumber(found ? prefix : effort) : std::optional<int>();
  if (!number) {
    return Error(InvalidArgument(fmt::format("effort: got '{}', revision {} knows {}{}", effort, revision,
                                             fmt::join(known, ", "),
                                             numeric_efforts ? " and numbers from 1 to 100" : "")));
  }
  return fmt::format(
      "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
      *number);
}

std::optional<std::string> ChatProfile::FindApiEffort(std::string_view effort) const {
  for (const ApiEffort& one : api_efforts) {
    if (one.name == effort) return std::string(one.level);
  }
  if (!numeric_efforts) return std::nullopt;
  const std::optional<int> number = EffortNumber(effort);
  return number ? std::optional(fmt::format("{}", *number)) : std::nullopt;
}

std::string ChatProfile::ApiEffortNames() const {
  std::vector<std::string_view> names = {"none"};
  for (const ApiEffort& one : api_efforts) names.push_back(one.name);
  return fmt::format("{}{}", fmt::join(names, ", "), numeric_efforts ? " or a number from 1 to 100" : "");
}

std::span<const ChatProfile> ChatProfiles() { return kProfiles; }

Result<const ChatProfile*> FindChatProfile(std::string_view revision) {
  std::vector<std::string_view> known;
  for (const ChatProfile& profile : kProfiles) {
    if (profile.revision == revision) return &profile;
    known.push_back(profile.revision);
  }
  return Error(InvalidArgument(
      fmt::format("chat revision: got '{}', wanted one of {}", revision, fmt::join(known, ", "))));
}

Result<const ChatProfile*> DetectChatProfile(const RevisionFacts& facts) {
  if (facts.option) return FindChatProfile(*facts.option);
  if (facts.metadata) return FindChatProfile(*facts.metadata);
  for (const std::string_view type : kV41ModelTypes) {
    if (facts.model_type && facts.model_type->starts_with(type)) return &kV41;
  }
  if (facts.encoder_source) {
    const std::string& source = *facts.encoder_source;
    // Its encoder alone writes this marker.
    if (source.find(kV41.system_marker) != std::string::npos) return &kV41;
    // The three-level effort table came with the second text. Its dash may be spelt as an escape in the
    // source.
    constexpr std::string_view kSecondText = "Reasoning Effort: Beyond maximum";
    if (source.find(kSecondText) != std::string::npos) return FindChatProfile("v4-0731");
  }
  return FindChatProfile("v4");
}

}  // namespace dsv4::chat
