#include "apps/command_line/command.h"

#include <memory>
#include <utility>

#include "apps/command_line/shared_flags.h"
#include "apps/shared/rank_group.h"

namespace dsv4::apps {

CLI::App& Commands::Add(const std::string& name, const std::string& help, Run run) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({flags, std::move(run), false, {}});
  return *flags;
}

CLI::App& Commands::AddOverRanks(const std::string& name, const std::string& help, Run run,
                                 Predicate over_ranks) {
  CLI::App* flags = app_.add_subcommand(name, help);
  commands_.push_back({flags, std::move(run), true, std::move(over_ranks)});
  return *flags;
}

int Commands::Dispatch(int argc, char** argv) const {
  for (const Command& command : commands_) {
    if (!command.flags->parsed()) continue;
    const std::vector<std::string> words(argv, argv + argc);
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
