// `dsv4 experts` on the command line.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/experts/profile_command.h"

namespace dsv4::apps {

void RegisterExperts(Commands& commands) {
  struct Kept {
    std::string action;
    ProfileOptions options;
  };
  const auto kept = std::make_shared<Kept>();
  ProfileOptions& options = kept->options;
  CLI::App& experts =
      commands.Add("experts", "Count which routed experts a text chooses, and keep it for --experts",
                   [kept](const Invocation& invocation) {
                     kept->options.model = invocation.model;
                     return RunProfileCommand(kept->options);
                   });
  experts.add_option("ACTION", kept->action, "profile")->check(CLI::IsMember({"profile"}))->required();
  experts.add_option("--text", options.text_path, "Text that the model reads; -: standard input")->required();
  experts.add_option("--output", options.output_path,
                     "Where the counts go (default: where --experts looks for those of this model)");
  experts.add_option("--window", options.window, "Tokens that are read as one sequence")
      ->check(Positive())
      ->capture_default_str();
  experts.add_flag("--json", options.json, "One JSON document on stdout");
}

}  // namespace dsv4::apps
