// Completion scripts of bash, zsh and fish, and manual pages.
#include "apps/command_line/shell_texts.h"

#include <fmt/format.h>

#include <vector>

#include "apps/command_line/help_text.h"
#include "apps/terminal/printable.h"

namespace dsv4::apps {
namespace {

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  return commands;
}

// With a name that begins with '-'.
std::vector<const CLI::Option*> Options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

// Options of the program that `command` takes, or refuses.
std::vector<const CLI::Option*> Shared(const Commands& commands, const CLI::App& command, bool takes) {
  const CLI::App& app = commands.app();
  return app.get_options([&](const CLI::Option* option) {
    return option->nonpositional() && commands.Takes(command, *option) == takes;
  });
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<std::string> Names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// "CMD:OPTION" patterns with the words behind them, for the two shells that know "case". The first that fits
// counts. A command's own options come first, then those of the program that it refuses, which have no words.
// Options of every other command come last.
std::string ChoiceCases(const Commands& commands, std::string_view pattern_open, std::string_view format) {
  std::string cases;
  const auto add_line = [&](const std::string& patterns, const std::string& action) {
    if (!patterns.empty()) cases += fmt::format("    {}{}) {}return ;;\n", pattern_open, patterns, action);
  };
  const auto add_patterns = [](const CLI::Option& option, std::string_view command, std::string& patterns) {
    for (const std::string& name : Names(option))
      patterns += fmt::format("{}{}:{}", patterns.empty() ? "" : "|", command, name);
  };
  const auto add = [&](const std::vector<const CLI::Option*>& options, std::string_view command) {
    for (const CLI::Option* option : options) {
      const std::vector<std::string> words = Choices(*option);
      if (words.empty()) continue;
      std::string patterns;
      add_patterns(*option, command, patterns);
      add_line(patterns, fmt::format(fmt::runtime(format), fmt::join(words, " ")) + "; ");
    }
  };
  const CLI::App& app = commands.app();
  for (const CLI::App* command : CommandsOf(app)) {
    add(Options(*command), command->get_name());
    std::string refused;
    for (const CLI::Option* option : Shared(commands, *command, false)) {
      if (!Choices(*option).empty()) add_patterns(*option, command->get_name(), refused);
    }
    add_line(refused, "");
  }
  add(Options(app), "*");
  return cases;
}

// The words that the first positional of a command takes, where they are a list.
std::vector<std::string> FirstWords(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) return Choices(*option);
  }
  return {};
}

// Commands whose first word is the name of a pulled model.
constexpr std::string_view kOfPulled = "show|rm";

// The same as patterns of "COMMAND:WORD".
std::string OfPulled() {
  std::string patterns(kOfPulled);
  patterns.replace(patterns.find('|'), 1, ":*|");
  return patterns + ":*";
}

// "COMMAND) list=(words) ;;" for the two shells that know "case".
std::string FirstWordCases(const CLI::App& app, std::string_view pattern_open) {
  std::string cases;
  for (const CLI::App* command : CommandsOf(app)) {
    const std::vector<std::string> words = FirstWords(*command);
    if (words.empty()) continue;
    cases +=
        fmt::format("      {}{}) list=({}) ;;\n", pattern_open, command->get_name(), fmt::join(words, " "));
  }
  return cases;
}

std::string CommandNames(const CLI::App& app, std::string_view between) {
  std::string names = fmt::format("help{}version", between);
  for (const CLI::App* command : CommandsOf(app)) names += fmt::format("{}{}", between, command->get_name());
  return names;
}

std::string Bash(const Commands& commands) {
  const CLI::App& app = commands.app();
  const auto names = [](const std::vector<const CLI::Option*>& options) {
    std::string all;
    for (const CLI::Option* option : options) all += fmt::format(" {}", fmt::join(Names(*option), " "));
    return all;
  };
  std::string script =
      fmt::format(R"(# bash completion for dsv4: source <(dsv4 completion bash)
_dsv4() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command= word options= list=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in {}) command=$word; break ;; esac
  done
  case "$command:$prev" in
    *:-m|*:--model|{}) mapfile -t list < <("${{COMP_WORDS[0]}}" list -q 2>/dev/null) ;;
{}  esac
  if ((${{#list[@]}})) && [[ $cur != -* ]]; then
    COMPREPLY=($(compgen -W "${{list[*]}}" -- "$cur"))
    [[ $command == @({}) ]] || COMPREPLY+=($(compgen -d -- "$cur"))
  elif [[ $cur == -* ]]; then
    case $command in
)",
                  CommandNames(app, "|"), OfPulled(),
                  ChoiceCases(commands, "", "COMPREPLY=($(compgen -W '{}' -- \"$cur\"))"), kOfPulled);
  for (const CLI::App* command : CommandsOf(app)) {
    script += fmt::format("      {}) options='{}{}' ;;\n", command->get_name(),
                          names(Shared(commands, *command, true)), names(Options(*command)));
  }
  return script + fmt::format(R"(      *) options='{}' ;;
    esac
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
  elif [[ -z $command || $command == help || $command == man ]]; then
    COMPREPLY=($(compgen -W '{}' -- "$cur"))
  else
    case $command in
{}    esac
    for word in "${{list[@]}}"; do
      [[ " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " == *" $word "* ]] && list=() && break
    done
    if ((${{#list[@]}})); then
      COMPREPLY=($(compgen -W "${{list[*]}}" -- "$cur"))
    else
      COMPREPLY=($(compgen -f -- "$cur"))
    fi
  fi
}}
complete -o filenames -F _dsv4 dsv4
)",
                              names(Options(app)), CommandNames(app, " "), FirstWordCases(app, ""));
}

std::string Zsh(const Commands& commands) {
  const CLI::App& app = commands.app();
  const auto described = [](const std::vector<const CLI::Option*>& options) {
    std::string all;
    for (const CLI::Option* option : options) {
      for (const std::string& name : Names(*option)) {
        all += fmt::format("        {}\n", InQuotes(name + ":" + option->get_description()));
      }
    }
    return all;
  };
  std::string script = fmt::format(R"zsh(#compdef dsv4
# zsh completion for dsv4: source <(dsv4 completion zsh), or this file as _dsv4 in a directory of $fpath
_dsv4_shared() {{
  list=(
{}  )
}}
_dsv4() {{
  local command= word
  local -a list
  for word in ${{words[2,CURRENT-1]}}; do
    case $word in ({}) command=$word; break ;; esac
  done
  case "$command:${{words[CURRENT-1]}}" in
    (*:-m|*:--model) compadd -- ${{(f)"$($words[1] list -q 2>/dev/null)"}}; _files -/; return ;;
    ({}) [[ $PREFIX == -* ]] || {{ compadd -- ${{(f)"$($words[1] list -q 2>/dev/null)"}}; return }} ;;
{}  esac
  if [[ $PREFIX == -* ]]; then
    case $command in
)zsh",
                                   described(Options(app)), CommandNames(app, "|"), OfPulled(),
                                   ChoiceCases(commands, "(", "compadd -- {}"));
  for (const CLI::App* command : CommandsOf(app)) {
    // Behind those of the program that most commands take, which stand in the script once.
    const std::vector<const CLI::Option*> taken = Shared(commands, *command, true);
    const bool all = taken.size() == Options(app).size();
    script += fmt::format("      ({}) {}list{}=(\n{}{}      ) ;;\n", command->get_name(),
                          all ? "_dsv4_shared; " : "", all ? "+" : "", all ? std::string() : described(taken),
                          described(Options(*command)));
  }
  script += "      (*) _dsv4_shared ;;\n";
  script += R"(    esac
    _describe option list
  elif [[ -z $command || $command == help || $command == man ]]; then
    list=(
)";
  for (const CLI::App* command : CommandsOf(app)) {
    script += fmt::format("      {}\n", InQuotes(command->get_name() + ":" + command->get_description()));
  }
  return script + fmt::format(R"(    )
    _describe command list
  else
    case $command in
{}    esac
    for word in $list; do
      (($words[(I)$word])) && [[ $words[CURRENT] != $word ]] && list=() && break
    done
    if (($#list)); then compadd -- $list; else _files; fi
  fi
}}
if [[ $funcstack[1] == _dsv4 ]]; then _dsv4 "$@"; else compdef _dsv4 dsv4; fi
)",
                              FirstWordCases(app, "("));
}

std::string Fish(const Commands& commands) {
  const CLI::App& app = commands.app();
  std::string script = "# fish completion for dsv4: dsv4 completion fish | source\n";
  const auto add = [&](const CLI::App& owner, const std::string& condition) {
    for (const CLI::Option* option : Options(owner)) {
      std::string refusing;
      for (const CLI::App* command : CommandsOf(app)) {
        if (&owner == &app && !commands.Takes(*command, *option)) refusing += " " + command->get_name();
      }
      script += "complete -c dsv4" + condition;
      if (!refusing.empty()) script += fmt::format(" -n 'not __fish_seen_subcommand_from{}'", refusing);
      for (const std::string& name : option->get_snames()) script += " -s " + name;
      for (const std::string& name : option->get_lnames()) script += " -l " + name;
      const std::vector<std::string> words = Choices(*option);
      if (!words.empty()) {
        script += " -x -a " + InQuotes(fmt::format("{}", fmt::join(words, " ")));
      } else if (option->check_lname("model")) {
        script += " -r -a '(dsv4 list -q 2>/dev/null)'";
      } else if (TakesValue(*option)) {
        script += " -r";
      }
      script += " -d " + InQuotes(option->get_description()) + "\n";
    }
  };
  add(app, "");
  for (const CLI::App* command : CommandsOf(app)) {
    script += fmt::format("complete -c dsv4 -n __fish_use_subcommand -f -a {} -d {}\n", command->get_name(),
                          InQuotes(command->get_description()));
    add(*command, fmt::format(" -n '__fish_seen_subcommand_from {}'", command->get_name()));
    if (const std::vector<std::string> words = FirstWords(*command); !words.empty()) {
      const std::string list = fmt::format("{}", fmt::join(words, " "));
      script += fmt::format(
          "complete -c dsv4 -n '__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from {}' -f "
          "-a '{}'\n",
          command->get_name(), list, list);
    }
  }
  script += "complete -c dsv4 -n '__fish_seen_subcommand_from show rm' -f -a '(dsv4 list -q 2>/dev/null)'\n";
  return script + fmt::format("complete -c dsv4 -n '__fish_seen_subcommand_from help man' -f -a '{}'\n",
                              CommandNames(app, " "));
}

// Text of a manual page: nothing in it is a request or an escape of roff.
std::string Roff(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool at_start = i == 0 || text[i - 1] == '\n';
    if (at_start && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\')
      out += "\\e";
    else if (text[i] == '-')
      out += "\\-";
    else
      out += text[i];
  }
  return out;
}

std::string RoffOptions(const CLI::App& owner) {
  std::string out;
  for (const std::string& group : owner.get_groups()) {
    std::string options;
    for (const CLI::Option* option : owner.get_options()) {
      if (option->get_group() != group) continue;
      std::string names = option->nonpositional() ? fmt::format("{}", fmt::join(Names(*option), ", "))
                                                  : option->get_name(true);
      const std::string type = option->get_type_name();
      if (option->nonpositional() && TakesValue(*option) && !type.empty()) names += " " + type;
      std::string text = option->get_description();
      if (!option->get_default_str().empty())
        text += fmt::format(" (default: {})", option->get_default_str());
      options += fmt::format(".TP\n.B {}\n{}\n", Roff(names), Roff(text));
    }
    if (!options.empty()) out += fmt::format(".SS {}\n{}", Roff(group), options);
  }
  return out;
}

}  // namespace

std::string CompletionScript(const Commands& commands, std::string_view shell) {
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return Bash(commands);
}

std::string ManualPage(const Commands& commands, const CLI::App* command) {
  const CLI::App& app = commands.app();
  const CLI::App& owner = command != nullptr ? *command : app;
  const std::string name = command != nullptr ? "dsv4-" + command->get_name() : "dsv4";
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string synopsis =
      command != nullptr ? "dsv4 " + command->get_name() + " [OPTIONS]" : "dsv4 COMMAND [OPTIONS]";
  for (const CLI::Option* option : owner.get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = option->get_name(true);
    synopsis += option->get_required() ? " " + word : " [" + word + "]";
  }
  std::string page = fmt::format(".TH {} 1\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n", upper, Roff(name),
                                 Roff(owner.get_description()), Roff(synopsis));
  if (command == nullptr) {
    page += ".SH COMMANDS\n";
    for (const CLI::App* each : CommandsOf(app)) {
      page += fmt::format(".TP\n.B {}\n{}\n", Roff(each->get_name()), Roff(each->get_description()));
    }
  }
  page += ".SH OPTIONS\n" + RoffOptions(owner);
  if (command != nullptr) {
    std::vector<std::string> taken;
    for (const CLI::Option* option : Shared(commands, *command, true)) taken.push_back(Names(*option).back());
    page += fmt::format(".PP\nOptions that this command shares with others, in \\fBdsv4\\fR(1): {}.\n",
                        Roff(fmt::format("{}", fmt::join(taken, ", "))));
  }
  if (const std::string_view examples = ExamplesOf(command != nullptr ? command->get_name() : "");
      !examples.empty())
    page += fmt::format(".SH EXAMPLES\n.nf\n{}.fi\n", Roff(examples));
  return page +
         ".SH EXIT STATUS\n0: success. 1: the run failed. 2: bad usage. 3: a bad model or input file.\n";
}

}  // namespace dsv4::apps
