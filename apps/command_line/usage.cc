// Usage errors with the nearest option, version text and help words.
#include "apps/command_line/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "apps/command_line/commit.h"
#include "apps/command_line/help_text.h"
#include "apps/command_line/settings.h"
#include "backend/cpu/isa.h"

namespace dsv4::apps {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that make `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min(
          {cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string Nearest(std::string_view got, const std::vector<std::string>& names) {
  const auto distance = [&](const std::string& name) { return EditDistance(got, name); };
  const auto nearest =
      std::min_element(names.begin(), names.end(),
                       [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (nearest == names.end() || distance(*nearest) > std::max<size_t>(1, got.size() / 3)) return {};
  return *nearest;
}

std::string DidYouMean(std::string_view got, const std::vector<std::string>& names) {
  const std::string nearest = Nearest(got, names);
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest);
}

namespace {

void AddOptionNames(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
}

// The command that was given, or null.
const CLI::App* CommandOf(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? nullptr : parsed.front();
}

// "a, b or c".
std::string OneOf(const std::vector<std::string>& words) {
  if (words.size() < 2) return fmt::format("{}", fmt::join(words, ""));
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

// The option that a message of CLI11 begins with, and what it says of it: "--port: ...", "CHECK is required".
struct Complaint {
  const CLI::App* owner = nullptr;
  const CLI::Option* option = nullptr;
  std::string text;
};
Complaint FindComplaint(const CLI::App& app, const CLI::App* command, const Settings& settings,
                        const std::string& what) {
  const size_t end = what.find_first_of(": ");
  if (end == std::string::npos) return {nullptr, nullptr, what};
  const std::string name = what.substr(0, end);
  // The command that was given comes first; what a settings file says of another may be wrong too.
  std::vector<const CLI::App*> owners;
  if (command != nullptr) owners.push_back(command);
  owners.push_back(&app);
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
    owners.push_back(each);
  for (const CLI::App* owner : owners) {
    if (const CLI::Option* option = owner->get_option_no_throw(name); option != nullptr) {
      // Several commands may have the name; a value of another than the given one has an origin.
      if (owner != command && owner != &app && settings.OriginOf(*owner, *option).empty()) continue;
      const size_t begin = what.find_first_not_of(": ", end);
      return {owner, option, begin == std::string::npos ? std::string() : what.substr(begin)};
    }
  }
  return {nullptr, nullptr, what};
}

// CLI11's words about a value, in ours.
std::string ValueComplaint(const Complaint& complaint) {
  std::string text = complaint.text;
  const std::vector<std::string> choices = Choices(*complaint.option);
  const std::string wanted = choices.empty() ? std::string() : OneOf(choices);
  if (text.starts_with("is required")) return wanted.empty() ? "is missing" : "is missing: " + wanted;
  if (text.ends_with(" missing") && text.find(" required ") != std::string::npos)
    return wanted.empty() ? "wants a value behind it" : "wants a value behind it: " + wanted;
  // An empty value has no blank behind it.
  if (const size_t at = text.find("not in {"); at != std::string::npos && !wanted.empty())
    return fmt::format("got '{}', wanted {}", text.substr(0, std::max<size_t>(at, 1) - 1), wanted);
  if (const size_t at = text.find(" not in range "); at != std::string::npos && text.starts_with("Value ")) {
    std::string range = text.substr(at + 14);
    // Bounds that are no whole numbers have six digits.
    for (size_t zeros = range.find(".000000"); zeros != std::string::npos; zeros = range.find(".000000"))
      range.erase(zeros, 7);
    return fmt::format("got {}, wanted {}", text.substr(6, at - 6), range);
  }
  return text;
}

// The want of an option that cannot take `text` as its number.
std::string_view WantedNumber(const std::string& text) {
  double value = 0.0;
  if (!CLI::detail::lexical_cast(text, value)) return "a number";
  return text.find_first_of(".eE") == std::string::npos ? "a number that fits" : "a whole number, in digits";
}

std::string UsageError(const Commands& commands, const Settings& settings, const CLI::Error& error) {
  const CLI::App* app = &commands.app();
  const CLI::App* command = CommandOf(*app);
  const std::string name = command == nullptr ? "dsv4" : "dsv4 " + command->get_name();
  std::string what = error.what();
  const bool in_settings = error.get_name() == "ConfigError";
  // A value that is no number: "Could not convert: --port = abc".
  if (const std::string_view words = "Could not convert: "; what.starts_with(words)) {
    const size_t equals = what.find(" = ");
    if (equals != std::string::npos) {
      const std::string option = what.substr(words.size(), equals - words.size());
      const CLI::Option* found = FindComplaint(*app, command, settings, option + ":").option;
      const bool flag = found != nullptr && found->get_items_expected_max() == 0;
      what = fmt::format("{}: got '{}', wanted {}", option, what.substr(equals + 3),
                         flag ? "true or false" : WantedNumber(what.substr(equals + 3)));
    }
  }
  if (error.get_name() == "FileError") what = settings.FileOrigin() + ": " + what;
  if (const Complaint complaint = FindComplaint(*app, command, settings, what);
      complaint.option != nullptr && !in_settings) {
    const std::string text = ValueComplaint(complaint);
    what = complaint.option->get_name() +
           (text.starts_with("is missing") || text.starts_with("wants ") ? " " : ": ") + text;
    if (const std::string origin = settings.OriginOf(*complaint.owner, *complaint.option); !origin.empty())
      what = origin + ": " + what;
  }
  const std::vector<std::string> extra = app->remaining(/*recurse=*/true);
  const auto option =
      std::find_if(extra.begin(), extra.end(), [](const std::string& each) { return each.starts_with('-'); });
  if (in_settings) {
    // The file comes before the command line.
  } else if (option != extra.end()) {
    std::vector<std::string> names;
    AddOptionNames(*app, names);
    if (command != nullptr) AddOptionNames(*command, names);
    what =
        fmt::format("unknown option {}{}", *option, DidYouMean(option->substr(0, option->find('=')), names));
  } else if (command == nullptr && !extra.empty()) {
    std::vector<std::string> names = {"help", "version"};
    for (const CLI::App* each : app->get_subcommands({})) names.push_back(each->get_name());
    what = fmt::format("unknown command '{}'{}", extra.front(), DidYouMean(extra.front(), names));
  } else if (command == nullptr && error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    what = "which command? The first thing most people try: dsv4 run \"What is the capital of France?\"";
  } else if (!extra.empty()) {
    what = fmt::format("one argument too many: '{}'; text with blanks stands between quotes", extra.front());
  }
  return fmt::format("{}: {}\n{} --help lists the options.\n", name, what, name);
}

}  // namespace

void DescribeUsage(Commands& commands, const Settings& settings) {
  CLI::App& app = commands.app();
  app.failure_message(
      [&](const CLI::App*, const CLI::Error& error) { return UsageError(commands, settings, error); });
  const auto formatter = std::make_shared<HelpText>(commands);
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands({})) command->formatter(formatter);
}

void RefuseEmptyTexts(const CLI::App& app) {
  // Texts that may say nothing, or whose own complaint says more.
  constexpr std::array kFree = {"--prompt", "--system", "--stop",    "--regex",
                                "--choice", "TEXT",     "ARGUMENTS", "--api-key"};
  for (const CLI::Option* option : app.get_options()) {
    const auto is = [&](const char* name) { return option->check_name(name); };
    if (option->get_items_expected_max() == 0 || std::ranges::any_of(kFree, is)) continue;
    const std::vector<std::string>& texts = option->results();
    if (std::ranges::find(texts, std::string()) != texts.end())
      throw CLI::ValidationError(option->get_name(), "got an empty text");
  }
  for (const CLI::App* command : app.get_subcommands()) RefuseEmptyTexts(*command);
}

std::string UnknownHelp(const Commands& commands, const Settings& settings) {
  const CLI::App& app = commands.app();
  if (CommandOf(app) != nullptr || app.remaining(/*recurse=*/true).empty()) return {};
  return UsageError(commands, settings, CLI::Error("", "", CLI::ExitCodes::ExtrasError));
}

std::vector<std::string> ExpandHelpWords(int argc, char** argv) {
  std::vector<std::string> words(argv, argv + argc);
  if (words.size() >= 2 && words[1] == "version") {
    words[1] = "--version";
  } else if (words.size() >= 2 && words[1] == "help") {
    words.erase(words.begin() + 1);
    words.push_back("--help");
  }
  return words;
}

std::string VersionText() {
#ifdef DSV4_WITH_CUDA
  constexpr std::string_view kBackends = "reference cpu cuda";
#else
  constexpr std::string_view kBackends = "reference cpu";
#endif
  return fmt::format("dsv4 {} (commit {}, backends {}, this machine {})", DSV4_VERSION, kCommit, kBackends,
                     backend::cpu::IsaName(backend::cpu::DefaultIsa()));
}

}  // namespace dsv4::apps
