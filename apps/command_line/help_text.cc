// HelpText: what --help and --help-all print, wrapped to the terminal.
#include "apps/command_line/help_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/terminal/terminal.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

struct CommandHelp {
  std::string_view command;
  // tests/cli/help_test.py runs each line that begins with "dsv4" or a pipe into it, in a folder with the
  // files that they name.
  std::string_view examples;
  // Options that --help shows, with a blank on either side; empty: all of the command's own.
  std::string_view usual = {};
};

constexpr std::array kHelp = {
    CommandHelp{"",
                "  dsv4 run \"What is the capital of France?\"\n"
                "  dsv4 run                        (a chat)\n"
                "  dsv4 serve --port 8080          (a page in the browser, and the HTTP API)\n",
                " help help-all version "},
    CommandHelp{"run",
                "  dsv4 run \"What is the capital of France?\"\n"
                "  dsv4 run -m models/tiny --temperature 0 \"What is the capital of Japan?\"\n"
                "  cat notes.txt | dsv4 run \"Shorten this:\" > short.txt\n"
                "  dsv4 run                        (a chat; /help in it lists its commands)\n",
                " prompt reasoning interactive continue quiet system tools thinking-mode effort max-tokens "
                "json-schema temperature top-p seed json "},
    CommandHelp{"serve",
                "  dsv4 serve --port 8080\n"
                "  dsv4 serve -m models/tiny --host 0.0.0.0 --port 8080 --api-key SECRET\n",
                " host port api-key api-key-file name alias context max-sequences tls-certificate tls-key "
                "thinking-mode effort max-tokens temperature access-log "},
    CommandHelp{"batch",
                "  dsv4 batch requests.jsonl answers.jsonl\n"
                "  dsv4 batch requests.jsonl answers.jsonl --alias '*' --json\n"},
    CommandHelp{"diagnose",
                "  dsv4 diagnose all\n"
                "  dsv4 diagnose checkpoint -m models/tiny\n",
                " check ab json html tokens against output report raw system messages "},
    CommandHelp{"eval",
                "  dsv4 eval perplexity --data texts.jsonl\n"
                "  dsv4 eval perplexity --data texts.jsonl --against-numerics plain --max-kl 0.1\n"
                "  dsv4 eval choice --data choices.jsonl --json\n"},
    CommandHelp{"logits", "  dsv4 logits --tokens ids.json --output logits.npy\n"},
    CommandHelp{"inspect",
                "  dsv4 inspect -m models/tiny\n"
                "  dsv4 inspect --weights synthetic:flash,nvfp4-experts --context 131072\n",
                " context batch json "},
    CommandHelp{"experts", "  dsv4 experts profile --text notes.txt --output profile.json\n"},
    CommandHelp{"synth", "  dsv4 synth random --shape tiny\n"},
    CommandHelp{"convert", "  dsv4 convert models/tiny converted --experts nvfp4\n"},
    CommandHelp{"bench",
                "  dsv4 bench --prefill 64 --depth 0,256 --batch 1,2\n"
                "  dsv4 bench --server http://127.0.0.1:8080 --streams 4 --seconds 2\n",
                " prefill depth batch rows repeat profile server streams seconds json "},
    CommandHelp{"doctor", "  dsv4 doctor\n"},
    CommandHelp{"encode", "  dsv4 encode --cases encoding-cases.json\n"},
    CommandHelp{"parse", "  dsv4 parse --cases parsing-cases.json --lenient\n"},
    CommandHelp{"completion",
                "  dsv4 completion bash > dsv4.bash      (then: source dsv4.bash)\n"
                "  dsv4 completion zsh > _dsv4           (into a directory of $fpath)\n"
                "  dsv4 completion fish > dsv4.fish      (into ~/.config/fish/completions)\n"},
    CommandHelp{"pull",
                "  dsv4 pull deepseek-ai/DeepSeek-V4-Flash      (then: dsv4 run -m with this name)\n"
                "  dsv4 pull https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash\n"
                "  dsv4 pull deepseek-ai/DeepSeek-V4-Flash@main --jobs 8 --verify\n",
                " name check all-files verify quiet json "},
    CommandHelp{"list", "  dsv4 list\n"},
    CommandHelp{"show", "  dsv4 show deepseek-ai/DeepSeek-V4-Flash\n"},
    CommandHelp{"rm", "  dsv4 rm deepseek-ai/DeepSeek-V4-Flash@main --dry-run\n"},
    CommandHelp{"ps", "  dsv4 ps\n"},
    CommandHelp{"launch",
                "  dsv4 launch claude\n"
                "  dsv4 launch aider -m models/tiny -- --no-auto-commits\n"
                "  dsv4 launch codex --print             (the settings only)\n"},
    CommandHelp{"man", "  dsv4 man run > dsv4-run.1             (then: man ./dsv4-run.1)\n"},
    CommandHelp{"tokenize", "  dsv4 tokenize \"Crème brûlée\"\n"},
};

// Options that commands share and --help shows.
constexpr std::string_view kUsualShared = " model backend threads log-level config ";

constexpr int kMostColumns = 100;  // Longer lines are hard to read.
constexpr int kTextColumn = 26;    // Column at which texts beside options begin, at most.

const CommandHelp& HelpOf(std::string_view command) {
  const auto* found =
      std::ranges::find_if(kHelp, [&](const CommandHelp& each) { return each.command == command; });
  static constexpr CommandHelp kNone = {"", ""};
  return found == kHelp.end() ? kNone : *found;
}

int Columns() {
  if (StdoutIsTerminal()) return TerminalColumns(STDOUT_FILENO);
  const char* columns = std::getenv("COLUMNS");
  const int given = columns != nullptr ? std::atoi(columns) : 0;
  return given > 0 ? given : 80;
}

// Characters, which in these texts take one column each.
int Width(std::string_view text) {
  return static_cast<int>(std::ranges::count_if(text, [](char c) { return (c & '\xC0') != '\x80'; }));
}

// Adds words to lines of at most `width` columns, the later ones indented.
class Lines {
 public:
  Lines(int width, int indent) : width_(std::max(width, 8)), indent_(std::min(indent, width_ / 2)) {}

  void Add(std::string_view text) {
    std::istringstream words{std::string(text)};
    for (std::string word; words >> word;) AddWord(word);
  }
  // To this column; a new line where it has passed.
  void Tab(int column) {
    if (used_ + 2 > column) NewLine();
    out_.append(static_cast<size_t>(std::max(0, std::min(column, width_ / 2) - used_)), ' ');
    used_ = std::max(used_, std::min(column, width_ / 2));
    blank_ = false;
  }
  void Literal(std::string_view text) {
    out_ += text;
    used_ += Width(text);
  }
  std::string Take() { return std::move(out_) + "\n"; }

 private:
  void NewLine() {
    out_ += '\n';
    used_ = 0;
    blank_ = false;
  }
  void Indent() {
    out_.append(static_cast<size_t>(indent_), ' ');
    used_ = indent_;
  }
  void AddWord(std::string word) {
    if (used_ > 0 && used_ + (blank_ ? 1 : 0) + Width(word) > width_) NewLine();
    if (used_ == 0 && !out_.empty()) Indent();
    if (blank_) Literal(" ");
    // A word that has no room in any line is broken behind a sign, or anywhere.
    while (used_ + Width(word) > width_) {
      const auto room = static_cast<size_t>(width_ - used_);
      size_t cut = word.find_last_of("|,/=", room - 1);
      cut = cut == std::string::npos ? room : cut + 1;
      Literal(word.substr(0, cut));
      word.erase(0, cut);
      NewLine();
      Indent();
    }
    Literal(word);
    blank_ = true;
  }

  const int width_, indent_;
  std::string out_;
  int used_ = 0;
  bool blank_ = false;  // Between the last word and the next.
};

// The word behind an option and its range, from the text that CLI11 makes of type and checks: "TEXT:{a,b}",
// "INT:INT in [1 - 32]", "FLOAT:more than 0", "FILE".
struct ValueText {
  std::string name, range;
};
ValueText ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  const std::string base = type.substr(0, colon);
  ValueText value = {base == "INT" || base == "UINT" || base == "FLOAT" ? "N" : base, {}};
  if (const std::vector<std::string> choices = Choices(option); !choices.empty()) {
    value.name = fmt::format("{}", fmt::join(choices, "|"));
  } else if (colon != std::string::npos) {
    const std::string check = type.substr(colon + 1);
    if (const size_t open = check.find(" in ["); open != std::string::npos) {
      value.range = check.substr(open + 5, check.find(']') - open - 5);
      if (const size_t dash = value.range.find(" - "); dash != std::string::npos)
        value.range.replace(dash, 3, " to ");
    } else if (check.find(' ') != std::string::npos) {
      value.range = check;
    } else {
      value.name = check;
    }
  }
  return value;
}

std::string OptionText(const CLI::Option& option, int width) {
  Lines lines(width, kTextColumn);
  const ValueText value = ValueOf(option);
  const bool positional = option.get_positional() && option.get_lnames().empty();
  if (positional) {
    lines.Literal("  " + option.get_name(true));
    if (value.name.find('|') != std::string::npos) {
      lines.Literal(" ");
      lines.Add(value.name);
    }
  } else {
    std::string names;
    for (const std::string& name : option.get_snames()) names += "-" + name + ",";
    for (const std::string& name : option.get_lnames()) names += "--" + name + ",";
    if (!names.empty()) names.pop_back();
    lines.Literal("  " + names);
    if (!value.name.empty()) {
      lines.Literal(" ");
      lines.Add(value.name);
    }
  }
  lines.Tab(std::min(kTextColumn, width / 2));
  lines.Add(option.get_description());
  std::vector<std::string> notes;
  const std::string usual = option.get_default_str();
  if (!usual.empty() && option.get_description().find("(default") == std::string::npos)
    notes.push_back("default: " + usual);
  if (!value.range.empty()) notes.push_back(value.range);
  if (!notes.empty()) lines.Add(fmt::format("({})", fmt::join(notes, "; ")));
  return lines.Take();
}

std::string Paragraph(std::string_view text, int width) {
  Lines lines(width, 2);
  lines.Add(text);
  return lines.Take();
}

// A remark in brackets goes into a line of its own where it has no room.
std::string ExampleLines(std::string_view examples, int width) {
  std::string out;
  std::istringstream input{std::string(examples)};
  for (std::string line; std::getline(input, line);) {
    const size_t remark = line.find("   (");
    if (Width(line) <= width || remark == std::string::npos) {
      out += Width(line) <= width ? line + "\n" : Paragraph(line, width);
    } else {
      const std::string command = line.substr(0, line.find_last_not_of(' ', remark) + 1);
      out += Width(command) <= width ? command + "\n" : Paragraph(command, width);
      out += "      " + Paragraph(line.substr(line.find('(', remark)), width - 6);
    }
  }
  return out;
}

bool IsUsual(const CLI::Option& option, std::string_view usual) {
  const std::string name = option.get_lnames().empty() ? std::string() : option.get_lnames().front();
  return usual.empty() || name.empty() || usual.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

}  // namespace

std::string_view ExamplesOf(std::string_view command) { return HelpOf(command).examples; }

std::vector<std::string> Choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  std::vector<std::string> words;
  if (begin == std::string::npos || end == std::string::npos) return words;
  std::stringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

std::string HelpText::make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const {
  const int width = std::min(Columns(), kMostColumns);
  const bool all = mode == CLI::AppFormatMode::All;
  const bool program = app == &commands_.app();
  const std::string command = program ? std::string() : app->get_name();
  const std::string name = program ? "dsv4" : "dsv4 " + command;
  const CommandHelp& help = HelpOf(command);

  std::string usage = "Usage: " + name + (program ? " COMMAND" : "") + " [OPTIONS]";
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    std::string word = option->get_name(true);
    word = word.substr(0, word.find(','));
    usage += option->get_required() ? " " + word : " [" + word + "]";
  }
  std::string out = Paragraph(app->get_description(), width) + Paragraph(usage, width);
  if (!help.examples.empty()) out += "\nExamples:\n" + ExampleLines(help.examples, width);

  if (program) {
    out += "\nSubcommands:\n";
    for (const CLI::App* each : app->get_subcommands([](const CLI::App*) { return true; })) {
      Lines lines(width, 15);
      lines.Literal("  " + each->get_name());
      lines.Tab(15);
      lines.Add(each->get_description());
      out += lines.Take();
    }
  }
  int64_t left_out = 0;
  const auto add_group = [&](const std::string& heading, const std::vector<const CLI::Option*>& options,
                             std::string_view usual) {
    std::string text;
    for (const CLI::Option* option : options) {
      if (all || IsUsual(*option, usual))
        text += OptionText(*option, width);
      else
        ++left_out;
    }
    if (!text.empty()) out += "\n" + heading + ":\n" + text;
  };
  const auto with_group = [&](const std::string& group, bool positional) {
    return app->get_options([&](const CLI::Option* option) {
      return option->get_group() == group &&
             (option->get_positional() && option->get_lnames().empty()) == positional;
    });
  };
  for (const std::string& group : app->get_groups()) {
    if (group == "Options") add_group("Arguments", with_group(group, true), {});
    add_group(group, with_group(group, false), help.usual);
  }
  if (!program) {
    add_group("Options of every command",
              std::as_const(commands_.app()).get_options([&](const CLI::Option* option) {
                return !option->check_lname("help") && !option->check_lname("help-all") &&
                       !option->check_lname("version") && commands_.Takes(*app, *option);
              }),
              kUsualShared);
  }
  out += "\n";
  if (left_out > 0)
    out += Paragraph(fmt::format("{} --help-all lists {}.", name, Counted(left_out, "more option")), width);
  if (program) out += Paragraph("dsv4 COMMAND --help says more of a command.", width);
  return out;
}

}  // namespace dsv4::apps
