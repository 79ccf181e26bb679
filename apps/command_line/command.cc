// Registration of subcommands and dispatch of the parsed one, over ranks or alone.
#include "apps/command_line/command.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "apps/command_line/shared_flags.h"
#include "apps/shared/choose_backend.h"
#include "apps/shared/rank_group.h"
#include "base/error_output.h"
#include "base/log.h"

namespace dsv4::apps {
namespace {

// Options of the program that are no model's.
constexpr std::array<std::string_view, 6> kOfEveryCommand = {"help",   "help-all",  "version",
                                                             "config", "log-level", "verbose"};

// Whether the words name this option of the program, not one of the same name that `command` has. A value
// from a settings file or the environment is for whichever command takes it.
bool Named(const CLI::Option& option, const CLI::App& command, const std::vector<std::string>& words) {
  const bool own = command.get_option_no_throw("--" + option.get_lnames().front()) != nullptr;
  for (const std::string& word : words) {
    if (word == "--" || (own && word == command.get_name())) return false;
    if (word.starts_with("--")) {
      if (option.check_lname(word.substr(2, word.find('=') - 2))) return true;
    } else if (word.size() > 1 && word[0] == '-' && option.check_sname(word.substr(1, 1))) {
      return true;
    }
  }
  return false;
}

}  // namespace

CLI::App& Commands::Add(const std::string& name, const std::string& help, Run run) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({flags, std::move(run)});
  return *flags;
}

CLI::App& Commands::AddPlan(const std::string& name, const std::string& help, Run run) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({.flags = flags, .run = std::move(run), .plans = true});
  return *flags;
}

CLI::App& Commands::AddWithoutModel(const std::string& name, const std::string& help, Run run,
                                    std::vector<std::string> takes) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({.flags = flags, .run = std::move(run), .takes = std::move(takes)});
  return *flags;
}

CLI::App& Commands::AddOverRanks(const std::string& name, const std::string& help, Run run,
                                 Predicate over_ranks) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({flags, std::move(run), true, std::move(over_ranks)});
  return *flags;
}

void Commands::RefuseModelOptions(const CLI::App& command, Predicate asks_server) {
  std::ranges::find(commands_, &command, &Command::flags)->asks_server = std::move(asks_server);
}

bool Commands::Takes(const CLI::App& command, const CLI::Option& option) const {
  const auto found = std::ranges::find(commands_, &command, &Command::flags);
  if (found == commands_.end() || !found->takes) return true;
  const auto has = [&](std::string_view name) { return option.check_lname(std::string(name)); };
  return std::ranges::any_of(kOfEveryCommand, has) || std::ranges::any_of(*found->takes, has);
}

int Commands::Dispatch(int argc, char** argv) const {
  for (const Command& command : commands_) {
    if (!command.flags->parsed()) continue;
    const std::vector<std::string> words(argv, argv + argc);
    const bool asks_server = command.asks_server && command.asks_server();
    for (const CLI::Option* option : app_.get_options()) {
      const auto has = [&](std::string_view name) { return option->check_lname(std::string(name)); };
      const bool takes =
          asks_server ? std::ranges::any_of(kOfEveryCommand, has) : Takes(*command.flags, *option);
      if (takes || !Named(*option, *command.flags, words)) continue;
      PrintError("dsv4 {0}: --{1} is for {2}\ndsv4 {0} --help lists the options.\n",
                 command.flags->get_name(), option->get_lnames().front(),
                 asks_server ? "a model that runs here, not for a server's" : "commands that run a model");
      return kExitBadUsage;
    }
    if (!command.takes) {
      const std::string note = command.plans ? ChoosePlannedBackend(model_) : ChooseBackend(model_);
      if (!note.empty()) LogWarning(note);
      if (const Status usable = CheckModelFlags(model_); !usable.ok()) return Fail(usable, kExitBadUsage);
    }
    std::unique_ptr<RankGroup> ranks;  // Until the command is done.
    if (command.ranks && (!command.over_ranks || command.over_ranks())) {
      auto entered = RankGroup::Enter(model_, words, DSV4_VERSION);
      if (!entered) {
        const bool usage = entered.error().code() == StatusCode::kInvalidArgument;
        return Fail(entered.error(), usage ? kExitBadUsage : kExitRunFailed);
      }
      ranks = std::move(*entered);
      if (model_.group != nullptr && model_.group->rank() > 0) return RunFollower(model_);
    }
    return command.run({model_, words});
  }
  return kExitBadUsage;
}

}  // namespace dsv4::apps
