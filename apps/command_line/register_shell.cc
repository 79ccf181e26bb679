// `dsv4 completion` and `dsv4 man`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line/command.h"
#include "apps/command_line/shell_texts.h"

namespace dsv4::apps {

void RegisterShell(Commands& commands) {
  CLI::App& app = commands.app();
  const auto shell = std::make_shared<std::string>();
  CLI::App& completion =
      commands.AddWithoutModel("completion", "A script that completes commands and options in a shell",
                               [&commands, shell](const Invocation&) {
                                 fmt::print("{}", CompletionScript(commands, *shell));
                                 return kExitOk;
                               });
  completion.add_option("SHELL", *shell, "Which shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));

  const auto page = std::make_shared<std::string>();
  CLI::App& man = commands.AddWithoutModel(
      "man", "The manual page of dsv4 or of one of its commands", [&commands, &app, page](const Invocation&) {
        const std::vector<CLI::App*> found =
            app.get_subcommands([&](const CLI::App* each) { return each->get_name() == *page; });
        if (found.empty() && !page->empty()) {
          return Fail(InvalidArgument("man: no command '" + *page + "'"), kExitBadUsage);
        }
        fmt::print("{}", ManualPage(commands, found.empty() ? nullptr : found.front()));
        return kExitOk;
      });
  man.add_option("COMMAND", *page, "Which command (default: dsv4 itself)");
}

}  // namespace dsv4::apps
