#include "apps/command_line/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "apps/command_line/commit.h"
#include "apps/command_line/settings.h"
#include "backend/cpu/isa.h"

namespace dsv4::apps {
namespace {

struct Examples {
  std::string_view command;
  std::string_view lines;
};

// tests/cli/help_test.py runs each line that begins with "dsv4" or a pipe into it, in a folder with the files that they name.
constexpr std::array kExamples = {
    Examples{"run",
             "  dsv4 run \"What is the capital of France?\"\n"
             "  dsv4 run -m models/tiny --temperature 0 \"What is the capital of Japan?\"\n"
             "  cat notes.txt | dsv4 run \"Shorten this:\" > short.txt\n"
             "  dsv4 run                                   (a chat; /help in it lists its commands)\n"},
    Examples{"serve",
             "  dsv4 serve --port 8080\n"
             "  dsv4 serve -m models/tiny --host 0.0.0.0 --port 8080 --api-key SECRET\n"},
    Examples{"batch",
             "  dsv4 batch requests.jsonl answers.jsonl\n"
             "  dsv4 batch requests.jsonl answers.jsonl --alias '*' --json\n"},
    Examples{"diagnose",
             "  dsv4 diagnose all\n"
             "  dsv4 diagnose checkpoint -m models/tiny\n"},
    Examples{"eval",
             "  dsv4 eval perplexity --data texts.jsonl\n"
             "  dsv4 eval perplexity --data texts.jsonl --against-numerics plain --max-kl 0.1\n"
             "  dsv4 eval choice --data choices.jsonl --json\n"},
    Examples{"logits", "  dsv4 logits --tokens ids.json --output logits.npy\n"},
    Examples{"inspect",
             "  dsv4 inspect -m models/tiny\n"
             "  dsv4 inspect --weights synthetic:flash,nvfp4-experts --context 131072\n"},
    Examples{"experts", "  dsv4 experts profile --text notes.txt --output profile.json\n"},
    Examples{"synth", "  dsv4 synth random --shape tiny\n"},
    Examples{"convert", "  dsv4 convert models/tiny converted --experts nvfp4\n"},
    Examples{"bench",
             "  dsv4 bench --prefill 64 --depth 0,256 --batch 1,2\n"
             "  dsv4 bench --server http://127.0.0.1:8080 --streams 4 --seconds 2\n"},
    Examples{"doctor", "  dsv4 doctor\n"},
    Examples{"encode", "  dsv4 encode --cases encoding-cases.json\n"},
    Examples{"parse", "  dsv4 parse --cases parsing-cases.json --lenient\n"},
    Examples{"completion",
             "  dsv4 completion bash > dsv4.bash           (then: source dsv4.bash)\n"
             "  dsv4 completion zsh > _dsv4                (into a directory of $fpath)\n"
             "  dsv4 completion fish > dsv4.fish           (into ~/.config/fish/completions)\n"},
    Examples{
        "pull",
        "  dsv4 pull deepseek-ai/DeepSeek-V4-Flash    (then: dsv4 run -m deepseek-ai/DeepSeek-V4-Flash)\n"
        "  dsv4 pull deepseek-ai/DeepSeek-V4-Flash@main --jobs 8 --verify\n"},
    Examples{"launch",
             "  dsv4 launch claude\n"
             "  dsv4 launch aider -m models/tiny -- --no-auto-commits\n"
             "  dsv4 launch codex --print                  (the settings only)\n"},
    Examples{"man", "  dsv4 man run > dsv4-run.1                  (then: man ./dsv4-run.1)\n"},
    Examples{"tokenize", "  dsv4 tokenize \"Crème brûlée\"\n"},
};

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

// "; did you mean X?", where one of `names` is close.
std::string DidYouMean(std::string_view got, const std::vector<std::string>& names) {
  const auto distance = [&](const std::string& name) { return EditDistance(got, name); };
  const auto nearest =
      std::min_element(names.begin(), names.end(),
                       [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (nearest == names.end() || distance(*nearest) > std::max<size_t>(1, got.size() / 3)) return {};
  return fmt::format("; did you mean {}?", *nearest);
}

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

std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  while (app->get_parent() != nullptr) app = app->get_parent();
  const CLI::App* command = CommandOf(*app);
  const std::string name = command == nullptr ? "dsv4" : "dsv4 " + command->get_name();
  std::string what = error.what();
  // CLI11's word for a settings file, whichever it is.
  if (const std::string_view ini = "INI was not able to parse "; what.starts_with(ini)) {
    what = "unknown option in the settings file: " + what.substr(ini.size());
  }
  // The same of a value that is no number: "Could not convert: --port = abc".
  if (const std::string_view words = "Could not convert: "; what.starts_with(words)) {
    const size_t equals = what.find(" = ");
    if (equals != std::string::npos) {
      what = fmt::format("{}: got '{}', wanted a number that fits",
                         what.substr(words.size(), equals - words.size()), what.substr(equals + 3));
    }
  }
  const std::vector<std::string> extra = app->remaining(/*recurse=*/true);
  const auto option =
      std::find_if(extra.begin(), extra.end(), [](const std::string& each) { return each.starts_with('-'); });
  if (option != extra.end()) {
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

// What the command's own help leaves out: the program's options that it takes.
std::string SharedOptions(Commands& commands, const CLI::App& command) {
  const HelpFormatter formatter;
  const CLI::App& app = commands.app();
  return formatter.make_group("Options of every command", false,
                              app.get_options([&](const CLI::Option* option) {
                                return !option->check_lname("help") && !option->check_lname("version") &&
                                       commands.Takes(command, *option);
                              }));
}

}  // namespace

void DescribeUsage(Commands& commands) {
  CLI::App& app = commands.app();
  app.failure_message(UsageError);
  app.footer(
      "dsv4 help COMMAND, or dsv4 COMMAND --help, lists a command's options.\n"
      "Examples:\n"
      "  dsv4 run \"What is the capital of France?\"\n"
      "  dsv4 serve --port 8080\n");
  for (CLI::App* command : app.get_subcommands({})) {
    std::string examples;
    for (const Examples& each : kExamples) {
      if (each.command == command->get_name()) examples = fmt::format("Examples:\n{}", each.lines);
    }
    command->footer(
        [&commands, command, examples] { return SharedOptions(commands, *command) + "\n" + examples; });
  }
}

std::string UnknownHelp(const CLI::App& app) {
  if (CommandOf(app) != nullptr || app.remaining(/*recurse=*/true).empty()) return {};
  return UsageError(&app, CLI::Error("", "", CLI::ExitCodes::ExtrasError));
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
